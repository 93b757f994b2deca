"""Finds the range in which a kernel was launched, and the time of the launch.

Profilers connect a kernel to the call that launched it by a correlation number (unique in its process). A range named `op:fwd/L3.attn.qkv`
that was open on
that thread at that moment gives the kernel its op (`executor.marks` opens such ranges).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from typing import NamedTuple

PREFIX = "op:"
_NESTED = 64
"""Largest number of ranges that are searched, from the latest backwards."""


class Range(NamedTuple):
    """A range of one thread, open from `start` to `end`, in the trace's own unit of time."""

    start: float
    end: float
    op: str


class Marks:
    """Ranges by thread, and launches by correlation."""

    def __init__(self, ranges: Iterable[tuple[Hashable, Range]], launches: Iterable[tuple[Hashable, Hashable, float]]) -> None:
        self._ranges: dict[Hashable, list[Range]] = {}
        for thread, one in ranges:
            self._ranges.setdefault(thread, []).append(one)
        for line in self._ranges.values():
            line.sort()
        self._starts = {thread: [one.start for one in line] for thread, line in self._ranges.items()}
        self._launches = {number: (thread, at) for number, thread, at in launches}

    def launched(self, correlation: Hashable) -> float | None:
        """Time of the launch; None if not known. A host that runs ahead is already in a later step when the device runs the kernel."""
        found = self._launches.get(correlation)
        return found[1] if found is not None else None

    def op(self, correlation: Hashable) -> str:
        """The op of the innermost range around the launch; "" if there is none."""
        found = self._launches.get(correlation) if self._ranges else None
        if found is None:
            return ""
        thread, at = found
        line = self._ranges.get(thread, [])
        last = bisect_right(self._starts.get(thread, []), at)
        return next((one.op for one in reversed(line[max(0, last - _NESTED) : last]) if one.end >= at), "")


def op_of(name: str) -> str:
    """`fwd/L3.attn.qkv` of `op:fwd/L3.attn.qkv`, else ""."""
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""
