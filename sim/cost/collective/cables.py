"""The cables between nodes that a group's messages take, and the share of its NICs' rate that these carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from topologies.graph import Topology

Nodes = Mapping[int, Sequence[int]]
"""Node -> the group's members there, in group order."""


def nodes_of(topology: Topology, ranks: Iterable[int]) -> dict[int, list[int]]:
    """The ranks of a group on each of its nodes, both in group order."""
    found: dict[int, list[int]] = {}
    for rank in ranks:
        found.setdefault(topology.node(rank), []).append(rank)
    return found


def channels(topology: Topology, here: Sequence[int], there: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Members of one node and of the next, one pair for each channel: on the same place of both, whose NICs are on one rail, where there are
    such. (NCCL orders the members of a node so that a ring leaves by the NIC by which it came, and comes into the next by the same:
    `NCCL_CROSS_NIC`.)"""
    places = [{topology.local(rank): rank for rank in ranks} for ranks in (here, there)]
    same = places[0].keys() & places[1].keys()
    rest = ([rank for place, rank in ranks.items() if place not in same] for ranks in places)
    yield from ((rank, places[1][place]) for place, rank in places[0].items() if place in same)
    yield from zip(*rest, strict=False)


def flows(topology: Topology, here: Sequence[int], there: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Directed links of the network, NICs' own first and last, that each NIC's flow takes from one node to the next. Members that share a NIC, or
    took to another's when their own had failed, fill it together: their channels are one flow."""
    found: list[tuple[str, ...]] = []
    taken: set[str] = set()
    for pair in channels(topology, here, there):
        links = tuple(link for link in topology.path(*pair).links if "net/" in link)
        ends = {*links[:1], *links[-1:]}
        found += [links] if taken.isdisjoint(ends) else []
        taken |= ends
    return tuple(found)


def ring_cables(topology: Topology, nodes: Nodes) -> tuple[str, ...]:
    """Directed links of the network, NICs' included, that a ring over the nodes takes. Two NICs' flows on the same cable name it twice."""
    held = list(nodes.values())
    hops = zip(held, [*held[1:], held[0]], strict=True)
    return tuple(link for here, there in hops for flow in flows(topology, here, there) for link in flow)


def cables(topology: Topology, nodes: Nodes) -> tuple[str, ...]:
    """Cables that the group's flows take from its first node to the next, and from the last back to the first, which crosses the spines where there are
    any: the narrowest of the NICs' own, the switches' that one channel takes, the other NICs'. Of a fabric that passes less up than it takes from below,
    all uplinks that the group's channels take."""
    held = list(nodes.values())
    hops = [flows(topology, *hop) for hop in ((held[0], held[1]), (held[-1], held[0]))] if len(held) > 1 else []
    one = dict.fromkeys(link for hop in hops for link in hop[0])
    every = one | dict.fromkeys(link for hop in hops for flow in hop for link in flow)
    own = sorted((link for link in every if "/nic" in link), key=lambda link: topology.rates[link])
    above = [link for link in (ring_cables(topology, nodes) if topology.narrow else one) if "/nic" not in link]
    return (*own[:1], *above, *own[1:])


def crossing(topology: Topology, found: Sequence[str], each: float) -> float:
    """Share of the NICs' rate that rings and trees keep on the narrowest of the `cables` that were found; `each`: bytes/s that the members bring
    to a NIC."""
    own = min((topology.rates[link] for link in found if "/nic" in link), default=0.0)
    above = [topology.rates[link] / times for link, times in Counter(found).items() if "/nic" not in link]
    return min(1.0, min(above) / min(own, each)) if own and above else 1.0


def spread(topology: Topology, nodes: Nodes, inter: float) -> float:
    """Share of the NICs' rate that the fabric carries while every node sends to every other, and the nodes beside them do the same: what leaves a
    leaf shares its uplinks, and what leaves a block of three tiers those of its spines."""
    fabric, held = topology.cluster.fabric, list(nodes.values())
    links = {link for flow in flows(topology, held[-1], held[0]) for link in flow}
    share = 1.0
    for below, start, above in ((fabric.pod, "net/leaf", ">net/spine"), (fabric.block_nodes, "net/spine", ">net/core")):
        uplinks = [link for link in links if link.startswith(start) and above in link]
        beside = max(Counter(node // below for node in nodes).values()) if below else len(nodes)
        leaving = (len(nodes) - beside) / (len(nodes) - 1)
        if uplinks and leaving and inter:
            # Of a pod's leaves only those of the rails that the group's NICs are on; the spines to the core are all rails'.
            leaves = len({link.partition(">")[0] for link in uplinks}) if start == "net/leaf" else 1
            passed = min(topology.rates[link] for link in uplinks) * fabric.spine_count * leaves
            share = min(share, passed / (below * inter * leaving))
    return share
