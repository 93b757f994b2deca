"""Predicted peak memory against measured peaks: the rows of the published table that give one.

SimuMax's rows are torch's peak of allocated memory on one node of B200, in GiB although the column says GB (its v1.2 summary); they served
to choose what `sim.memory.report` counts. torchtitan's log prints what torch has reserved (metrics.py: reserved_bytes.all.peak), in GiB;
the allocator's share is fitted on these. BLOOM's sweeps were read off nvidia-smi (chronicles-prequel.md), which shows context and NCCL too,
in MiB: their "GB" are thousands of them, as 80 on a device of 79.2 GiB cannot be GiB; causes were looked for where they were off. No source
is unseen data.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median

import msgspec

from sim.accuracy.published import published_rows
from sim.accuracy.row import Row, read_rows
from sim.accuracy.rows.plans import case_of
from sim.memory.report import memory_of
from sim.setting.bind import bind
from topologies.errors import SteptwinError

GIB, MIB = 2**30, 2**20
SEEN = ("simumax-b200", "torchtitan", "bigscience-bloom-topology")
"""Sources whose rows were looked at while the memory model was made."""
ALLOCATED = ("simumax-b200",)
"""Sources that measured what the framework allocated."""
RESERVED = ("torchtitan",)
"""Sources that measured what the framework's allocator had reserved. Sources in neither list measured what was taken from the device."""
_THOUSANDS = ("bigscience-bloom-topology",)
"""Sources whose GB are thousands of MiB."""


class MemoryScore(msgspec.Struct, frozen=True, kw_only=True):
    """One measured peak beside its prediction, in bytes."""

    row_id: str
    source: str
    model: str
    gpu: str
    measured: int
    predicted: int
    """Without CUDA's context and NCCL's buffers, and without the allocator's slack, where the source measured without (`RESERVED`,
    `ALLOCATED`)."""
    refused: str = ""
    state: int = 0
    """Parameters, gradients and optimizer states alone: the baseline that knows no activations."""

    @property
    def error(self) -> float:
        """Signed, as a fraction of the measured peak."""
        return self.predicted / self.measured - 1.0


def memory_scores(shared: str | Path | None = None) -> list[MemoryScore]:
    """Every row with a measured peak; `refused` says why one has no prediction.

    `shared`: the folder with `groundtruth/training.csv`, or that file; None: the table that ships.
    Raises `BadInput` where it is absent.
    """
    return [_score(row, row.peak_mem_gb) for row in _rows(shared) if row.peak_mem_gb]


def _rows(shared: str | Path | None) -> list[Row]:
    if shared is None:
        return published_rows()
    path = Path(shared)
    return read_rows(path / "groundtruth" / "training.csv" if path.is_dir() else path)


def _score(row: Row, peak: float) -> MemoryScore:
    unit = 1000 * MIB if row.source_id in _THOUSANDS else GIB
    found = MemoryScore(
        row_id=row.row_id, source=row.source_id, model=row.model_name, gpu=row.gpu, measured=round(peak * unit), predicted=0
    )
    try:
        case = case_of(row)
        setting = bind(case.plan, case.topology, case.edits)
    except SteptwinError as error:
        return msgspec.structs.replace(found, refused=str(error))
    report = memory_of(setting.plan, setting.network, setting.framework, setting.topology.device(0))
    predicted = report.allocated if row.source_id in ALLOCATED else report.reserved if row.source_id in RESERVED else report.peak
    return msgspec.structs.replace(found, predicted=predicted, state=report.parameters + report.gradients + report.optimizer)


def memory_table(scores: list[MemoryScore]) -> list[dict[str, object]]:
    """One row for each source: number of peaks, mean and median absolute error, mean signed error (`bias`), largest absolute error; all
    fractions."""
    table: list[dict[str, object]] = []
    for source in sorted({score.source for score in scores}):
        errors = [score.error for score in scores if score.source == source and not score.refused]
        if not errors:
            continue
        size = [abs(error) for error in errors]
        table.append(
            {
                "source": source,
                "rows": len(errors),
                "mape": round(fmean(size), 4),
                "median_ape": round(median(size), 4),
                "bias": round(fmean(errors), 4),
                "worst_ape": round(max(size), 4),
                "seen while modelling": source in SEEN,
            }
        )
    return table
