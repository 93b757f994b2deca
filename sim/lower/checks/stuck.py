"""Shows where a program is stuck, as a grid of text: for each thread and lane the op at which it waits, and what this op is."""

from __future__ import annotations

from sim.lower.checks.inflight import Item
from sim.program import MESSAGE

_SHOWN = 40
"""Rows of the grid that a message shows."""


def row(rank: int, lane: str, item: Item, behind: int | None = None) -> tuple[str, str, str, str]:
    """One line of the grid. `behind`: how many ops a lane has behind the one at which it waits; None for a thread."""
    after = "" if behind is None else f", {behind} ops behind it"
    return f"r{rank}", lane, f"{item.call.at}/{item.op.id}", _which(item) + after


def _which(item: Item) -> str:
    op = item.op
    if op.kind in MESSAGE:
        return f"{op.kind} {item.turn} in {op.group}, peer {op.peer:+d}"
    if op.kind == "collective":
        return f"{op.name} {item.turn} in {op.group}"
    number = f" number {item.call.index + op.shift}" if op.shift is not None else ""
    return f"{op.kind} for event {op.event!r}{number}" if op.event else op.kind


def grid(rows: list[tuple[str, str, str, str]]) -> str:
    """The first `_SHOWN` rows as text in columns, with headings."""
    heads = ("rank", "lane", "stuck at", "which is")
    table = [heads, *rows[:_SHOWN]]
    widths = [max(len(line[column]) for line in table) for column in range(3)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]) for line in table)
