"""How the cost model of collectives does on a GPU type that none of its fitted parameters has seen.

For each GPU type: the parameters that it alone shows are dropped, and the shared ones are fitted again, by golden sections on the mean
absolute error, on the timings of all other architectures (B200 and GB200 do not vouch for each other).

What is not fitted again are constants of NCCL's source and what other kernels than NCCL's tell (`clock.two_dies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Protocol, TypeVar

from sim.accuracy.collectives.measuring import Tool
from sim.cost.collective.group import GroupShape
from sim.cost.collective.nccl import best
from sim.cost.collective.rates import params

SHARED: tuple[tuple[str, str, int | None], ...] = (
    ("bandwidth", "ring", None), ("bandwidth", "all_to_all", None), ("bandwidth", "nvls", None), ("network", "efa", None),
    ("network", "all_to_all", None), ("latency", "ring_base", 0), ("latency", "ring_nvlink", 0), ("latency", "ring_pcie", 0),
    ("latency", "ring_pcie", 2), ("clock", "reference", None),
    ("latency", "ll_channels", None), ("latency", "direct_base", None), ("latency", "direct_ll", None), ("latency", "direct_simple", None),
    ("latency", "proxy", None), ("pipeline", "slices_nvlink", None), ("pipeline", "net_depth", None), ("pipeline", "net_cap", None),
    ("pipeline", "nvls_depth", None), ("pipeline", "nvls_cap", None),
)  # fmt: skip
"""Parameters that all rows share (section, name, place in a list), fitted again for each architecture and each source left out."""
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "PRO 6000": {"bandwidth": {"pcie_direct_most": [40.0] * 3, "pcie_staged_most": [22.0] * 3}},
}
"""What only one type shows: where kernels' channels end on PCIe 5 (RTX PRO 6000). NCCL's own figures stand in (src/graph/topo.h): 48 / 1.2
GB/s between peers, 22 GB/s through a Sapphire Rapids host."""
_ROWS = 320
_STEPS = 5
_REACH = 1.6
_WORTH = 0.002
_GOLDEN = 0.6180339887
_Row = TypeVar("_Row")


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
    """Relative errors of `cases` (by index) with all timings of their own architecture withheld; only `judged` timings are fitted on."""
    found: dict[int, float] = {}
    for gpu in sorted({case.gpu for case in cases}):
        own = {case.shape.arch for case in cases if case.gpu == gpu}
        others = [case for case in judged if case.shape.arch not in own]
        with _changed(OWN.get(gpu, {})):
            _refit(_sample(others))
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
            _refit(_sample(others))
            found.update({at: error(case) for at, case in enumerate(cases) if case.source == source})
    return found


def _sample(cases: Sequence[_Row]) -> list[_Row]:
    """`_ROWS` cases drawn by a fixed seed: tables repeat their sizes, and every n-th row would see some of these alone."""
    return Random(0).sample(list(cases), min(_ROWS, len(cases)))


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


def _refit(cases: Sequence[Case]) -> None:
    """Golden sections in each shared parameter in turn, within a factor of `_REACH`.

    A parameter stays where the cases do not tell it: where its best value takes off less than `_WORTH` of the loss.
    """
    for at in SHARED:
        start = _read(at)
        before = _loss(cases)
        low, high = start / _REACH, start * _REACH
        for _ in range(_STEPS):
            step = (high - low) * _GOLDEN
            if _loss(cases, at, high - step) <= _loss(cases, at, low + step):
                high = low + step
            else:
                low = high - step
        if _loss(cases, at, (low + high) / 2.0) > before * (1.0 - _WORTH):
            _write(at, start)


def _read(at: tuple[str, str, int | None]) -> float:
    section, name, place = at
    held = params()[section][name]
    return float(held if place is None else held[place])


def _write(at: tuple[str, str, int | None], value: float) -> None:
    """Lists are replaced, not changed: those who undo it hold the old ones."""
    section, name, place = at
    held = params()[section][name]
    params()[section][name] = value if place is None else [*held[:place], value, *held[place + 1 :]]


def _loss(cases: Sequence[Case], at: tuple[str, str, int | None] | None = None, value: float = 0.0) -> float:
    if at is not None:
        _write(at, value)
    return sum(min(abs(error(case)), 1.0) for case in cases)
