"""What the loader processes of each job have of the disks, stores and cores that those of other jobs use, too, and what they leave to training threads
that read for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.engine.machine import loaded, loads_ahead
from sim.planning.disturbed.alike import Placed

_EQUAL = 1e-9
"""Rates no further apart are equal."""


class Shares(NamedTuple):
    """Who gets what of the resources from which jobs read."""

    each: list[dict[str, float]]
    """Of each job, its loader processes' shares of what all jobs together would fill."""
    left: dict[str, float]
    """Per second, what the threads of all jobs that read for themselves have together beside other jobs' loader processes."""


def shares_of(placed_: Sequence[Placed], steps_alone: Sequence[float]) -> Shares:
    """Shares by max-min fairness, each process and thread like any other.

    Loader processes read all the time, in their steady state. A thread reads now and then, but then as fast as it gets it: as fast as one of them at
    least. `steps_alone`: seconds of the jobs' steps where each is alone; none: nothing is shared. Nor is it on CPU hosts, where all share moment by
    moment.
    """
    found = Shares([{} for _ in placed_], {})
    if not steps_alone or placed_[0].program.device == "cpu":
        return found
    each = [loaded(one.program, one.pricer, step) for one, step in zip(placed_, steps_alone, strict=True)]
    ahead = [loads_ahead(one.program) for one in placed_]
    for name in {name for mine in each for name in mine}:
        left = most = placed_[0].pricer.capacity[name]
        asking = sorted((mine[name].rate / mine[name].processes, at) for at, mine in enumerate(each) if name in mine)
        waiting = sum(each[at][name].processes for _, at in asking)
        itself = sum(each[at][name].processes for _, at in asking if not ahead[at])
        fair, free = most * itself / waiting, most
        for _, at in asking:
            rate, processes = each[at][name]
            got = min(rate, left * processes / waiting)
            if got < rate * (1 - _EQUAL):
                found.each[at][name] = got / most
            left, waiting = left - got, waiting - processes
            free -= got if ahead[at] else 0.0
        if itself and free < most:
            found.left[name] = max(free, fair)
    return found
