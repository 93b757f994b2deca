"""Collectives and messages: algorithm, protocol, hops and bytes, on the links that they cross."""

from __future__ import annotations

from collections import Counter

from sim.cost.collective.algorithms import Choice, all_to_all, message
from sim.cost.collective.group import GroupShape, group_shape
from sim.cost.collective.nccl import best, splits
from sim.cost.collective.rates import fabric, params
from sim.cost.price import Cost
from sim.routing import experts_of
from topologies.graph import Topology

__all__ = ["Choice", "GroupShape", "best", "collective_cost", "group_shape", "message_cost"]
_KEPT = 1 << 20
"""About how many ranks the groups whose shapes are kept have together: thousands of small groups, or a few of a whole cluster."""
_shapes: dict[tuple[int, int, int, int, bool], tuple[Topology, tuple[int, ...], GroupShape]] = {}


def _shape(topology: Topology, ranks: tuple[int, ...], siblings: int) -> GroupShape:
    key = (id(topology), len(ranks), ranks[0], ranks[-1], siblings > 1)
    found = _shapes.get(key)
    if found is None or found[0] is not topology or found[1] != ranks:
        if len(_shapes) * max(len(ranks), 256) >= _KEPT:
            _shapes.clear()
        found = _shapes[key] = (topology, ranks, group_shape(topology, ranks, siblings))
    return found[2]


def collective_cost(name: str, size: int, ranks: tuple[int, ...], topology: Topology, algorithm: str = "auto", siblings: int = 1) -> Cost:
    """One collective of `size` bytes (nccl-tests' convention) over `ranks` in group order.

    `siblings` > 1: so many equal groups run it at the same moment. A group that `hierarchical` cannot split
    (one node, say) runs NCCL's own choice, as a program would call it; so does one inside a node of a cluster for `pat` and `collnet`,
    which are ways between nodes. Raises `UnknownName` for a collective or algorithm, `Refused` for
    an algorithm that NCCL would not take for the group.
    """
    if len(ranks) < 2:
        return Cost(0.0, "fitted")
    shape = _shape(topology, ranks, siblings)
    over_nodes = algorithm in ("pat", "collnet") and shape.nodes == 1 < topology.nodes
    if over_nodes or (algorithm == "hierarchical" and not splits(name, shape)):
        algorithm = "auto"
    experts = experts_of(algorithm) if name == "all_to_all" else 0
    choice = all_to_all(size, shape, experts) if experts else best(name, size, shape, algorithm)
    sends = choice.seconds - choice.latency
    if sends <= 0.0:
        return Cost(choice.seconds, "fitted", choice.latency)
    busy = min(1.0, choice.wire / sends)
    if shape.nodes == 1 and fabric(shape) == "pcie":
        uses, payload = _over_tree(choice, shape, topology, busy)
    else:
        full = shape.inter * shape.crossing if shape.nodes > 1 else shape.intra
        uses, payload = _uses(shape, topology, busy), min(1.0, choice.reach / full)
    elsewhere = _elsewhere(choice, shape, topology) if shape.nodes > 1 else ()
    return Cost(choice.seconds, "fitted", choice.latency, uses, payload=payload, elsewhere=elsewhere)


def _uses(shape: GroupShape, topology: Topology, busy: float) -> tuple[tuple[str, float], ...]:
    """What a group's flow takes of each link that it crosses while it sends: a full link (`busy` = 1) is one that NCCL can send no more over.

    Behind a switch every member sends and receives as much. The rings of a group without one take all links of a GPU alike, of which the one
    to its neighbour stands here. Over
    nodes every cable of the hop carries what one NIC sends, which is no more than the narrowest of them lets through.
    """
    links = shape.inter_links if shape.nodes > 1 else shape.member_links
    if not links:
        return ()
    sent = topology.rates[links[0]] * shape.crossing if shape.nodes > 1 else shape.intra
    return tuple((link, busy * min(sent, topology.rates[link])) for link in links)


def _over_tree(choice: Choice, shape: GroupShape, topology: Topology, busy: float) -> tuple[tuple[tuple[str, float], ...], float]:
    """`_uses` and `payload` of PCIe and host memory: a ring's hops all carry what a GPU's own link does, an exchange's links the slices of all
    pairs, of which those between sockets are full of data alone (their rates are measured ones)."""
    if choice.algorithm == "direct":
        slices = {link: times * choice.reach / (shape.local - 1) for link, times in shape.pair_links}
        payload = max(float(params()["bandwidth"]["pcie"]), *(data / topology.rates[link] for link, data in slices.items()))
        crossed = {link: data / payload for link, data in slices.items()}
    else:
        payload = min(1.0, choice.reach / shape.nearest)
        crossed = {link: times * shape.nearest for link, times in Counter(shape.member_links).items()}
    return tuple((link, min(busy * amount, topology.rates[link])) for link, amount in crossed.items()), payload


def _elsewhere(choice: Choice, shape: GroupShape, topology: Topology) -> tuple[tuple[str, float], ...]:
    """What a group on several nodes moves inside the first of them. (What goes over PCIe from a GPU to its NIC is not among it.)"""
    if choice.algorithm == "direct" and shape.pair_links:
        own = choice.inside / (shape.local - 1)
        return tuple((link, times * own) for link, times in shape.pair_links if ">" in link)
    # Without a switch the link to one neighbour has its share of the rings.
    return tuple((link, choice.inside * min(1.0, topology.rates[link] / shape.intra)) for link in shape.member_links if ">" in link)


def message_cost(size: int, a: int, b: int, topology: Topology, siblings: int = 1) -> Cost:
    """One send and its receive between two ranks."""
    if a == b:
        return Cost(0.0, "fitted")
    path, shape = topology.path(a, b), _shape(topology, (a, b), siblings)
    found = message(size, shape)
    if shape.nodes > 1:
        reach = float(params()["network"]["message"])
    else:
        reach = float(params()["bandwidth"]["pcie"]) if fabric(shape) == "pcie" else found.bandwidth / shape.intra
    # Headers and flow control fill the wire too: a link is full when it carries `reach` of its rate.
    uses = tuple((link, min(found.bandwidth / reach * times, topology.rates[link])) for link, times in path.loads)
    return Cost(found.seconds, "fitted", found.latency, uses, payload=reach)
