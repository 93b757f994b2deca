"""Times of equal work, repeated."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sim.timeline.asynchrony import counted


def means(times: list[float], every: int) -> list[float]:
    """Mean of each whole period. `[1, 3, 5, 7]` by 2 is `[2, 6]`."""
    return [statistics.fmean(times[i : i + every]) for i in range(0, len(times) - every + 1, every)]


def together(ends: Sequence[Sequence[float]]) -> float:
    """Seconds in which ranks that do not wait for each other make one step each: their number over their steps per second together, counted as a
    prediction counts them (`sim.timeline.asynchrony`). `ends`: when each rank has ended each step of a pass that all began at 0."""
    until, pace = min(own[-1] for own in ends), 0.0
    for own in ends:
        first, last = counted(own, until)
        pace += (last - first) / (own[last] - own[first])
    return len(ends) / pace
