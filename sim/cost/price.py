"""The cost of an op, and how certain it is (`Source`)."""

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
    """The source of a sum of costs: that of the least certain one (measured, then fitted, then assumed); "measured" for an empty sum."""
    return max(sources, key=_SURER.index, default="measured")


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Time of one op on an otherwise idle machine, and what it takes from others while it runs."""

    seconds: float
    """From the moment when the op may start to its end, when nothing else runs."""
    source: Source = "assumed"
    latency: float = 0.0
    """The part of `seconds` before any data flows: it uses no shared resource, so contention does not lengthen it."""
    uses: tuple[tuple[str, float], ...] = ()
    """(resource, amount per second at full speed). When the sum over running ops passes a resource's capacity,
    its users slow down, max-min fairly by the amounts that they take of the resource named first (see `share`)."""
    host: float = 0.0
    """Seconds for which the issuing thread is busy (launch, dispatch, Python) before it goes on."""
    ready: float = 0.0
    """With several kernels in one op: the op cannot end earlier than issue + `ready` (max-plus: the k-th kernel
    waits for its own launch). 0: no such bound."""
    slowed: float = 0.0
    """Seconds that the op takes if a collective runs during all of it, where the op knows this itself; 0: `seconds` times `Pricer.slowdown`."""
    share: float = 0.0
    """Where this cost stands for equal ops on several ranks: the amount that one of them takes of the resource named first, so that fair sharing
    counts several users and not one. 0: the cost is of one op."""
    payload: float = 1.0
    """Bytes of data for each byte that `uses` counts on a link: protocol flags and packet headers fill a link, too."""
    elsewhere: tuple[tuple[str, float], ...] = ()
    """(link, bytes of data) that the op moves over links that are not in `uses`. For drawings of traffic only: nobody waits for these."""
    exposed: float = 0.0
    """Where several ops were fused into one: the part of `seconds` in which it only communicates."""
    late: float = 0.0
    """Where several ops that the issuing thread waits for were fused into one: the part of `seconds` in which no kernel had been launched."""
    drift: float = 0.0
    """Share of a collective's `seconds` that is lost because its ranks arrive at different times: all of it where they have computed for `drift_after`
    seconds or longer since they last met, in proportion where less."""
    drift_after: float = 0.0
    """Seconds of work after which ranks have drifted fully apart."""
    wander: float = 0.0
    """Further seconds, in units of seconds / sqrt(second), beyond `drift_after`: ranks are sometimes faster and sometimes slower, and their distance
    grows as the square root of the time (a random walk)."""


def carried(cost: Cost) -> tuple[tuple[str, float], ...]:
    """(directed link, bytes of data) for every link over which the op moves data."""
    busy = cost.payload * max(0.0, cost.seconds - cost.latency)
    return (*((link, amount * busy) for link, amount in cost.uses if ">" in link), *cost.elsewhere)


def met(cost: Cost, worked: float) -> Cost:
    """The cost of a collective or message between ranks that have computed for `worked` seconds since they last met."""
    if not cost.drift and not cost.wander:
        return cost
    together = max(0.0, 1.0 - worked / cost.drift_after)
    late = cost.wander * max(0.0, math.sqrt(worked) - math.sqrt(cost.drift_after))  # early ranks wait, and use no resource meanwhile
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
        """One collective over `members` (ranks in group order). `siblings` > 1: so many equal groups run it at the same moment and share links. The
        engine asks with siblings = 1, as it accounts for the other groups itself (`sim.engine.pricing`), and asks once for all ops of the same
        size, algorithm and group, whatever their ids."""
        ...

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        """One point-to-point transfer from rank `source` to rank `target`; `siblings` as of `collective`."""
        ...

    def slowdown(self, rank: int) -> float:
        """Factor >= 1 on the seconds of this rank's kernels while a collective runs beside them. The collective keeps its own speed."""
        ...


class Derived:
    """A pricer that passes every question on to another one (`inner`); subclasses override what they answer themselves."""

    def __init__(self, inner: Pricer) -> None:
        self.inner, self.capacity = inner, inner.capacity

    def local(self, op: Op, rank: int) -> Cost:
        """What `inner` answers, as the other methods of this class do."""
        return self.inner.local(op, rank)

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        return self.inner.collective(op, members, siblings)

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return self.inner.message(op, source, target, siblings)

    def slowdown(self, rank: int) -> float:
        return self.inner.slowdown(rank)


def transfer_cost(pricer: Pricer, mesh: Mesh, op: Op, rank: int, siblings: int = 1) -> Cost:
    """The cost of the copy, collective, send or receive `op` on `rank`; `siblings` as of `Pricer.collective`."""
    if op.kind == "copy":
        return pricer.local(op, rank)
    members = mesh.group(op.group, rank)
    if op.kind == "collective":
        return pricer.collective(op, members, siblings)
    peer = peer_of(members, rank, op.peer)
    return pricer.message(op, rank, peer, siblings) if op.kind == "send" else pricer.message(op, peer, rank, siblings)
