"""Activations in host memory: two blocks have room on the device, and nothing comes back before it has gone."""

from __future__ import annotations

from typing import Any

import pytest

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.memory.report import memory_of_stages
from sim.program import Op, Program
from sim.setting.bind import bind
from sim.timeline.metrics import step_time
from tests.null.lower.tiny import Constant, network, program, show
from topologies.errors import Refused

AWAY = {"memory": {"offload": "activations"}}


class Bus(Constant):
    """Copies of activations take so many seconds each."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def local(self, op: Op, rank: int) -> Cost:
        return Cost(self._seconds) if op.cls == "comm.offload" else super().local(op, rank)


def seconds(p: Program, copies: float) -> float:
    return step_time(simulate(p, Bus(copies)))


def test_a_third_block_waits_until_the_first_has_left() -> None:
    p = program(AWAY, network(4))
    forward = show(p.segments["fwd"])
    assert (
        forward.index("copy.d2h: fwd/L0.gone.record") < forward.index("compute: fwd/L2.left.wait") < forward.index("compute: fwd/L2.linear")
    )
    assert "compute: fwd/L1.left.wait" not in forward and "compute: fwd/head.left.wait" in forward
    back = show(p.segments["bwd"])
    assert back.index("copy.h2d: bwd/L1.gone.wait") < back.index("copy.h2d: bwd/L1.fetch") < back.index("compute: wgrad/L1.linear")


@pytest.mark.parametrize("layers", [4, 8])
def test_a_slow_bus_sets_the_pace_both_ways(layers: int) -> None:
    """Each layer's activations go down one after the other, and come up one after the other once the last has gone."""
    slow = 10.0
    quick = seconds(program({}, network(layers)), slow)
    p = program(AWAY, network(layers))
    assert seconds(p, 0.0) == pytest.approx(quick), "a bus without end costs nothing"
    assert seconds(p, slow) >= 2 * layers * slow
    assert seconds(p, slow) <= 2 * layers * slow + quick


def test_each_micro_batch_of_a_pipeline_fetches_its_own() -> None:
    """1F1B runs the next forward before a backward, which must not wait for what that one sends down."""
    p = program(AWAY | {"parallel": {"pp": 2}, "batch": {"global": 4}}, network(8))
    gone = [op for ops in p.segments.values() for op in ops if op.event.endswith(".gone")]
    assert gone and all(op.shift == 0 for op in gone), "numbered by micro-batch"


@pytest.mark.parametrize("away", [AWAY, {"memory": {"offload": "optimizer"}}, {"optimizer": {"on": "cpu"}}])
def test_on_a_cpu_there_is_nowhere_to_move_to(away: dict[str, Any]) -> None:
    """What was said to be moved would be missing from the memory that it is in."""
    with pytest.raises(Refused, match="on a CPU they are the same"):
        program(away, device="cpu")


def test_some_layers_of_a_stage_take_turns_over_all_of_it() -> None:
    """Two of eight: the first has four layers' time to leave, and as many to come back; what stays never waits."""
    p = program({"memory": {"offload": "activations", "offload_layers": 2}}, network(8))
    forward, back = show(p.segments["fwd"]), show(p.segments["bwd"])
    assert [line for line in forward if line.endswith(".offload")] == ["copy.d2h: fwd/L0.offload", "copy.d2h: fwd/L1.offload"]
    assert [line for line in forward if ".left.wait" in line] == ["compute: fwd/L4.left.wait", "compute: fwd/head.left.wait"]
    assert back.index("copy.h2d: bwd/L1.fetch") < back.index("compute: bwd/L7.linear")
    assert back.index("compute: bwd/L4.linear") < back.index("copy.h2d: bwd/L0.fetch") < back.index("compute: bwd/L3.linear")


def test_what_stays_of_several_micro_batches_is_in_memory() -> None:
    """A stage's last block stays, of each micro-batch that is in flight."""
    plan = {"model": "gpt2-124m", "seq_len": 1024, "batch": {"global": 16, "micro": 1}, "framework": "megatron-lm"}

    def activations(layers: int, **parallel: int) -> list[int]:
        how = {"offload": "activations", "offload_layers": layers} if layers else {}
        setting = bind(plan | {"parallel": parallel, "memory": how}, "dgx-h100")
        return [report.activations for report in memory_of_stages(setting.plan, setting.network, setting.framework)]

    whole, half, most = (activations(layers)[0] for layers in (0, 6, 11))
    layer = (whole - half) / 6
    assert half - most == pytest.approx(5 * layer), "each layer that goes is as much less"
    staged = activations(2, pp=4)
    assert staged[1] - staged[2] == pytest.approx(layer), "three micro-batches' last layers against two's"
