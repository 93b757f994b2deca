"""Collectives and messages: algorithm, protocol, hops and bytes, on the links that they cross."""

from __future__ import annotations

from sim.cost.collective.algorithms import Choice
from sim.cost.collective.group import GroupShape, group_shape
from sim.cost.collective.nccl import best, splits
from sim.cost.collective.rates import fabric, message_rate, net_hop, params, scaled
from sim.cost.price import Cost
from topologies.graph import Topology

__all__ = ["Choice", "GroupShape", "best", "collective_cost", "group_shape", "message_cost"]
_LL_MOST = 16384
"""Bytes up to which NCCL sends by LL (NCCL_P2P_LL_THRESHOLD), and so with its short hop between nodes."""
_shapes: dict[tuple[int, int, int, int, bool], tuple[Topology, tuple[int, ...], GroupShape]] = {}


def _shape(topology: Topology, ranks: tuple[int, ...], siblings: int) -> GroupShape:
    key = (id(topology), len(ranks), ranks[0], ranks[-1], siblings > 1)
    found = _shapes.get(key)
    if found is None or found[0] is not topology or found[1] != ranks:
        if len(_shapes) >= 256:
            _shapes.clear()
        found = _shapes[key] = (topology, ranks, group_shape(topology, ranks, siblings))
    return found[2]


def collective_cost(name: str, size: int, ranks: tuple[int, ...], topology: Topology, algorithm: str = "auto", siblings: int = 1) -> Cost:
    """One collective of `size` bytes (nccl-tests' convention) over `ranks` in group order.

    `siblings` > 1: so many equal groups run it at the same moment. A group that `hierarchical` cannot split
    (one node, say) runs NCCL's own choice, as a program would call it. Raises `UnknownName` for a collective or algorithm, `Refused` for
    an algorithm that NCCL would not take for the group.
    """
    if len(ranks) < 2:
        return Cost(0.0, "fitted")
    shape = _shape(topology, ranks, siblings)
    if algorithm == "hierarchical" and not splits(name, shape):
        algorithm = "auto"
    choice = best(name, size, shape, algorithm)
    links = [(link, shape.intra) for link in shape.intra_links] if shape.local > 1 else []
    if shape.nodes > 1:
        # What one NIC sends goes over every cable of the hop: a narrower one slows the flow.
        links = [(link, topology.rates[shape.inter_links[0]]) for link in shape.inter_links] or links
    share = choice.bandwidth / max(1.0, _bound(shape))
    uses = tuple((link, rate * min(1.0, share)) for link, rate in links) if choice.seconds > choice.latency else ()
    return Cost(choice.seconds, "fitted", choice.latency, uses)


def _bound(shape: GroupShape) -> float:
    return shape.inter if shape.nodes > 1 else shape.intra


def message_cost(size: int, a: int, b: int, topology: Topology, siblings: int = 1) -> Cost:
    """One send and its receive between two ranks: the latency of one peer of an all_to_all, at the full rate of the link."""
    if a == b:
        return Cost(0.0, "fitted")
    path, shape = topology.path(a, b), _shape(topology, (a, b), siblings)
    table = params()["latency"]
    if shape.nodes > 1:
        use = topology.nic_of(a)
        share = use.rate if use is not None and siblings > 1 else path.rate
        rate = min(path.rate, share) * float(params()["network"]["message"])
        hop = net_hop("ring_net", 0 if size <= _LL_MOST else 2, shape)
    else:
        rate, hop = message_rate(shape), float(table[f"peer_{fabric(shape)}"])
    latency = scaled(float(table["direct_base"]), shape) + hop * 1e-6
    loads = getattr(path, "loads", ()) or tuple((link, 1) for link in path.links)
    return Cost(latency + size / rate, "fitted", latency, tuple((link, rate * times) for link, times in loads))
