"""What an op costs, and on what the figure rests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, get_args

import msgspec

from sim.mesh import Mesh, peer_of
from sim.program import Op

Source = Literal["measured", "fitted", "assumed"]
_SURER: tuple[Source, ...] = get_args(Source)


def weakest(sources: Iterable[Source]) -> Source:
    """What a sum of costs rests on: the least sure of them; of none, measured."""
    return max(sources, key=_SURER.index, default="measured")


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Time of one op on an otherwise idle machine, and what it takes from others while it runs."""

    seconds: float
    """From the moment when it may start to its end, alone."""
    source: Source = "assumed"
    latency: float = 0.0
    """The first part of `seconds`: shares nothing and is not stretched by contention."""
    uses: tuple[tuple[str, float], ...] = ()
    """(resource, amount per second at full speed). When the sum over running ops passes a resource's capacity,
    its users slow down, max-min fairly in the amount of the resource that each names first (of which one takes `share`)."""
    host: float = 0.0
    """Seconds for which the issuing thread is busy (launch, dispatch, Python) before it goes on."""
    ready: float = 0.0
    """With several kernels in one op: the op cannot end earlier than issue + `ready` (max-plus: the k-th kernel
    waits for its own launch). 0: no such bound."""
    slowed: float = 0.0
    """Seconds while a collective runs beside all of it, where that is known by itself; 0: the rank's slowdown tells."""
    share: float = 0.0
    """Where this stands for several equal ops on as many ranks, what one of them takes of the resource named first: they share as so many,
    not as one. 0: the op stands for itself."""
    payload: float = 1.0
    """Data for each unit of `uses`: flags and headers fill a link as data does."""
    elsewhere: tuple[tuple[str, float], ...] = ()
    """(link, bytes of data) that it moves elsewhere than over its `uses`: where links are drawn, not for who waits for whom."""
    exposed: float = 0.0
    """Where several ops are one: of `seconds`, those in which it only communicates."""
    late: float = 0.0
    """Where several ops are one that the issuing thread waits for: of `seconds`, those in which none has been launched."""
    drift: float = 0.0
    """Share of a meeting's `seconds` that ranks lose because they have drifted apart: all of it where they have worked for `drift_after` seconds or
    longer since they met, in proportion where less."""
    drift_after: float = 0.0
    wander: float = 0.0
    """Seconds more for each root of a second that they have worked longer than that: each is now faster, now slower, and how far they come apart
    grows as the root of the time (a random walk)."""


def carried(cost: Cost) -> tuple[tuple[str, float], ...]:
    """(directed link, bytes of data) of all that an op moves."""
    busy = cost.payload * max(0.0, cost.seconds - cost.latency)
    return (*((link, amount * busy) for link, amount in cost.uses if ">" in link), *cost.elsewhere)


def met(cost: Cost, worked: float) -> Cost:
    """What a meeting costs ranks that have worked for so many seconds since the last."""
    if not cost.drift and not cost.wander:
        return cost
    together = max(0.0, 1.0 - worked / cost.drift_after)
    late = cost.wander * max(0.0, math.sqrt(worked) - math.sqrt(cost.drift_after))  # who is early waits, and takes nothing meanwhile
    seconds = cost.seconds * (1.0 - cost.drift * together) + late
    return msgspec.structs.replace(cost, seconds=seconds, latency=cost.latency + late, drift=0.0, wander=0.0)


class Pricer(Protocol):
    """Costs of a program's ops on a topology."""

    capacity: Mapping[str, float]
    """Resource -> amount per second."""

    def local(self, op: Op, rank: int) -> Cost:
        """compute, host, copy, record, wait, sync: what needs no other rank."""
        ...

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        """One collective over `members` (ranks in group order). `siblings` > 1: so many equal groups run it at the same moment, and it has
        its share of what they share. The engine asks for one alone: what others take meanwhile it counts itself (`sim.engine.pricing`), and once
        for all ops that send as much in the same way, whatever their ids."""
        ...

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """One point-to-point transfer."""
        ...

    def slowdown(self, rank: int) -> float:
        """Factor >= 1 on compute of this rank while a collective runs beside it, which keeps its own speed."""
        ...


class Derived:
    """A pricer that says what another one (`inner`) says, but for what a kind of it says itself."""

    def __init__(self, inner: Pricer) -> None:
        self.inner, self.capacity = inner, inner.capacity

    def local(self, op: Op, rank: int) -> Cost:
        """As `inner`, like all below."""
        return self.inner.local(op, rank)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        return self.inner.collective(op, members, siblings)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return self.inner.message(op, source, target, siblings)

    def slowdown(self, rank: int) -> float:
        return self.inner.slowdown(rank)


def transfer_cost(pricer: Pricer, mesh: Mesh, op: Op, rank: int, siblings: int = 1) -> Cost:
    """What a copy, a collective or a message of `rank` costs; `siblings` as of `Pricer.collective`."""
    if op.kind == "copy":
        return pricer.local(op, rank)
    members = mesh.group(op.group, rank)
    if op.kind == "collective":
        return pricer.collective(op, members, siblings)
    peer = peer_of(members, rank, op.peer)
    return pricer.message(op, rank, peer, siblings) if op.kind == "send" else pricer.message(op, peer, rank, siblings)
