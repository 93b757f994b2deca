"""Times of equal work, repeated."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sim.timeline.asynchrony import counted


def means(times: list[float], every: int) -> list[float]:
    """Mean of each whole period of `every` times. `[1, 3, 5, 7]` by 2 gives `[2, 6]`."""
    return [statistics.fmean(times[i : i + every]) for i in range(0, len(times) - every + 1, every)]


def together(ends: Sequence[Sequence[float]]) -> float:
    """Seconds in which ranks that do not wait for each other make one step each: the number of ranks over the sum of their steps per
    second, counted as in a prediction (`sim.timeline.asynchrony`). `ends`: by rank, the seconds at which each step of a pass ended, from
    the begin of the pass, which is the same for all ranks."""
    until, pace = min(own[-1] for own in ends), 0.0
    for own in ends:
        first, last = counted(own, until)
        pace += (last - first) / (own[last] - own[first])
    return len(ends) / pace
