"""What ranks compute between two meetings, and what a meeting costs after it: the same in every way a program is run."""

from __future__ import annotations

import pytest

from sim.cost.calibration import Calibration, Sample
from sim.cost.cpu_pricer import CpuPricer
from sim.engine.run import simulate
from sim.engine.steps import step_times
from sim.engine.worked import worked
from sim.program import COMPUTE, HOST, Op
from sim.timeline.metrics import step_times as traced
from sim.work import MemoryBound
from tests.null.lower.tiny import QUIET, linear, network, norm, program
from topologies.load import load_topology

FULL, AGAIN, AFTER = 4e-3, 1e-3, 8e-3


def _ops(*words: str) -> tuple[Op, ...]:
    work = (MemoryBound("add", 8, 4, "fp32"),)
    kinds = {"c": ("compute", COMPUTE), "h": ("host", HOST), "m": ("collective", COMPUTE), "r": ("record", COMPUTE)}
    return tuple(Op(f"{at}", *kinds[word], works=work if word in "ch" else (), bytes=8) for at, word in enumerate(words))


@pytest.mark.parametrize(
    ("calls", "before"),
    [
        (["cmcm"], [1, 1]),
        (["cmm"], [1, 0]),
        (["chmcr", "hm"], [2, 2]),
        (["cc", "mc", "c", "m"], [2, 2]),
        (["cm", "cc", "cm", "c", "cm"], [2]),
        (["cc"], []),
    ],
)
def test_work_since_the_meeting_before_in_whichever_segment(calls: list[str], before: list[int]) -> None:
    """c: a kernel, h: the host's work, m: a meeting, r: a record. What is called again is as the last time."""
    segments = {name: _ops(*name) for name in calls}
    found = worked(calls, segments, lambda op: 1.0)
    assert [found[id(op)] for ops in segments.values() for op in ops if op.kind == "collective"] == before


def _pricer(later: float = 1e-12) -> CpuPricer:
    def point(seconds: float, name: str = "all_reduce", shape: tuple[int, ...] = (2, 1024)) -> Sample:
        return Sample(name, "", shape, seconds, seconds, seconds, 10)

    tables = {
        "collective": (point(FULL),),
        "again": (point(AGAIN),),
        "host": (point(AFTER, "stretch", ()), point(later, "apart", ())),
    }
    return CpuPricer(load_topology("cpu-host"), Calibration(device="cpu", date="", machine="m", cores=2, ranks=2, threads=1, tables=tables))


def test_sums_of_norms_gradients_follow_each_other_at_once() -> None:
    """DTensor's ranks sum the gradient of each norm by itself: of those of three layers in a row, the first alone finds its ranks apart."""
    layer = (norm(), linear("up", seam="tp.gather", seam_bytes=1024), linear("down", seam="tp.reduce", seam_bytes=1024))
    net = network(3, layer)
    p = program({"parallel": {"tp": 2}}, net, QUIET.but(tensor_parallel={"style": "dtensor"}), "cpu")
    spans = [
        span
        for span in simulate(p, _pricer(), False).spans
        if span.rank == 0 and span.step == 1 and "norm" in span.id and span.kind == "collective"
    ]
    seconds = [span.end - span.start for span in sorted(spans, key=lambda span: span.start)]
    assert len(seconds) == 6, "a weight and a bias each"
    assert seconds[1:] == pytest.approx([AGAIN] * 5) and AGAIN < seconds[0] <= FULL


@pytest.mark.parametrize("how", [{"symmetry": False}, {"symmetry": True}, {"alike": True}, {"alike": True, "apart": True}])
@pytest.mark.parametrize("later", [1e-12, 5e-3])
def test_every_way_of_running_prices_a_meeting_alike(how: dict[str, bool], later: float) -> None:
    layer = (norm(), linear("up", seam="tp.gather", seam_bytes=1024), linear("down", seam="tp.reduce", seam_bytes=1024))
    p = program({"parallel": {"tp": 2}}, network(3, layer), QUIET.but(tensor_parallel={"style": "dtensor"}), "cpu", 3)
    pricer = _pricer(later)
    last = traced(simulate(p, pricer, False))[-1]
    assert step_times(p, pricer, **how)[-1].settled == pytest.approx(last, rel=1e-9)
