"""Which step something is of, by ranges that mark steps: `ProfilerStep#3`, `step 3`, `iteration 3`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from sim.imported.names import STEP


class Mark(NamedTuple):
    """A range that marks a step, in the trace's own unit."""

    start: float
    end: float
    number: int
    word: str
    """What stands before its number."""

    @classmethod
    def of(cls, name: str, start: float, end: float) -> Mark | None:
        """None for a range that marks no step."""
        found = STEP.match(name)
        return cls(start, end, int(found.group(1)), name[: found.start(1)].lower()) if found else None


class Steps:
    """Steps of one process by when they begin. What comes before the first belongs to step 0."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        line = sorted(_outer(list(marks)))
        numbers = [mark.number for mark in line]
        self.renumbered = any(after < before for before, after in pairwise(numbers))  # a loop in a loop: each epoch begins at 0 again
        if self.renumbered:
            numbers = list(range(len(line)))
        self._starts, self._numbers = [mark.start for mark in line], numbers
        self._end = _end(line)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def of(self, at: float) -> int:
        """The step that had begun last."""
        found = bisect_right(self._starts, at) - 1
        return self._numbers[found] if found >= 0 else 0

    def after(self, at: float) -> bool:
        """Whether the last step is over by then, as far as that is told."""
        return at > self._end


def _outer(marks: list[Mark]) -> list[Mark]:
    """Those of one word, where a loop is marked twice (by the profiler and by itself): of the word that marks most of the time."""
    whole: dict[str, float] = {}
    for mark in marks:
        whole[mark.word] = whole.get(mark.word, 0.0) + mark.end - mark.start
    word = max(whole, key=lambda word: whole[word], default="")
    return [mark for mark in marks if mark.word == word]


def _end(line: list[Mark]) -> float:
    """Until when the last step lasts: as long as its range, and as what came at most between two of them. Infinite where ranges mark beginnings
    alone, or there is but one."""
    apart = [after.start - before.end for before, after in pairwise(line)]
    if not apart or sum(mark.end - mark.start for mark in line[:-1]) < 0.5 * (line[-1].start - line[0].start):
        return float("inf")
    return line[-1].end + max(0.0, *apart)
