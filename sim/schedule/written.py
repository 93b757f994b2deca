"""A schedule that somebody wrote down, rank by rank (`sim.schedule.reading` reads and checks it)."""

from __future__ import annotations

from typing import Literal

import msgspec

from sim.schedule.action import Action

Style = Literal["loop", "v"]


class Written(msgspec.Struct, frozen=True, eq=False):
    """What each rank computes, in order. Equal texts are read once (`written_of`), so that one object stands for them."""

    rows: tuple[tuple[Action, ...], ...]
    columns: tuple[tuple[int, ...], ...]
    """Of each action, from 1: where its cell is in its row."""
    chunks: int
    """Stages on each rank."""
    style: Style
    """How stages lie on ranks, in torch's words (generate_stage_to_rank_mapping)."""
    microbatches: int
    known: str
    """The schedule of `SCHEDULES` that does the same; "" for an order that has no name."""

    def at(self, rank: int, index: int) -> str:
        """Where a rank's action is written."""
        return f"row {rank + 1}, column {self.columns[rank][index]}"


Name = str | Written
"""Which schedule: one of `SCHEDULES` by its name, or what somebody wrote."""
