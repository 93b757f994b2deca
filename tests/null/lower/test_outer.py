"""DiLoCo: an outer step of Nesterov momentum over local updates: its kernels, its message, what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.lower.checks.verify import verify
from sim.memory.report import memory_of
from sim.program import Program
from sim.setting.bind import bind
from sim.work import MemoryBound
from tests.null.lower.tiny import MIB, QUIET, messages, network, program, show
from topologies.errors import Refused

ALL = 8 * MIB
"""Bytes of the tiny network's fp32 parameters."""


def local(ranks: int = 2, outer: str = "nesterov", every: int = 2, net: Any = None, framework: Any = QUIET, **more: Any) -> Program:
    plan = {"parallel": {"dp_replicate": ranks}, "update": {"mode": "local", "every": every, "outer": outer}, **more}
    return program(plan, net, framework)


def kernels(p: Program, id: str) -> list[MemoryBound]:
    return [w for op in p.segments["average"] if op.id == id for w in op.works if isinstance(w, MemoryBound)]


def test_an_outer_step_sends_what_ranks_have_moved_by() -> None:
    p = local(framework=QUIET.but(optimizer={"implementation": "foreach"}))
    assert show(p.segments["average"]) == ["compute: outer/moved", "compute: outer/all_reduce", "compute: outer/step"]
    assert messages(p, step=0) == [] and messages(p, step=1) == [("all_reduce", "dp", ALL)]
    moved = [(w.what, w.read // ALL, w.written // ALL) for w in kernels(p, "outer/moved")]
    assert moved == [("foreach_add", 2, 1), ("copy", 1, 1), ("scale", 1, 1)], "the difference, joined, divided by the ranks"
    stepped = [(w.what, w.read // ALL, w.written // ALL) for w in kernels(p, "outer/step")]
    assert stepped == [(f"foreach_{what}", read, 1) for what, read in (("copy", 1), ("scale_", 1), *(("add_", 2),) * 3, ("copy", 1))]
    verify(p)


def test_fused_it_is_momentums_kernel() -> None:
    p = local()
    (stepped,) = [w for w in kernels(p, "outer/step") if w.what == "momentum"]
    assert (stepped.read, stepped.written) == (3 * ALL, 2 * ALL)


def test_a_for_loop_calls_each_kernel_for_each_tensor() -> None:
    p = local(net=network(3), framework=QUIET.but(host="python", optimizer={"implementation": "for-loop"}))
    assert len(kernels(p, "outer/step")) == 3 * 6 and len(kernels(p, "outer/moved")) == 3 + 2


def test_eager_frameworks_spend_an_optimizers_host_time_on_it() -> None:
    p = local(framework=QUIET.but(host="python"))
    assert show(p.segments["average"])[:2] == ["host: outer/step.host", "host: outer/tensors.host"]


def test_alone_nothing_is_sent_but_the_step_is_taken() -> None:
    p = local(1)
    assert messages(p, step=1) == [] and [w.what for w in kernels(p, "outer/step")] == ["foreach_copy", "momentum", "foreach_copy"]
    assert [w.what for w in kernels(p, "outer/moved")] == ["foreach_add"]
    assert "average" not in local(1, "average").segments


def test_masters_are_averaged_and_cast_for_forward() -> None:
    mixed = QUIET.but(precision={"param_dtype": "bf16", "master": True, "grad_dtype": "fp32"})
    p = local(framework=mixed, precision="bf16")
    assert messages(p, step=1) == [("all_reduce", "dp", ALL)], "in fp32"
    assert [w.what for w in kernels(p, "outer/step")] == ["foreach_copy", "momentum", "foreach_cast", "foreach_copy"]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_it_keeps_a_copy_and_a_momentum(optimizer: str) -> None:
    found = []
    for outer in ("average", "nesterov"):
        update = {"mode": "local", "every": 4, "outer": outer}
        plan = load_plan(
            {
                "model": "gpt2-124m", "seq_len": 128, "precision": "fp32", "parallel": {"dp_replicate": 4}, "update": update,
                "optimizer": {"name": optimizer, "implementation": "fused"},
            }
        )  # fmt: skip
        system = bind(plan, "dgx-h100")
        found.append(memory_of(plan, system.network, system.framework).optimizer)
    assert found[1] - found[0] == pytest.approx(8 * system.network.parameters, rel=1e-6)


def test_what_the_outer_step_needs_is_on_the_device_wherever_the_inner_one_runs() -> None:
    tree = {"model": "gpt2-124m", "seq_len": 512, "parallel": {"dp_replicate": 4}, "optimizer": {"on": "cpu"}}
    found = []
    for outer in ("average", "nesterov"):
        setting = bind(load_plan(tree | {"update": {"mode": "local", "outer": outer}}), "dgx-h100")
        found.append(memory_of(setting.plan, setting.network, setting.framework).optimizer)
    assert found == [0, pytest.approx(2 * 2 * setting.network.parameters, rel=1e-6)]


def test_parameters_are_joined_to_be_averaged() -> None:
    """torch's average_parameters: "requires extra memory of the same size as the given parameters"."""
    from sim.memory.static import static_bytes
    from sim.model.stages import layout

    tree = {"model": "gpt2-124m", "seq_len": 512, "parallel": {"dp_replicate": 4}, "optimizer": {"name": "sgd"}}
    found = []
    for update in ({}, {"mode": "local"}):
        setting = bind(load_plan(tree | {"update": update}), "dgx-h100")
        (chunk,) = layout(setting.network, setting.plan)
        found.append(static_bytes(setting.plan, setting.network, setting.framework, (chunk,))["step"])
    assert found == [0, 2 * setting.network.parameters]


def test_the_joined_message_counts_at_the_step() -> None:
    """A model whose activations are small: SGD without intermediates, then the flat outer gradient of all ranks' movement."""
    from sim.memory.static import static_bytes
    from sim.model.stages import layout

    steps = []
    for ranks in (1, 4):
        update = {"mode": "local", "outer": "nesterov"}
        said = {"model": "gpt2-124m", "seq_len": 8, "precision": "fp32", "parallel": {"dp_replicate": ranks}, "update": update}
        plan = load_plan(said | {"optimizer": {"name": "sgd"}})
        system = bind(plan, "dgx-h100")
        steps.append(static_bytes(plan, system.network, system.framework, layout(system.network, plan))["step"])
    assert steps == [0, 4 * system.network.parameters]


def test_checkpoints_hold_both() -> None:
    def written(outer: str) -> int:
        p = local(outer=outer, output={"checkpoint_every": 1, "checkpoint_mode": "full"})
        return max(op.bytes for ops in p.segments.values() for op in ops if op.id == "output/write")

    assert written("nesterov") - written("average") == 2 * ALL


def test_sharded_models_have_no_outer_step() -> None:
    from sim.rules import check

    with pytest.raises(Refused, match="holds a whole model"):
        check(load_plan({"model": "gpt2-124m", "parallel": {"dp_shard": 2, "zero": 3}, "update": {"mode": "local", "outer": "nesterov"}}))
