"""Which cables between nodes a group's messages take, and how much of its NICs' rate they let through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from topologies.graph import Topology
from topologies.path import Path

Nodes = Mapping[int, Sequence[int]]
"""Node -> the group's members there, in group order."""


def nodes_of(topology: Topology, ranks: Iterable[int]) -> dict[int, list[int]]:
    """The ranks of a group on each of its nodes, both in group order."""
    found: dict[int, list[int]] = {}
    for rank in ranks:
        found.setdefault(topology.node(rank), []).append(rank)
    return found


def _channels(topology: Topology, here: Sequence[int], there: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Members of one node and of the next, one pair for each channel: on the same place of both, whose NICs are on one rail, where there are
    such. (NCCL orders the members of a node so that a ring leaves by the NIC by which it came, and comes into the next by the same:
    `NCCL_CROSS_NIC`.)"""
    places = [{topology.local(rank): rank for rank in ranks} for ranks in (here, there)]
    same = places[0].keys() & places[1].keys()
    rest = ([rank for place, rank in ranks.items() if place not in same] for ranks in places)
    yield from ((rank, places[1][place]) for place, rank in places[0].items() if place in same)
    yield from zip(*rest, strict=False)


def ring_cables(topology: Topology, nodes: Nodes) -> tuple[str, ...]:
    """Directed links of the network, NICs' included, that a ring over the nodes takes. Two channels on the same cable name it twice."""
    held = list(nodes.values())
    hops = [pair for here, there in zip(held, [*held[1:], held[0]], strict=True) for pair in _channels(topology, here, there)]
    return tuple(link for a, b in hops for link in topology.path(a, b).links if "net/" in link)


def sampled(topology: Topology, nodes: Nodes) -> list[Path]:
    """Two hops of the ring, of one channel: to the next node, and from the last back to the first, which crosses the spines where there are any."""
    held = list(nodes.values())
    turns = [(held[0], held[1]), (held[-1], held[0])] if len(held) > 1 else []
    return [topology.path(*next(_channels(topology, here, there))) for here, there in turns]


def cables(topology: Topology, nodes: Nodes) -> tuple[str, ...]:
    """Cables that the flow of one NIC takes, the narrowest of the NICs' own first. Of a fabric that passes less up than it takes from below, all
    uplinks that the group's channels take, too."""
    found = [link for path in sampled(topology, nodes) for link in path.links if "net/" in link]
    own = sorted((link for link in dict.fromkeys(found) if "/nic" in link), key=lambda link: topology.rates[link])
    above = [link for link in (ring_cables(topology, nodes) if topology.narrow else dict.fromkeys(found)) if "/nic" not in link]
    return (*own[:1], *above, *own[1:])


def crossing(topology: Topology, found: Sequence[str], each: float) -> float:
    """Share of the NICs' rate that rings and trees keep on the narrowest of the `cables` that were found; `each`: bytes/s that a member brings
    to it."""
    own = min((topology.rates[link] for link in found if "/nic" in link), default=0.0)
    above = [topology.rates[link] / flows for link, flows in Counter(found).items() if "/nic" not in link]
    return min(1.0, min(above) / min(own, each)) if own and above else 1.0


def spread(topology: Topology, nodes: Nodes, inter: float) -> float:
    """Share of the NICs' rate that the fabric carries while every node sends to every other, and the nodes beside them do the same: what leaves a
    leaf shares its uplinks, and what leaves a block of three tiers those of its spines."""
    fabric, links = topology.cluster.fabric, [link for path in sampled(topology, nodes)[1:] for link in path.links]
    share = 1.0
    tiers = ((fabric.pod, "net/leaf", ">net/spine", fabric.rails), (fabric.block_nodes, "net/spine", ">net/core", 1))
    for below, start, above, each in tiers:
        uplinks = [topology.rates[link] for link in links if link.startswith(start) and above in link]
        beside = max(Counter(node // below for node in nodes).values()) if below else len(nodes)
        leaving = (len(nodes) - beside) / (len(nodes) - 1)
        if uplinks and leaving and inter:
            share = min(share, min(uplinks) * fabric.spine_count * each / (below * inter * leaving))
    return share
