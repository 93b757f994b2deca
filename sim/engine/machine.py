"""What ranks of one machine take from it together: cores, disks, buses.

Loader processes need a rule of their own. Three simulated steps are too short to show how many of them slow each other down, so each
is as slow as all of them are in the steady state: a batch takes `max(alone, demand / capacity)` over the machine's resources, where
the demand is that of all loader processes of all its ranks (the bottleneck law of closed queueing networks, Denning and Buzen 1978).
On CPU hosts, where training computes on the same cores, loaders and training share them moment by moment instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from sim.cost.price import Cost, Pricer
from sim.program import Op
from sim.work import HostWork

LOADER = "loader"
"""Threads of loader processes begin with it."""


def neighbours(pricer: Pricer, op: Op, cost: Cost, rank: int, world: int) -> Iterator[tuple[int, Cost]]:
    """`rank`, where the op has this `cost`, and the ranks of its machine, each with what it costs there.

    Ranks of one machine are numbered in a row: the first whose op takes from another machine ends the search.
    """
    yield rank, cost
    here = set(_machines(cost))
    for step in (1, -1):
        other = rank + step
        while 0 <= other < world:
            there = pricer.local(op, other)
            if here.isdisjoint(_machines(there)):
                break
            yield other, there
            other += step


def _machines(cost: Cost) -> Iterator[str]:
    """Of what it takes: `n3` of `n3.cores` and of `n3/gpu0>n3/sw1`."""
    return (name.replace("/", ".").partition(".")[0] for name, _ in cost.uses)


def together(cost: Cost, taken: Iterable[Cost]) -> Cost:
    """A `cost` with all that is `taken` of the same disks, buses and links where the op runs at the same time for other ranks, too."""
    alone: dict[str, float] = {}
    for name, amount in cost.uses:
        alone[name] = alone.get(name, 0.0) + amount
    amounts = dict.fromkeys(alone, 0.0)
    for one in taken:
        for name, amount in one.uses:
            if name in amounts:
                amounts[name] += amount
    return replace(cost, uses=tuple(amounts.items()), share=next(iter(alone.values())))


def steady(ops: list[tuple[Op, Cost]], pricer: Pricer, rank: int, world: int) -> list[tuple[Op, Cost]]:
    """A batch's ops as slow as the machine's loader processes make each other in the steady state; nothing is left to share."""
    demand: dict[str, float] = {}
    alone = 0.0
    for op, cost in ops:
        alone += cost.seconds
        processes = max((work.processes for work in op.works if isinstance(work, HostWork)), default=1.0)
        for _, there in neighbours(pricer, op, cost, rank, world) if cost.uses else ():
            for name, amount in there.uses:
                demand[name] = demand.get(name, 0.0) + processes * amount * (there.seconds - there.latency)
    needed = max((total / pricer.capacity[name] for name, total in demand.items()), default=0.0)
    slower = max(1.0, needed / alone) if alone > 0 else 1.0
    return [(op, replace(cost, seconds=cost.seconds * slower, latency=0.0, uses=())) if cost.uses else (op, cost) for op, cost in ops]
