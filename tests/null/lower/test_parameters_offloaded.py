"""Sharded parameters in host memory: what goes up before each gather, what comes down after each reduction, and what the host then does."""

from __future__ import annotations

from typing import Any

import pytest

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.framework.framework import Framework
from sim.lower.data_parallel.on_host import CLS
from sim.memory.report import memory_of
from sim.predict import predict
from sim.program import Op, Program
from sim.setting.bind import Setting, bind
from sim.timeline.metrics import step_time
from tests.null.lower.tiny import MIB, QUIET, Constant, network, program, show
from topologies.errors import Refused

AWAY: dict[str, Any] = {"parallel": {"dp_shard": 2, "zero": 3}, "memory": {"offload": "parameters"}}
HERE: dict[str, Any] = {"parallel": {"dp_shard": 2, "zero": 3}}
DEEPSPEED = QUIET.but(data_parallel={"offloads_parameters": True})
FSDP2 = DEEPSPEED.but(data_parallel={"zero2": "layers"}, precision={"casts_messages": True})
LAYERS = 3
SHARD = MIB * 4 // 2
"""Bytes of a rank's half of a layer of the tiny network."""


class Bus(Constant):
    """Copies of parameters and gradients take so many seconds each."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def local(self, op: Op, rank: int) -> Cost:
        return Cost(self._seconds) if op.cls == CLS and op.kind == "copy" else super().local(op, rank)


def lowered(plan: dict[str, Any], framework: Framework = FSDP2) -> Program:
    return program(plan, network(LAYERS), framework)


def copies(p: Program, lane: str, step: int = 1) -> list[Op]:
    return [op for call, op in p.ops(0) if call.step == step and op.kind == "copy" and op.cls == CLS and op.lane == lane]


def bound(framework: str = "torchtitan", **plan: Any) -> Setting:
    base = {"model": "llama3-8b", "seq_len": 2048, "framework": framework, "batch": {"global": 8}, "parallel": {"dp_shard": 8, "zero": 3}}
    return bind(base | plan, "dgx-h100")


def test_each_gather_waits_for_the_shards_that_it_sends() -> None:
    line = show(lowered(AWAY).segments["fwd"])
    for layer in range(LAYERS):
        fetch, room, gather = (
            line.index(f"{lane}: fwd/L{layer}{what}")
            for lane, what in (("copy.h2d", ".fetch"), ("comm.fsdp", ".fetched.wait"), ("comm.fsdp", ".all_gather"))
        )
        assert fetch < room < gather
    assert line.index("copy.h2d: fwd/L2.fetch.room.wait") < line.index("copy.h2d: fwd/L2.fetch"), (
        "two layers have room, as gathered ones have"
    )


def test_a_step_moves_each_shard_up_for_every_gather_and_each_gradient_down_once() -> None:
    p = lowered(AWAY)
    gathers = sum(op.name == "all_gather" for call, op in p.ops(0) if call.step == 1)
    up, down = copies(p, "copy.h2d"), copies(p, "copy.d2h")
    assert len(up) == gathers == 2 * LAYERS and {op.bytes for op in up} == {SHARD}
    assert len(down) == LAYERS and {op.bytes for op in down} == {SHARD} and not any(op.blocking for op in down)


def test_a_later_micro_batch_joins_the_gradients_that_are_there() -> None:
    """FSDP2's host waits for what it adds; DeepSpeed brings the sum back to the device, and takes it down again."""
    plan = AWAY | {"batch": {"global": 8}}
    ours, theirs = (lowered(plan, framework) for framework in (FSDP2, DEEPSPEED))
    down = copies(ours, "copy.d2h")
    assert [op.blocking for op in down] == [False] * LAYERS + [True] * 3 * LAYERS
    assert [op.how for op in down] == ["pinned"] * LAYERS + ["pageable"] * 3 * LAYERS
    added = [op for call, op in ours.ops(0) if call.step == 1 and op.id.endswith(".add")]
    assert len(added) == 3 * LAYERS and {op.lane for op in added} == {"host"}
    assert len(copies(ours, "copy.h2d")) == 4 * 2 * LAYERS
    assert len(copies(theirs, "copy.h2d")) == 4 * 2 * LAYERS + 3 * LAYERS
    added = [op for call, op in theirs.ops(0) if call.step == 1 and op.id.endswith(".add")]
    assert len(added) == 3 * LAYERS and {op.lane for op in added} == {"comm.fsdp"}


def test_the_host_waits_for_the_last_gradient_and_updates() -> None:
    p = lowered(AWAY)
    assert show(p.segments["bwd.sync"])[-1] == "host: grad/end.comm.fsdp.sync"
    assert show(p.segments["update"]) == ["host: optimizer/cpu"]
    norms = "host: optimizer/norm.fsdp", "host: optimizer/clip", "host: optimizer/cpu"
    for framework, first in ((FSDP2, ("host: optimizer/norm",)), (DEEPSPEED, ())):
        clipped = lowered(AWAY, framework.but(optimizer={"clip": True}))
        assert show(clipped.segments["update"]) == [*first, *norms]


