"""A queue of timed actions. It replaces SimPy's event heap where no SimPy processes are needed.

Both engines tell `Sharing` the time through a `Clock`: the one that makes a trace by SimPy's environment (`sim.engine.environment`), the one
that only wants to know when steps end by an `Agenda`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any, Protocol

Action = Callable[..., None]


class Clock(Protocol):
    """Virtual time."""

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        ...

    def after(self, seconds: float, action: Action, *words: Any) -> None:
        """Calls `action(*words)` after `seconds` of virtual time."""
        ...


class Agenda:
    """A heap of actions, run in order of time. Actions of the same moment run in the order in which they were added, as in SimPy."""

    __slots__ = ("_heap", "_number", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._number = 0

    def after(self, seconds: float, action: Action, *words: Any) -> None:
        """Calls `action(*words)` after `seconds` of virtual time."""
        self._number += 1
        heappush(self._heap, (self.now + seconds, self._number, action, words))

    def at(self, time: float, action: Action, *words: Any) -> None:
        """Calls `action(*words)` at `time` (seconds). If `time` is not later than now, calls it at once."""
        if time <= self.now:
            action(*words)
            return
        self._number += 1
        heappush(self._heap, (time, self._number, action, words))

    def run(self) -> None:
        """Runs until nothing is left to do."""
        heap = self._heap
        while heap:
            self.now, _, action, words = heappop(heap)
            action(*words)


@contextmanager
def uncollected() -> Iterator[None]:
    """Switches Python's cyclic garbage collector off: it takes a sixth of a simulation's time, and what a run makes lives to its end."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
