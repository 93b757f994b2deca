"""Peak memory against what published runs printed.

Sources print different things: SimuMax what PyTorch allocated at most (`torch.cuda.max_memory_allocated`, GiB), torchtitan what its
allocator reserved, BLOOM's sweep what nvidia-smi showed; the last two hold cached blocks that no plan tells, so only the
first has a target. The baseline counts parameters, gradients and optimizer states alone, as 16 bytes a parameter do.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, median

import msgspec

from sim.accuracy.plans import case_of
from sim.accuracy.rows import Row
from topologies.errors import BadInput

ALLOCATED = ("simumax-b200",)
"""Sources that print what was allocated."""
_GIB = 2**30


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """One published peak, in bytes."""

    row_id: str
    source_id: str
    measured: float
    predicted: float
    state: float
    """Parameters, gradients and optimizer states alone."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


def peaks(rows: Iterable[Row]) -> list[Peak]:
    """Every row that prints a peak and can be planned. `peak_mem_gb` is in GiB, as PyTorch's tools print it."""
    from sim.bind import bind
    from sim.predict import figures_of_memory

    found = []
    for row in rows:
        if row.peak_mem_gb is None:
            continue
        try:
            case = case_of(row)
            report, _ = figures_of_memory(bind(case.plan, case.topology))
        except BadInput:
            continue
        predicted = report.allocated if row.source_id in ALLOCATED else report.peak
        state = report.parameters + report.gradients + report.optimizer
        found.append(
            Peak(
                row_id=row.row_id, source_id=row.source_id, measured=row.peak_mem_gb * _GIB, predicted=float(predicted), state=float(state)
            )
        )
    return found


def summarise(found: list[Peak]) -> list[dict[str, object]]:
    """Errors by source, with the baseline."""
    rows: list[dict[str, object]] = []
    for source in dict.fromkeys(one.source_id for one in found):
        group = [one for one in found if one.source_id == source]
        size = [abs(one.error) for one in group]
        rows.append(
            {
                "source": source,
                "printed": "allocated" if source in ALLOCATED else "reserved",
                "rows": len(group),
                "mean": fmean(size),
                "median": median(size),
                "bias": fmean(one.error for one in group),
                "states_only": fmean(abs(one.state / one.measured - 1.0) for one in group),
            }
        )
    return rows
