"""A schedule that somebody wrote down, rank by rank (`sim.schedule.reading` reads and checks it)."""

from __future__ import annotations

from typing import Literal

import msgspec

from sim.schedule.action import Action

Style = Literal["loop", "v"]


class Written(msgspec.Struct, frozen=True, eq=False):
    """What each rank computes, in order. `written_of` caches its results, so equal texts give the same object and it compares by identity."""

    rows: tuple[tuple[Action, ...], ...]
    columns: tuple[tuple[int, ...], ...]
    """The column of each action's cell in its row, counted from 1; same shape as `rows`."""
    chunks: int
    """Stages on each rank."""
    style: Style
    """How stages lie on ranks, in torch's words (generate_stage_to_rank_mapping)."""
    microbatches: int
    known: str
    """The name in `SCHEDULES` of the schedule with the same orders; "" if there is none."""

    def at(self, rank: int, index: int) -> str:
        """The row and column of a rank's action in the file, as text for an error."""
        return f"row {rank + 1}, column {self.columns[rank][index]}"


Name = str | Written
"""Which schedule: one of `SCHEDULES` by its name, or what somebody wrote."""
