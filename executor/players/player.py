"""The interface of what plays one rank of a program on a device: `inline` implements it on a CPU, `streams` on a GPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from sim.program import Call, Op


class Beside(Protocol):
    """A CPU thread of the program other than the training thread."""

    thread: str

    def times(self, patience: float) -> list[list[tuple[float, float]]]:
        """Per turn, start and end of each op in the order of the thread's program, in seconds. Raises `RunFailed` if the thread has failed,
        or has not ended within `patience` seconds."""
        ...


class Player(Protocol):
    """An interpreter of one rank's host thread."""

    def run(
        self, ops: list[tuple[Call, Op]], turn: int, watched: bool = True
    ) -> tuple[list[tuple[float, float, float]], list[tuple[int, float]]]:
        """One pass: (start, end, issued) of each op in order, and (step, time) at the end of each step. With `watched` = False
        the times of ops may be left out (an empty list), where taking them would make the step longer."""
        ...

    def serve(self, turns: int) -> Sequence[Beside]:
        """Starts the rank's threads of a parameter server, for `turns` passes."""
        ...


def now() -> float:
    """Seconds on the clock of all spans, which all processes of a host share."""
    return time.perf_counter()