def test_a_bus_without_end_costs_no_time_and_a_slow_one_sets_the_pace() -> None:
    quick = step_time(simulate(lowered(AWAY), Bus(0.0)))
    here = step_time(simulate(lowered(HERE), Bus(0.0)))
    assert quick <= here, "the update is not the device's"
    slow = step_time(simulate(lowered(AWAY), Bus(50.0)))
    assert slow >= 2 * LAYERS * 50.0
    assert slow <= (2 * LAYERS + LAYERS) * 50.0 + here


@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed"])
def test_a_single_gpu_has_a_layer_at_a_time(framework: str) -> None:
    """A mesh of one: nothing is sent, and all the same gathered and freed. FSDP2 copies when it computes, DeepSpeed ahead."""
    setting = bound(framework, parallel={"zero": 3}, memory={"offload": "parameters"}, batch={"global": 1})
    assert setting.plan.world == 1
    moved = predict(setting.plan, "dgx-h100").program
    assert moved is not None
    up, down = (sum(op.bytes for op in copies(moved, lane, 0)) for lane in ("copy.h2d", "copy.d2h"))
    width = setting.network.parameters * (4 if framework == "torchtitan" else 2)
    assert 1.7 * width <= up <= 2.001 * width and down == pytest.approx(width, rel=1e-6)
    line = [op.id for op in moved.segments["fwd"]]
    assert ("fwd/L1.fetch.now.wait" in line) == (framework == "torchtitan")
    found = memory_of(setting.plan, setting.network, setting.framework)
    assert found.parameters == found.gradients == found.optimizer == 0
    whole = bound(framework, parallel={"zero": 3}, batch={"global": 1})
    assert memory_of(whole.plan, whole.network, whole.framework).peak > 4 * found.peak


@pytest.mark.no_cover
@pytest.mark.parametrize("framework", ["torchtitan", "pytorch", "deepspeed", "llm-foundry"])
def test_what_is_copied_is_what_a_rank_has(framework: str) -> None:
    """Up: its share of all parameters for forward, and for backward all but what stays; DeepSpeed's in 16 bits, FSDP's in fp32 where it has
    no other."""
    setting = bound(framework, memory={"offload": "parameters"})
    found = predict(setting.plan, "dgx-h100")
    assert found.trace is not None and found.program is not None
    ups = [
        op.bytes for call, op in found.program.ops(0) if call.step == 0 and op.kind == "copy" and op.cls == CLS and op.lane == "copy.h2d"
    ]
    master = setting.framework.precision.master and setting.framework.data_parallel.one_copy(3)
    own = setting.network.parameters / 8 * (4 if master else 2)
    assert 1.7 * own <= sum(ups) <= 2.0 * own * 1.001


@pytest.mark.parametrize(
    ("framework", "plan", "words"),
    [
        ("megatron-core", {}, "keeps parameters on the devices"),
        ("torchtitan", {"parallel": {"dp_replicate": 8}}, "Set zero = 3"),
        ("torchtitan", {"parallel": {"dp_shard": 4, "pp": 2, "zero": 3}}, "pp = 1"),
        ("torchtitan", {"parallel": {"dp_shard": 8, "zero": 3, "reshard_after_forward": False}}, "reshard_after_forward = true"),
    ],
)
def test_what_nobody_does_is_refused(framework: str, plan: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        predict(bound(framework, **plan, memory={"offload": "parameters"}).plan, "dgx-h100")


@pytest.mark.no_cover
def test_offloading_parameters_is_named_where_it_makes_a_plan_fit() -> None:
    """Where the optimizer's state alone is not enough: a single GPU for a model that fills it twice."""
    base = {"model": "llama3-70b", "seq_len": 2048, "framework": "torchtitan"}
    found = predict(base, "dgx-h100")
    assert found.does_not_fit is not None and found.does_not_fit.remedies
    assert found.does_not_fit.remedies[0].startswith('memory.recompute = "full" and parallel.zero = 3, memory.offload = "parameters" (')
    assert predict(base | {"memory": {"offload": "parameters", "recompute": "full"}, "parallel": {"zero": 3}}, "dgx-h100").fits
    little = predict(base | {"parallel": {"dp_shard": 8, "zero": 3}}, "dgx-h100").does_not_fit
    assert little is not None and little.remedies
    assert not any("parameters" in one for one in little.remedies), "the optimizer's state is enough there"


@pytest.mark.no_cover
@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_a_host_that_is_too_small_is_said(offload: str) -> None:
    base = {"model": "llama3-70b", "seq_len": 2048, "framework": "torchtitan", "parallel": {"dp_shard": 8, "zero": 3}}
    plan = base | {"memory": {"offload": offload, "recompute": "full"}}
    needed = 70.6e9 * (4 + 8 + 4)
    for memory, full in ((0.49 * needed, True), (0.51 * needed, False)):  # of a socket, of which there are two
        said = predict(plan, "dgx-h100", edits=(f"cpu.memory={memory:.0f} B",)).warnings
        assert any("of host memory on a node" in one for one in said) == full
