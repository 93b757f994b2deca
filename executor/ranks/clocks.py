"""One clock for all ranks: the seconds to add to a rank's clock so that it agrees with rank 0's.

The clocks of hosts differ by more than the length of a kernel. Each rank exchanges timestamps with rank 0 `TRIPS` times. In the exchange
with the shortest round trip, the middle of the trip is taken as the time of rank 0's answer (Cristian 1989; NTP, RFC 5905). The error is
at most half that round trip. Ranks of one host share a clock and are not shifted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from executor.ranks.world import World
from sim.trace import Span, shift

TRIPS = 16


def offset(world: World, clock: Callable[[], float]) -> float:
    """Seconds to add to `clock` on this rank. All ranks call it together."""
    found = 0.0
    for rank in range(1, world.size):
        if world.rank == 0:
            _answer(rank, clock)
        elif world.rank == rank:
            found = _ask(clock)
    world.barrier()
    return found


def _answer(rank: int, clock: Callable[[], float]) -> None:
    stamp = torch.zeros(1, dtype=torch.float64)
    for _ in range(TRIPS):
        dist.recv(stamp, rank)
        stamp[0] = clock()
        dist.send(stamp, rank)


def _ask(clock: Callable[[], float]) -> float:
    stamp = torch.zeros(1, dtype=torch.float64)
    trips = []
    for _ in range(TRIPS):
        begin = clock()
        dist.send(stamp, 0)
        dist.recv(stamp, 0)
        end = clock()
        trips.append((end - begin, float(stamp[0]) - (begin + end) / 2))
    return min(trips)[1]


def align(world: World, spans: list[Span], clock: Callable[[], float]) -> None:
    """Shifts this rank's spans to rank 0's clock, if the ranks are on more than one host. All ranks call it together."""
    if not world.one_host:
        shift(spans, offset(world, clock))
