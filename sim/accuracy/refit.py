"""The one thing that is fitted on published steps: the clock that tensor cores keep in training, GPU by GPU.

    python -m sim.accuracy.refit /path/to/training.csv [workers]

Every plan is predicted at two clocks; in between its step is linear in 1 / clock. Each GPU then takes the clock with
the least mean error over its rows, and the table shows the errors with the source left out that a row comes from
(its GPU's clock then comes from other sources, or from its kin), and with the GPU left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from statistics import fmean, median

import msgspec

from sim.accuracy.plans import Case
from sim.accuracy.training import Found, predict_case, validate_training
from sim.cost.sustained import assume, kin_clock
from topologies.hardware import Gpu
from topologies.load import load_topology

LOW = 0.75
_GRID = tuple(round(0.5 + 0.01 * index, 2) for index in range(51))


class Response(msgspec.Struct, frozen=True):
    """A row's predicted step as a function of the clock: `base + slope x (1 / clock - 1)` seconds."""

    row_id: str
    source_id: str
    gpu: Gpu
    measured: float
    base: float
    slope: float

    def error(self, clock: float) -> float:
        return (self.base + self.slope * (1.0 / clock - 1.0)) / self.measured - 1.0


def predict_at(clock: float, case: Case) -> Found:
    """A prediction with all GPUs at one clock."""
    assume(clock)
    return predict_case(case)


def responses(path: str, workers: int = 2, limit: int | None = None) -> list[Response]:
    """Every row that can be predicted, at the clocks 1 and `LOW`."""
    full, low = (validate_training(path, workers, limit, predict_seconds=partial(predict_at, clock)) for clock in (1.0, LOW))
    assume(None)
    found, slower = [], {outcome.row_id: outcome.predicted_s for outcome in low.outcomes}
    for outcome in full.outcomes:
        gpu = load_topology(outcome.machine).device(0)
        if outcome.row_id in slower and isinstance(gpu, Gpu):
            slope = (slower[outcome.row_id] - outcome.predicted_s) / (1.0 / LOW - 1.0)
            found.append(Response(outcome.row_id, outcome.source_id, gpu, outcome.measured_s, outcome.predicted_s, slope))
    return found


def fit(rows: Iterable[Response]) -> dict[str, float]:
    """GPU -> clock with the least mean |error|. The error's minimum is flat: the middle of all clocks within 0.1 % of it."""
    groups: dict[str, list[Response]] = {}
    for row in rows:
        groups.setdefault(row.gpu.name, []).append(row)
    return {name: _best(group) for name, group in sorted(groups.items())}


def _best(rows: list[Response]) -> float:
    errors = {clock: fmean(abs(row.error(clock)) for row in rows) for clock in _GRID}
    least = min(errors.values())
    return median(clock for clock, error in errors.items() if error <= least + 0.001)


def left_out(rows: list[Response], key: Callable[[Response], str]) -> list[float]:
    """Signed errors, each row predicted with clocks that were fitted without the rows of its own `key`."""
    found: list[float] = []
    for name in sorted({key(row) for row in rows}):
        clocks = fit(row for row in rows if key(row) != name)
        found += [row.error(kin_clock(row.gpu, clocks)[0]) for row in rows if key(row) == name]
    return found


def table(rows: list[Response], clocks: Mapping[str, float]) -> str:
    """In-sample errors by GPU, and those of the left-out fits, in percent."""
    lines = ["[clock]"]
    for name, clock in clocks.items():
        errors = [row.error(clock) for row in rows if row.gpu.name == name]
        sources = len({row.source_id for row in rows if row.gpu.name == name})
        lines.append(f"{name} = {clock:.2f}  # {len(errors)} steps of {sources} sources: mean error {100 * fmean(map(abs, errors)):.1f} %")
    sets = {
        "in sample": [row.error(clocks[row.gpu.name]) for row in rows],
        "source left out": left_out(rows, lambda row: row.source_id),
        "GPU left out": left_out(rows, lambda row: row.gpu.name),
        "no clock fitted": [row.error(1.0) for row in rows],
    }
    for name, errors in sets.items():
        size = [abs(error) for error in errors]
        lines.append(f"# {name}: mean {100 * fmean(size):.1f} %, median {100 * median(size):.1f} %, bias {100 * fmean(errors):+.1f} %")
    return "\n".join(lines)


if __name__ == "__main__":
    known = responses(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2)
    print(table(known, fit(known)))
