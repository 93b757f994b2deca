"""gloo's collectives on CPU hosts: from a table that `probe` measured, or an assumed alpha-beta model.

The cost of a collective is the time that it adds to ranks that have computed since the last one, and so do not arrive together. One that follows
another at once costs less, and is measured separately (`again`); one after much more work costs more (`LONG`).

Between measured sizes time is linear in bytes (piecewise), below the smallest it is the smallest's, above the largest it
grows with the largest's rate. Other rank counts scale as a ring does: 2(n-1)/n of the bytes for all_reduce, (n-1)/n for
all_gather and reduce_scatter, and n-1 steps of latency (Thakur, Rabenseifner and Gropp 2005); a measured broadcast as gloo's binomial tree,
whose rounds each pass the whole array on. Where nothing is measured, what goes whole from one rank to others, or to one from others, takes
as long as the array takes through one pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from sim.cost.between import Curve
from sim.cost.calibration import Sample
from sim.cost.collective.group import GroupShape
from sim.cost.collective.rates import inter_bandwidth
from sim.cost.price import Cost

ALPHA = 60e-6
"""Seconds of one gloo step over loopback TCP: two context switches and a socket round trip (assumed)."""
BETA = 2.5e9
"""Bytes per second of one pair over loopback TCP with gloo's copies (assumed)."""
LONG = 10
"""Factor on the work before each timed collective, with which `probe` times a few more."""
_TWICE = {"all_reduce": 2.0}
_WHOLE = ("send", "recv", "broadcast", "reduce")
_NEAR = {"send": "broadcast", "recv": "broadcast", "reduce": "all_reduce", "barrier": "all_reduce", "all_to_all": "all_gather"}
"""What stands in for a collective that was not measured."""


def gloo_cost(
    name: str, size: int, ranks: int, table: Sequence[Sample], again: Sequence[Sample] = (), after: float = 0.0, wander: float = 0.0
) -> Cost:
    """Seconds of one collective of `size` bytes (the whole array) over `ranks` processes of one host.

    `table`: after `after` seconds of work of each rank, `again`: after none (`Cost.drift`); `wander`: `Cost.wander`. `uses` names the pseudo-resource `cores`: how
    many cores all members together keep busy while it runs.
    """
    if ranks < 2 and name not in ("send", "recv"):
        return Cost(0.0, "measured")
    points = _points(name, ranks, table) or _points(_NEAR.get(name, ""), ranks, table)
    if points:
        seconds, cpu = _read(points, size)
        share = min(1.0, cpu / seconds) if seconds > 0 else 0.0
        close = _points(name, ranks, again)  # its own alone: a message has none, as it always comes after work
        drift = max(0.0, 1.0 - _read(close, size)[0] / seconds) if close and after > 0 and seconds > 0 else 0.0
        return Cost(
            seconds, "measured", uses=(("cores", ranks * share),) if share > 0 else (), drift=drift, drift_after=after, wander=wander
        )
    seconds = (ranks - 1) * _TWICE.get(name, 1.0) * ALPHA + _moved(name, size, ranks) / BETA
    return Cost(seconds, "assumed", uses=(("cores", ranks * 0.5),))


def wandering(later: float, after: float) -> float:
    """`Cost.wander` (s / sqrt(s)) for a collective that costs `later` seconds more after `LONG` x `after` seconds of work than after `after` seconds.
    0 where `after` is 0."""
    return later / (math.sqrt(LONG * after) - math.sqrt(after)) if after > 0 else 0.0


def _moved(name: str, size: int, ranks: int) -> float:
    """Bytes that a rank sends to its neighbour."""
    return size * (1.0 if name in _WHOLE else (ranks - 1) / ranks * _TWICE.get(name, 1.0))


def over_hosts(cost: Cost, name: str, size: int, shape: GroupShape, rates: Mapping[str, float]) -> Cost:
    """`cost`, which is of one host, for ranks on several: no sooner than the wire lets them. `rates`: bytes per second of each link.

    In a ring a host's NICs send what one rank sends to its neighbour, in an all_to_all what all its ranks send to those of other hosts; each
    hop between hosts waits for its cables (assumed: copies and the wire go on at the same time).
    """
    far = shape.local * (shape.ranks - shape.local) / shape.ranks
    sent = size * far if name == "all_to_all" else _moved(name, size, shape.ranks)
    carry = sent / inter_bandwidth(shape)
    wire = carry + (shape.nodes - 1) * _TWICE.get(name, 1.0) * shape.network_latency
    seconds = max(cost.seconds, wire)
    full = rates[shape.inter_links[0]] * shape.crossing
    links = tuple((link, min(full, rates[link]) * carry / seconds) for link in shape.inter_links) if carry else ()
    if seconds == cost.seconds:
        return replace(cost, uses=(*cost.uses, *links))
    cores = tuple((core, amount * cost.seconds / seconds) for core, amount in cost.uses)
    return replace(cost, seconds=seconds, source="assumed", drift=0.0, uses=(*links, *cores))


def _points(name: str, ranks: int, table: Sequence[Sample]) -> list[tuple[int, float, float]]:
    """(bytes, seconds, processor seconds), by size; from another rank count by the ring's scaling: what the least bytes take is its steps."""
    rows = [s for s in table if s.name == name]
    counts = sorted({s.shape[0] for s in rows}, key=lambda n: abs(n - ranks))
    if not counts:
        return []
    near = counts[0]
    found = _rising(sorted((s.shape[1], s.median, s.cpu) for s in rows if s.shape[0] == near))
    if near in (1, ranks):
        return found
    steps = _rounds(name, ranks) / _rounds(name, near)
    sent = steps if name == "broadcast" else steps * near / ranks
    _, start, busy = found[0]
    return [(size, start * steps + (all_ - start) * sent, busy * steps + (cpu - busy) * sent) for size, all_, cpu in found]


def _rounds(name: str, ranks: int) -> int:
    """Number of steps one after the other: of a ring once round, or for broadcast of a binomial tree."""
    return (ranks - 1).bit_length() if name == "broadcast" else ranks - 1


def _rising(points: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """More bytes take no less time: neighbours of which the larger was measured faster have the mean of both, and so on (isotonic regression,
    by pooling adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for _, seconds, cpu in points:
        pool = (seconds, cpu, 1)
        while pools and pools[-1][0] > pool[0]:
            pool = _pooled(pools.pop(), pool)
        pools.append(pool)
    level = [(seconds, cpu) for seconds, cpu, count in pools for _ in range(count)]
    return [(size, *times) for (size, _, _), times in zip(points, level, strict=True)]


def _pooled(one: tuple[float, float, int], other: tuple[float, float, int]) -> tuple[float, float, int]:
    count = one[2] + other[2]
    return (one[0] * one[2] + other[0] * other[2]) / count, (one[1] * one[2] + other[1] * other[2]) / count, count


def _read(points: list[tuple[int, float, float]], size: int) -> tuple[float, float]:
    """(seconds, CPU seconds) of `size` bytes, interpolated between `points`."""
    seconds, cpu = (Curve((point[0], point[at]) for point in points).at(size)[0] for at in (1, 2))
    return seconds, cpu
