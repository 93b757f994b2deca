"""Which plans of a sweep matter: those that no other of the same task beats in time, memory and cost at once.

Plans of a shallower model or of shorter sequences train something else: that a sample takes them less time puts no other plan aside.
"""

from __future__ import annotations

import json

import msgspec

from sim.planning.sweeps.judge import Depth
from sim.planning.sweeps.store import Row

CLOSE = 1.01
"""Plans within this factor of the best are simulated whole before one is called the best. What was simulated in short is hardly ever
further off, but for experts over nodes (up to 6 % too fast); where it is, what it had put aside comes back (`sweep`)."""
_TRAINED = ("model.", "seq_len=", "task=")
_FIRST = 5
"""Plans of which a report shows where their steps go."""


def _figures(row: Row) -> tuple[float, float, float]:
    return row.effort, float(row.memory or 0), row.cost or 0.0


def trained(row: Row) -> tuple[str, ...]:
    """What of a plan's name says what is trained rather than how: fields of the model, the sequence length, the task."""
    return tuple(word for word in row.key.split() if word.startswith(_TRAINED))


def beaten(row: Row, front: list[Row]) -> bool:
    """One of the front that trains the same is no worse in time per sample and GPU, memory and cost."""
    mine = _figures(row)
    return any(all(a <= b for a, b in zip(_figures(other), mine, strict=True)) and trained(other) == trained(row) for other in front)


def pareto(rows: list[Row]) -> list[Row]:
    """Rows that no other that trains the same beats in time per sample and GPU, memory and cost at once."""
    front: list[Row] = []
    for row in sorted(rows, key=_figures):
        if not beaten(row, front):
            front.append(row)
    return front


def cautious(row: Row) -> Row:
    """Hardly slower than this is the plan when simulated whole."""
    return row if row.whole else msgspec.structs.replace(row, rate=(row.rate or 0.0) / CLOSE)


def open_questions(done: list[Row]) -> dict[str, Depth]:
    """How plans are to be simulated once more, by name: the first few are split by class, which is a whole simulation too; the front and
    the best must rest on whole simulations alone."""
    split = {row.key for row in done if json.loads(row.detail).get("breakdown")}
    ranked = sorted(done, key=lambda row: row.effort)
    found: dict[str, Depth] = {row.key: "split" for row in ranked[:_FIRST] if row.key not in split}
    vital = [*pareto(done), *(row for row in ranked if row.effort <= CLOSE * ranked[0].effort)]
    return found | {row.key: "whole" for row in vital if row.key not in found and not row.whole}
