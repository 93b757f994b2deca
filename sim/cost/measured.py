"""Prices GPU kernels by measurements where there are any: published tables first, the fitted model last (a calibration of this very machine comes
before both: `sim.cost.calibrated`).

`Cost.source` tells which one it was: `measured` where a table covers the shape, else `fitted` or `assumed`.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.cost.gpu_pricer import GpuPricer
from sim.cost.kernel import kernel_cost
from sim.cost.price import Cost
from sim.framework.framework import Framework
from sim.work import Attention, Gemm, Work
from topologies.errors import UnknownName
from topologies.graph import Topology
from topologies.hardware import Gpu

Lookup = Callable[[Work, Gpu], Cost | None]
"""The measured cost of a work on a GPU; None where this source does not cover it."""
SOURCES = ("fitted", "tables")
"""Cost sources by name: the fitted model alone, or the tables of `sim.cost.tables` where they cover a shape."""


class MeasuredPricer(GpuPricer):
    """A `GpuPricer` that asks `lookups` for a kernel first, in their order."""

    def __init__(
        self,
        topology: Topology,
        framework: Framework,
        lookups: tuple[Lookup, ...],
        factor: Callable[[int], float] | None = None,
        board: float = 1.0,
    ) -> None:
        super().__init__(topology, framework, factor, board)
        self.lookups = lookups
        self._priced: dict[tuple[Work, int], tuple[Cost, Gpu]] = {}

    def kernel(self, work: Work, gpu: Gpu) -> Cost:
        """The cost by the first lookup that covers the work, else by the fitted model. Measurements are short benchmarks: they are multiplied by the
        model's seconds in training over its seconds in a benchmark."""
        found = self._priced.get((work, id(gpu)))
        if found is None:
            found = self._priced[work, id(gpu)] = (self._looked_up(work, gpu), gpu)  # the GPU is kept, so that its id stays its own
        return found[0]

    def _looked_up(self, work: Work, gpu: Gpu) -> Cost:
        fitted = super().kernel(work, gpu)
        cost = next((one for lookup in self.lookups if (one := lookup(work, gpu)) is not None), None)
        if cost is None:
            return fitted
        short = kernel_cost(work, gpu, self.framework.attention.kernels, False).seconds
        return Cost(cost.seconds * fitted.seconds / short if short > 0 else cost.seconds, cost.source)


def lookups_of(costs: str) -> tuple[Lookup, ...]:
    """The lookups that `costs` names, in the order of precedence.

    Raises `UnknownName` for a source, `Refused` where the tables' package is absent.
    """
    if costs not in SOURCES:
        raise UnknownName("cost source", costs, SOURCES)
    if costs == "tables":
        from sim.cost.tables import check_installed

        check_installed()
        return (_tabulated,)
    return ()


def _tabulated(work: Work, gpu: Gpu) -> Cost | None:
    from sim.cost.tables import table_cost

    return table_cost(work, gpu) if isinstance(work, (Gemm, Attention)) else None
