"""Times of equal work, repeated."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate


def means(times: list[float], every: int) -> list[float]:
    """Mean of each whole period. `[1, 3, 5, 7]` by 2 is `[2, 6]`."""
    return [statistics.fmean(times[i : i + every]) for i in range(0, len(times) - every + 1, every)]


def together(by_rank: Sequence[list[float]], every: int) -> list[float]:
    """Seconds in which ranks that do not wait for each other make one step each: their number over their steps per second together, as a
    prediction counts them (`sim.timeline.asynchrony`). By periods of `every` steps, while all still run."""
    until = min(sum(times) for times in by_rank)
    counted = [means([t for t, end in zip(times, accumulate(times), strict=True) if end <= until * (1 + 1e-9)], every) for times in by_rank]
    counted = [periods or [statistics.fmean(times)] for periods, times in zip(counted, by_rank, strict=True)]
    return [len(by_rank) / sum(1 / t for t in periods) for periods in zip(*counted, strict=False)]
