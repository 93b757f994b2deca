"""What the loader processes of each job have of the disks, stores and cores that those of other jobs use, too."""

from __future__ import annotations

from collections.abc import Sequence

from sim.engine.machine import loaded
from sim.planning.disturbed.alike import Placed

_EQUAL = 1e-9
"""Rates no further apart are equal."""


def shares_of(placed_: Sequence[Placed], steps_alone: Sequence[float]) -> list[dict[str, float]]:
    """For each job, its loader processes' shares of what those of all jobs together would fill: max-min fair.

    `steps_alone`: seconds of the jobs' steps where each is alone; none: nothing is shared.
    """
    if not steps_alone:
        return [{} for _ in placed_]
    each = [loaded(one.program, one.pricer, step) for one, step in zip(placed_, steps_alone, strict=True)]
    found: list[dict[str, float]] = [{} for _ in placed_]
    for name in {name for mine in each for name in mine}:
        left = most = placed_[0].pricer.capacity[name]
        asking = sorted((mine[name].rate / mine[name].processes, at) for at, mine in enumerate(each) if name in mine)
        waiting = sum(each[at][name].processes for _, at in asking)
        for _, at in asking:
            rate, processes = each[at][name]
            got = min(rate, left * processes / waiting)
            if got < rate * (1 - _EQUAL):
                found[at][name] = got / most
            left, waiting = left - got, waiting - processes
    return found
