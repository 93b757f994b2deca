"""How the cost model of collectives does on a GPU type that none of its fitted parameters has seen.

For each GPU type: the parameters of its architecture alone are dropped (those of the other architectures stand in), and the shared
ones are fitted again, by golden sections on the mean absolute error, on the timings of all other types.

What is not fitted again: the bases and hops of the ring's LL protocol, of all_to_all and of posts, which were read off floors of all types.
So the errors here are a little smaller than those of a model that never saw the type; types of one architecture (B200, GB200) vouch for
each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import geometric_mean
from typing import Any, Protocol

from sim.accuracy.collectives_tools import Tool
from sim.cost.collective.group import GroupShape
from sim.cost.collective.nccl import best
from sim.cost.collective.rates import params

SHARED = (
    ("bandwidth", "ring"), ("bandwidth", "all_to_all"), ("latency", "direct_simple"),
    ("bandwidth", "nvls"), ("pipeline", "slices_nvlink"), ("pipeline", "net_depth"), ("pipeline", "net_cap"), ("pipeline", "nvls_depth"),
    ("pipeline", "nvls_cap"), ("network", "efa"), ("network", "all_to_all"),
)  # fmt: skip
"""Parameters that all rows share, fitted again for each GPU type left out."""
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "PRO 6000": {"bandwidth": {"pcie_direct_most": [40.0] * 3, "pcie_staged_most": [22.0] * 3}},
}
"""What only one type shows: where kernels' channels end on PCIe 5 (RTX PRO 6000). NCCL's own figures stand in (src/graph/topo.h): 48 / 1.2
GB/s between peers, 22 GB/s through a Sapphire Rapids host."""
_ROWS = 250
_STEPS = 6
_REACH = 1.6
_GOLDEN = 0.6180339887


class Case(Protocol):
    """A measured timing (seconds) with all that its prediction takes."""

    @property
    def gpu(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def measured(self) -> float: ...
    @property
    def shape(self) -> GroupShape: ...
    @property
    def source(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def tool(self) -> Tool: ...


def left_out(cases: Sequence[Case], judged: Sequence[Case]) -> dict[int, float]:
    """Relative errors of `cases` (by index) with their own GPU type withheld; only `judged` timings are fitted on."""
    found: dict[int, float] = {}
    for gpu in sorted({case.gpu for case in cases}):
        others = [case for case in judged if case.gpu != gpu]
        with _changed(_without(gpu, cases)):
            _refit(others[:: max(1, len(others) // _ROWS)])
            found.update({at: error(case) for at, case in enumerate(cases) if case.gpu == gpu})
    return found


def source_out(cases: Sequence[Case], judged: Sequence[Case]) -> dict[int, float]:
    """Relative errors of `cases` (by index) with the shared parameters fitted on `judged` timings of other sources.

    Cases whose source is the only one stay at the parameters as they are.
    """
    found: dict[int, float] = {}
    for source in sorted({case.source for case in cases}):
        others = [case for case in judged if case.source != source]
        with _changed({}):
            _refit(others[:: max(1, len(others) // _ROWS)])
            found.update({at: error(case) for at, case in enumerate(cases) if case.source == source})
    return found


def error(case: Case) -> float:
    """(predicted - measured) / measured of the time, with the parameters as they stand."""
    return case.tool.seconds(best(case.kind, case.bytes, case.shape, case.algorithm).seconds) / case.measured - 1.0


@contextmanager
def _changed(changes: dict[str, dict[str, Any]]) -> Iterator[None]:
    """The parameters with `changes`; all of them as before afterwards."""
    table = params()
    before = {name: dict(section) for name, section in table.items()}
    try:
        for name, section in changes.items():
            table[name].update(section)
        yield
    finally:
        for name, section in before.items():
            table[name].clear()
            table[name].update(section)


def _without(gpu: str, cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """What replaces the parameters that only this GPU type was fitted for."""
    changes: dict[str, dict[str, Any]] = {name: dict(section) for name, section in OWN.get(gpu, {}).items()}
    own = {case.shape.arch for case in cases if case.gpu == gpu} - {case.shape.arch for case in cases if case.gpu != gpu}
    scale = params()["scale"]
    for arch in own & {"sm80", "sm90", "sm100"}:
        stand_in = geometric_mean([float(scale[other]) for other in ("sm80", "sm90", "sm100") if other != arch])
        changes.setdefault("scale", {})[arch] = stand_in
    return changes


def _refit(cases: Sequence[Case]) -> None:
    """Golden sections in each shared parameter in turn, within a factor of `_REACH`; a parameter stays where the middle is no better."""
    table = params()

    def loss(section: str, name: str, value: float) -> float:
        table[section][name] = value
        return sum(min(abs(error(case)), 1.0) for case in cases)

    for section, name in SHARED:
        start = float(table[section][name])
        low, high = start / _REACH, start * _REACH
        for _ in range(_STEPS):
            step = (high - low) * _GOLDEN
            if loss(section, name, high - step) <= loss(section, name, low + step):
                high = low + step
            else:
                low = high - step
        middle = (low + high) / 2.0
        table[section][name] = middle if loss(section, name, middle) < loss(section, name, start) else start
