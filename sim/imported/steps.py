"""Finds the step of an event from ranges that mark steps: `ProfilerStep#3`, `step 3`, `train_step 3`, or `train_step` again and again."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from sim.imported.names import PART, STEP


class Mark(NamedTuple):
    """A range that marks a step; times are in the trace's own unit."""

    start: float
    end: float
    number: int
    """-1 where its name has none."""
    word: str
    """The text before its number, in lower case; without a number the whole name."""

    @classmethod
    def of(cls, name: str, start: float, end: float) -> Mark | None:
        """The mark of a range with this name; None where the name does not mark a step."""
        found = _named(name)
        return cls(start, end, *found) if found else None


@lru_cache(1 << 16)  # the same operators' names come thousands of times
def _named(name: str) -> tuple[int, str] | None:
    """Number and word; numbers within the word (`epoch 3 step 7`) tell no loops apart."""
    found = STEP.search(name)
    if found is None:
        return None
    if found.group(1):
        return int(found.group(1)), re.sub(r"\d+", "0", name[: found.start(1)].lower())
    return None if PART.search(name) else (-1, name.lower())


class Steps:
    """The steps of one process by their begin. Events before the first step belong to step 0."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        line = _outer(marks)
        numbers = [mark.number for mark in line]
        again = any(after < before for before, after in pairwise(numbers))  # a loop in a loop: each epoch begins at 0 again
        self.renumbered = again or -1 in numbers
        if self.renumbered:
            numbers = list(range(len(line)))
        self._starts, self._numbers = [mark.start for mark in line], numbers
        self._end = _end(line)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def of(self, at: float) -> int:
        """The step that began last before `at`; 0 if there is none."""
        found = bisect_right(self._starts, at) - 1
        return self._numbers[found] if found >= 0 else 0

    def after(self, at: float) -> bool:
        """True if the last step has ended before `at`."""
        return at > self._end


def _outer(marks: Iterable[Mark]) -> list[Mark]:
    """Those of one word in order, where a loop is marked twice (by the profiler and by itself): of the word that marks most of the time."""
    words: dict[str, list[Mark]] = {}
    for mark in sorted(marks):
        words.setdefault(mark.word, []).append(mark)
    lines = [line for line in words.values() if line[0].number >= 0 or _recurs(line)]
    return max(lines, key=_whole, default=[])


def _whole(line: list[Mark]) -> float:
    return sum(mark.end - mark.start for mark in line)


def _recurs(line: list[Mark]) -> bool:
    """Whether ranges of one name without a number come back to back, so that each of them is a turn of the loop."""
    turns = len(line) > 1 and all(after.start >= before.end for before, after in pairwise(line))
    return turns and _whole(line) >= 0.5 * (line[-1].end - line[0].start)


def _end(line: list[Mark]) -> float:
    """Until when the last step lasts: as long as its range, and as what came at most between two of them. Infinite where ranges mark beginnings
    alone, or there is but one."""
    apart = [after.start - before.end for before, after in pairwise(line)]
    if not apart or _whole(line[:-1]) < 0.5 * (line[-1].start - line[0].start):
        return float("inf")
    return line[-1].end + max(0.0, *apart)
