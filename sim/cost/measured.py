"""Measured kernels before fitted ones on GPUs: a calibration of the device itself first, published tables next, the model last.

Each cost says which it was: `measured` where a calibration or a table covers the shape, else `fitted` or `assumed`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sim.cost.gpu_pricer import GpuPricer
from sim.cost.kernel import kernel_cost
from sim.cost.price import Cost
from sim.framework import Framework
from sim.work import Attention, Gemm, Work
from topologies.errors import Refused, UnknownName
from topologies.graph import Topology
from topologies.hardware import Gpu

Lookup = Callable[[Work, Gpu], Cost | None]
"""What was measured of a work on a GPU; None where it does not say."""
SOURCES = ("fitted", "tables")
"""Cost sources by name: the fitted model alone, or the tables of `sim.cost.tables` where they cover a shape."""


class MeasuredPricer(GpuPricer):
    """A `GpuPricer` whose kernels are looked up first."""

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
        """The first lookup that knows the work. Measurements are of short benchmarks: they stretch in training as the fitted model does."""
        found = self._priced.get((work, id(gpu)))
        if found is None:
            found = self._priced[work, id(gpu)] = (self._looked_up(work, gpu), gpu)  # the GPU is kept, so that its id stays its own
        return found[0]

    def _looked_up(self, work: Work, gpu: Gpu) -> Cost:
        fitted = super().kernel(work, gpu)
        cost = next((one for lookup in self.lookups if (one := lookup(work, gpu)) is not None), None)
        if cost is None:
            return fitted
        short = kernel_cost(work, gpu, self.framework.attention_efficiency, False).seconds
        return Cost(cost.seconds * fitted.seconds / short if short > 0 else cost.seconds, cost.source)


def lookups_of(costs: str, calibration: str | Path | None) -> tuple[Lookup, ...]:
    """The lookups that `costs` and a calibration file name, in the order of precedence.

    Raises `UnknownName` for a source, `Refused` where the tables' package is absent or the calibration is of a CPU.
    """
    if costs not in SOURCES:
        raise UnknownName("cost source", costs, SOURCES)
    found: list[Lookup] = []
    if calibration is not None:
        found.append(_calibrated(calibration))
    if costs == "tables":
        from sim.cost.tables import check_installed

        check_installed()
        found.append(_tabulated)
    return tuple(found)


def _tabulated(work: Work, gpu: Gpu) -> Cost | None:
    from sim.cost.tables import table_cost

    return table_cost(work, gpu) if isinstance(work, (Gemm, Attention)) else None


def _calibrated(path: str | Path) -> Lookup:
    """Points measured by `steptwin probe` on a GPU: only what lies inside them counts as measured."""
    from sim.cost.calibration import load_calibration
    from sim.cost.cpu import prices

    calibration = load_calibration(path)
    if calibration.device != "cuda":
        raise Refused(
            f"calibration {path} was measured on a CPU ({calibration.machine}); the topology has GPUs. "
            "Run `steptwin probe` on a machine with such a GPU, or leave --calibration out to use the fitted model"
        )
    table = prices(calibration)

    def lookup(work: Work, gpu: Gpu) -> Cost | None:
        seconds, source = table.price(work)
        return Cost(seconds, source) if source == "measured" else None

    return lookup
