"""Which plans of a sweep matter: those that no other of their kind beats in time, memory and cost at once.

Plans of a shallower model or of shorter sequences train something else: that a sample takes them less time puts no other plan aside. Nor does what
is faster on another machine, or on fewer GPUs: which of these is worth having is what a sweep over them is to show.
"""

from __future__ import annotations

import json
from functools import lru_cache

import msgspec

from sim.planning.sweeps.judge import Depth
from sim.planning.sweeps.space import settings_of
from sim.planning.sweeps.store import Row
from topologies.edits import is_edit

CLOSE = 1.01
"""Plans within this factor of the best of their kind are simulated whole before one is called the best. What was simulated in short is hardly ever
further off, but for experts over nodes and short steps of ZeRO-3 in a pipeline (up to 6 % too fast); where it is, what it had put aside comes
back (`sweep`)."""
_TRAINED = ("model", "seq_len", "task", "on")
_FIRST = 5
"""Plans of which a report shows where their steps go."""


def _figures(row: Row) -> tuple[float, float, float]:
    return row.effort, float(row.memory or 0), row.cost or 0.0


def kind(row: Row) -> tuple[object, ...]:
    """What plans have in common that are compared: what is trained (fields of the model, the sequence length, the task), on how many GPUs of which
    machine."""
    return (row.gpus, *_fixed(row.key))


@lru_cache(maxsize=1 << 16)
def _fixed(key: str) -> tuple[str, ...]:
    return tuple(
        f"{name}={value}" for name, value in settings_of(key).items() if name in _TRAINED or name.startswith("model.") or is_edit(name)
    )


def beaten(row: Row, front: list[Row]) -> bool:
    """One of the front of the same kind is no worse in time per sample and GPU, memory and cost."""
    mine = _figures(row)
    return any(all(a <= b for a, b in zip(_figures(other), mine, strict=True)) and kind(other) == kind(row) for other in front)


def pareto(rows: list[Row]) -> list[Row]:
    """Rows that no other of their kind beats in time per sample and GPU, memory and cost at once."""
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
    ranked = sorted(done, key=lambda row: row.worth)
    found: dict[str, Depth] = {row.key: "split" for row in ranked[:_FIRST] if row.key not in split}
    best: dict[tuple[object, ...], float] = {}
    for row in done:
        best[kind(row)] = min(row.effort, best.get(kind(row), row.effort))
    vital = [*pareto(done), *(row for row in ranked if row.effort <= CLOSE * best[kind(row)])]
    return found | {row.key: "whole" for row in vital if row.key not in found and not row.whole}
