"""How many rings the NVLinks (xGMI) of a machine without a switch hold: NCCL's ring search, on directed links.

Each ring visits every member once and takes one link of each hop, in its direction. DGX-1 V100, measured by vTrain at 1 GiB: 2, 3, 4, 6, 7
and 8 GPUs reach 22.6, 45, 85, 46, 87 and 135 GB/s, that is 1, 2, 4, 2, 4 and 6 rings of 22 GB/s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from topologies.graph import Topology
from topologies.hardware import Gpu

_EQUAL = 1 + 1e-9
_MOST = 18
"""NVLinks of a way at most: a GPU has no more (H100), and rings are laid one by one."""
Hops = dict[tuple[int, int], tuple[str, ...]]
"""(member, next member) -> directed links of the path between them."""


def ring_rate(topology: Topology, members: Sequence[int]) -> float:
    """Bytes/s of all rings together through `members`, in one direction; 0 where the links do not close a single one.

    Direct links first; where they close no ring, ways through a third GPU (NVB) too, which take links of both hops. A ring takes one NVLink's rate
    of each of its ways; where ways are slower or faster than their NVLinks are made for, as much as one of these then carries.
    """
    made = _unit(topology, members)
    for kinds in (("NVL",), ("NVL", "NVB")):
        hops = {(a, b): path.links for a in members for b in members if a != b and (path := topology.path(a, b)).kind in kinds}
        rates = {link: topology.rates[link] for way in hops.values() for link in way}
        if {a for a, _ in hops} != set(members):  # one that no ring can pass would be found by trying all orders of the others
            continue
        orders = [[*members[at:], *members[:at]] for at in range(len(members))]
        found = 0.0
        for unit in {rate / links for rate in rates.values() for links in _links(rate / made)}:
            free = {link: int(rate / unit * _EQUAL) for link, rate in rates.items()}
            found = max(found, unit * max(_packed(order, hops, dict(free)) for order in orders))
        if found:
            return found
    return 0.0


def _links(share: float) -> set[int]:
    """Numbers of NVLinks (the next lower and higher integer, 1 to `_MOST`) for a path that carries `share` times the rate of one NVLink."""
    return {min(max(1, links), _MOST) for links in (int(share * _EQUAL), math.ceil(share / _EQUAL))}


def _packed(members: list[int], hops: Hops, free: dict[str, int]) -> int:
    """Rings found one after the other, each with the same ring in the other direction where that is free; `free` is used up."""
    found = 0
    while (ring := _ring(members, hops, free)) is not None:
        before = found
        for turn in (ring, ring[::-1]):
            links = [link for hop in zip(turn, [*turn[1:], turn[0]], strict=True) for link in hops.get(hop, ("",))]
            if all(free.get(link, 0) >= links.count(link) for link in links):
                for link in links:
                    free[link] -= 1
                found += 1
        if found == before:  # ways through third GPUs that share a link
            break
    return found


def _unit(topology: Topology, members: Sequence[int]) -> float:
    """Bytes/s of one link: what the GPU's links carry together over their number, or the slowest way where that is not told."""
    device = topology.device(members[0])
    if isinstance(device, Gpu) and device.nvlink and device.nvlink_links:
        return device.nvlink / device.nvlink_links
    return min(topology.path(a, b).rate for a in members for b in members if a != b)


def _ring(members: list[int], hops: Hops, free: dict[str, int]) -> list[int] | None:
    """One ring on links that are free, by depth-first search that tries the ways with most links left first; None where there is none."""

    def left(a: int, b: int) -> int:
        return min((free[link] for link in hops[a, b]), default=0) if (a, b) in hops else 0

    def extend(ring: list[int], rest: list[int]) -> list[int] | None:
        if not rest:
            return ring if left(ring[-1], ring[0]) else None
        for b in sorted((b for b in rest if left(ring[-1], b)), key=lambda b: (-left(ring[-1], b), b)):
            found = extend([*ring, b], [one for one in rest if one != b])
            if found is not None:
                return found
        return None

    return extend(members[:1], members[1:])
