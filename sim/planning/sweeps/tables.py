"""The table of a sweep: as text, as plain values and as a pandas DataFrame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sim.planning.sweeps.space import settings_of
from sim.tables import Tabular, aligned

if TYPE_CHECKING:
    from sim.planning.sweeps.store import Row

MOST = 10
"""Rows of a sweep that print; `to_frame` has all."""


_SAID = {"step_time": "step_time_s", "memory": "memory_bytes", "rate": "samples_per_s"}
"""Names of a row's figures in JSON, with their units."""


def said_row(row: Row) -> dict[str, Any]:
    """A row as JSON says it (`sim.files.forms.planning.SweepRow`); `detail` is text in the results file alone."""
    found = {_SAID.get(name, name): value for name, value in msgspec.structs.asdict(row).items()}
    return found | {"detail": json.loads(row.detail)}


def unit_of(rows: Sequence[Row]) -> str:
    """What the plans' costs are for a million of."""
    return rows[0].unit if rows else "samples"


def ranked_by(rows: Sequence[Row]) -> str:
    """What the best plans are sorted by."""
    return "money for model FLOPs" if any(row.cost for row in rows) else "model FLOPs per GPU"


def split_of(row: Row) -> str:
    """A plan's words without its machine's."""
    gone = {"on", "gpus", *(edit.partition("=")[0] for edit in row.edits)}
    return " ".join(f"{key}={value}" for key, value in settings_of(row.key).items() if key not in gone)


class Ranked(Tabular):
    """The table of a sweep: for a value with `rows`, `ranked`, `by_machine`, `front`, `best`, `counts` and `path`, as `sim.planning.sweeps.sweep.Sweep` has them."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def rows(self) -> list[Row]: ...
        @property
        def ranked(self) -> list[Row]: ...
        @property
        def by_machine(self) -> list[Row]: ...
        @property
        def front(self) -> list[Row]: ...
        @property
        def best(self) -> Row | None: ...
        @property
        def counts(self) -> dict[str, int]: ...
        @property
        def path(self) -> str: ...

    def __str__(self) -> str:
        done = self.ranked
        keys = {row.key for row in self.front}
        lines = [
            (row.key, f"{(row.step_time or 0.0) * 1e3:,.3f}", _share(row.mfu), f"{(row.memory or 0) / 2**30:.2f}", f"{row.gpus:,}",
             f"{row.cost:,.2f}" if row.cost is not None else "-",
             ", ".join([*(["front"] if row.key in keys else []), *(["nearly full"] if row.nearly_full else [])]))
            for row in done[:MOST]
        ]  # fmt: skip
        counted = ", ".join(f"{number:,} {name}" for name, number in self.counts.items() if number)
        more = f"\n... {len(done) - MOST:,} more in {self.path}" if len(done) > MOST else f"\nin {self.path}"
        head = (f"plan, by {ranked_by(done)}", "step, ms", "MFU", "GiB", "GPUs", f"cost/M {unit_of(done)}", "")
        return f"{counted}\n{aligned(head, lines)}{more}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values: every row, keys of the front and the best, counts."""
        best = self.best
        return {
            "rows": [said_row(row) for row in self.rows],
            "front": [row.key for row in self.front],
            "by_machine": [row.key for row in self.by_machine],
            "best": best.key if best is not None else "",
            "counts": dict(self.counts),
            "file": self.path,
        }

    def _rows(self) -> list[dict[str, Any]]:
        """Every plan of the sweep, what was varied in columns of its own; not only those that fit."""
        front = {row.key for row in self.front}
        return [settings_of(row.key) | _figures(row) | {"front": row.key in front} for row in self.rows]


def _figures(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.structs.asdict(row)
    found.pop("detail")
    return found | {"nearly_full": row.nearly_full}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
