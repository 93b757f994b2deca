"""Times of equal work, repeated."""

from __future__ import annotations

import statistics


def means(times: list[float], every: int) -> list[float]:
    """Mean of each whole period. `[1, 3, 5, 7]` by 2 is `[2, 6]`."""
    return [statistics.fmean(times[i : i + every]) for i in range(0, len(times) - every + 1, every)]
