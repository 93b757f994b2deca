"""Activations in host memory: two blocks have room on the device, and nothing comes back before it has gone."""

from __future__ import annotations

from typing import Any

import pytest

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.program import Op, Program
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
