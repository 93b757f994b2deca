"""A checkpoint holds one copy of the state, however ranks share it: summed over all who write."""

from __future__ import annotations

from typing import Any

import pytest

from sim.lower.step import lower
from sim.program import Op, Program
from sim.setting.bind import bind

EXPERTS = {"base": "olmoe-1b-7b", "layers": 2}
DENSE = {"base": "gpt2-124m", "layers": 2}


def program(model: dict[str, Any], mode: str, parallel: dict[str, Any], **more: Any) -> Program:
    tree = {"model": model, "seq_len": 512, "batch": {"micro": 1, "global": 16}, "parallel": parallel, **more}
    tree["output"] = {"checkpoint_every": 1, "checkpoint_mode": mode}
    setting = bind(tree, "dgx-h100")
    return lower(setting.plan, setting.network, setting.framework, "cuda", 1)


def of_a_step(program: Program, name: str) -> list[list[Op]]:
    """Ops of a name, rank by rank."""
    roles = [program.roles[role] for role in program.role_of]
    called = [[call.segment for calls in role.threads.values() for call in calls] for role in roles]
    return [[op for segment in segments for op in program.segments[segment] if op.id.endswith(name)] for segments in called]


def stored(program: Program) -> int:
    return sum(op.bytes for ops in of_a_step(program, "output/write") for op in ops)


@pytest.mark.no_cover
@pytest.mark.parametrize("mode", ["full", "sharded", "async"])
@pytest.mark.parametrize(
    "parallel",
    [
        {"dp_replicate": 8},
        {"dp_replicate": 8, "ep": 8},
        {"dp_replicate": 8, "ep": 4},
        {"dp_replicate": 2, "dp_shard": 4, "zero": 3, "ep": 4},
        {"dp_shard": 8, "zero": 3, "ep": 2},
        {"dp_shard": 8, "zero": 1, "ep": 8},
        {"dp_shard": 4, "cp": 2, "zero": 1, "ep": 4},
        {"dp_replicate": 4, "tp": 2, "ep": 2},
        {"dp_replicate": 4, "tp": 2, "ep": 8, "etp": 1},
        {"dp_replicate": 4, "pp": 2, "ep": 2},
    ],
    ids=str,
)
def test_experts_are_written_once(mode: str, parallel: dict[str, Any]) -> None:
    alone = stored(program(EXPERTS, "sharded", {}))
    # What tensor parallel ranks have in common (norms, routers) each of them writes.
    assert stored(program(EXPERTS, mode, parallel)) == pytest.approx(alone, rel=2e-3 if "tp" in parallel else 1e-5)


@pytest.mark.parametrize("mode", ["sharded", "async"])
def test_who_updates_alone_writes_all_of_its_own(mode: str) -> None:
    """Parameters are the same after an average alone, moments never."""
    four, local = {"dp_replicate": 4}, {"mode": "local", "every": 8}
    assert stored(program(DENSE, mode, four, update=local)) == 4 * stored(program(DENSE, mode, {}))
    assert stored(program(DENSE, mode, four, update=local, task="forward")) == stored(program(DENSE, mode, {}, task="forward"))
    assert stored(program(DENSE, "full", four, update=local)) == stored(program(DENSE, "full", {})), "the first rank's"


def test_experts_are_gathered_from_those_who_have_them() -> None:
    """Whole on every rank of the group, so the leader writes what it has got."""
    found = program(EXPERTS, "full", {"dp_shard": 8, "zero": 3, "ep": 4})
    write = max(op.bytes for ops in of_a_step(found, "output/write") for op in ops)
    dense, shards, experts = (of_a_step(found, f"output/gather{name}")[0][0] for name in ("", ".experts", ".ep"))
    assert dense.bytes + experts.bytes == pytest.approx(write, rel=1e-6)
    assert experts.bytes == 4 * shards.bytes


def test_forward_alone_has_no_optimizer_to_keep() -> None:
    training, forward = (stored(program(DENSE, "sharded", {}, task=task)) for task in ("train", "forward"))
    assert training == 3 * forward


@pytest.mark.parametrize("framework", ["pytorch", "deepspeed"])
def test_what_the_host_updates_is_there_already(framework: str) -> None:
    """On the device: 16-bit parameters, where the host has no master copy of them."""
    parallel, offload = {"dp_shard": 8, "zero": 1}, {"offload": "optimizer"}
    found = program(DENSE, "sharded", parallel, memory=offload, framework=framework)
    write, copied = stored(found), sum(op.bytes for ops in of_a_step(found, "output/d2h") for op in ops)
    assert write == stored(program(DENSE, "sharded", parallel, framework=framework))
    assert copied == (pytest.approx(write / 3, rel=1e-5) if framework == "pytorch" else 0)


@pytest.mark.parametrize("more", [{}, {"optimizer": {"on": "cpu"}}], ids=str)
@pytest.mark.parametrize("parallel", [{"dp_replicate": 4}, {"dp_shard": 4, "zero": 3}], ids=str)
def test_what_a_thread_writes_beside_training_was_copied_first(parallel: dict[str, Any], more: dict[str, Any]) -> None:
    """Training changes its own copy meanwhile, on the device or in host memory; who stops for the writing copies only what the device has."""
    beside, stopped = (program(DENSE, mode, parallel, **more) for mode in ("async", "sharded"))
    for rank in range(4):
        device, there = [sum(op.bytes for op in of_a_step(beside, name)[rank]) for name in ("output/d2h", "output/stage")]
        assert device + there == sum(op.bytes for op in of_a_step(beside, "output/write")[rank])
        assert (there > 0) == ("optimizer" in more)
    assert not any(of_a_step(stopped, "output/stage"))


def test_on_cpus_all_of_it_is_copied() -> None:
    setting = bind(
        {"model": DENSE, "batch": {"micro": 1, "global": 2}, "output": {"checkpoint_every": 1, "checkpoint_mode": "async"}}, "cpu-host"
    )
    found = lower(setting.plan, setting.network, setting.framework, "cpu", 1)
    assert [op.bytes for op in of_a_step(found, "output/stage")[0]] == [op.bytes for op in of_a_step(found, "output/write")[0]]
    assert of_a_step(found, "output/d2h") == [[]]
