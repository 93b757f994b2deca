"""The one thing that is fitted on published steps: the clock that tensor cores keep in training, GPU by GPU.

    python -m sim.accuracy.refit /path/to/training.csv [workers [rows]]

Every plan is predicted at two clocks (8-bit ones also at another clock of their 8-bit products); in between its step is linear in 1 /
clock. Each GPU with enough rows then takes the clocks with the least mean error, and the table shows the errors with the source left out
that a row comes from (its GPU's clock then comes from other sources, or from its kin), and with the GPU left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from statistics import fmean, median

import msgspec

from sim.accuracy.row import Row
from sim.accuracy.rows.plans import Case
from sim.accuracy.training import Found, validate_training
from sim.cost.kernel import assume
from sim.cost.sustained import kin_clock, narrow_clock
from topologies.hardware import Gpu
from topologies.load import load_topology

LOW = 0.75
_GRID = tuple(round(0.5 + 0.01 * index, 2) for index in range(51))
ENOUGH = 15
"""Rows that a GPU needs for a clock of its own; with fewer it takes its kin's."""
FEW = 4
"""Rows of each sort (16-bit, 8-bit) that a GPU needs to have two separate clocks."""


class Response(msgspec.Struct, frozen=True):
    """A row's predicted step as a function of the clocks: `base + slope x (1 / clock - 1) + narrow x (1 / fp8 - 1)` seconds."""

    row_id: str
    source_id: str
    gpu: Gpu
    measured: float
    base: float
    slope: float
    narrow: float = 0.0

    def error(self, clock: float, narrow: float) -> float:
        seconds = self.base + self.slope * (1.0 / clock - 1.0) + self.narrow * (1.0 / narrow - 1.0)
        return seconds / self.measured - 1.0


class Clocks(msgspec.Struct, frozen=True):
    """The fitted clocks by GPU, as shares of the peak clock: `clock` of all matrix products; `fp8` of 8-bit ones, for GPUs where these have
    their own."""

    clock: dict[str, float]
    fp8: dict[str, float]

    def error(self, row: Response) -> float:
        narrow = narrow_clock(row.gpu, self.clock, self.fp8)[0] if row.narrow else 1.0
        return row.error(kin_clock(row.gpu, self.clock)[0], narrow)


def predict_at(clock: float, narrow: float, case: Case) -> Found:
    """The prediction of `case` with all GPUs at `clock`, and 8-bit products at `narrow`."""
    from sim.accuracy.steady import step_seconds

    assume(clock, narrow)
    seconds, ideal = step_seconds(case.plan, case.topology, case.edits)
    return Found(seconds / case.turns, ideal / case.turns)


def _small(row: Row) -> bool:
    return any(word in row.precision.lower() for word in ("fp8", "fp4"))


def responses(path: str, workers: int = 2, limit: int | None = None) -> list[Response]:
    """The response of each row that can be predicted at the clocks 1 and `LOW`. `limit`: number of rows at most; None: all."""
    full = validate_training(path, workers, limit, predict_seconds=partial(predict_at, 1.0, 1.0))
    names = {outcome.row_id for outcome in full.outcomes}

    def seconds(narrow: float) -> dict[str, float]:
        def only(row: Row) -> bool:
            return row.row_id in names and (narrow == LOW or _small(row))

        found = validate_training(path, workers, predict_seconds=partial(predict_at, LOW, narrow), only=only)
        return {outcome.row_id: outcome.predicted_s for outcome in found.outcomes}

    both, wide = seconds(LOW), seconds(1.0)
    assume(None)
    found, scale = [], 1.0 / LOW - 1.0
    for outcome in full.outcomes:
        gpu, name, base = load_topology(outcome.machine, outcome.edits).device(0), outcome.row_id, outcome.predicted_s
        if name in both and isinstance(gpu, Gpu):
            slope = wide.get(name, both[name]) - base
            narrow = both[name] - wide.get(name, both[name])
            found.append(Response(name, outcome.source_id, gpu, outcome.measured_s, base, slope / scale, narrow / scale))
    return found


def fit(rows: Iterable[Response]) -> Clocks:
    """The clocks with the least mean absolute error. As the minimum is flat, the middle of all clocks whose error is within 0.001 of it is
    taken. GPUs with fewer than `ENOUGH` rows are left out."""
    groups: dict[str, list[Response]] = {}
    for row in rows:
        groups.setdefault(row.gpu.name, []).append(row)
    clock, fp8 = {}, {}
    for name, group in sorted(groups.items()):
        small = [row for row in group if row.narrow]
        large = [row for row in group if not row.narrow]
        if len(group) < ENOUGH:
            continue
        apart = min(len(small), len(large)) >= FEW
        clock[name] = _best(large if apart else group, lambda row, value: row.error(value, value))
        if apart:
            fp8[name] = _best(small, lambda row, value, own=clock[name]: row.error(own, value))  # type: ignore[misc]
    return Clocks(clock, fp8)


def _best(rows: list[Response], error: Callable[[Response, float], float]) -> float:
    errors = {value: fmean(abs(error(row, value)) for row in rows) for value in _GRID}
    least = min(errors.values())
    return round(median(value for value, size in errors.items() if size <= least + 0.001), 2)


def left_out(rows: list[Response], key: Callable[[Response], str]) -> list[float]:
    """Signed errors. Each row is predicted with clocks that were fitted without the rows that have the same `key` (a source, say)."""
    found: list[float] = []
    for name in sorted({key(row) for row in rows}):
        clocks = fit(row for row in rows if key(row) != name)
        found += [clocks.error(row) for row in rows if key(row) == name]
    return found


def table(rows: list[Response], clocks: Clocks) -> str:
    """Text with the clocks and the in-sample errors by GPU, and then the errors of the left-out fits, in percent."""
    lines = []
    for title, values in (("[clock]", clocks.clock), ("[fp8]", clocks.fp8)):
        lines.append(title)
        for name, clock in values.items():
            mine = [row for row in rows if row.gpu.name == name and (title == "[clock]" or row.narrow)]
            errors, sources = [clocks.error(row) for row in mine], len({row.source_id for row in mine})
            lines.append(
                f"{name} = {clock:.2f}  # {len(errors)} steps of {sources} sources: mean error {100 * fmean(map(abs, errors)):.1f} %"
            )
    sets = {
        "in sample": [clocks.error(row) for row in rows],
        "source left out": left_out(rows, lambda row: row.source_id),
        "GPU left out": left_out(rows, lambda row: row.gpu.name),
        "no clock fitted": [row.error(1.0, 1.0) for row in rows],
    }
    for name, errors in sets.items():
        size = [abs(error) for error in errors]
        lines.append(f"# {name}: mean {100 * fmean(size):.1f} %, median {100 * median(size):.1f} %, bias {100 * fmean(errors):+.1f} %")
    return "\n".join(lines)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:]]
    known = responses(sys.argv[1], *numbers[:2])
    print(table(known, fit(known)))
