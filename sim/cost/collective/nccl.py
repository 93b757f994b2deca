"""NCCL's algorithms and protocols, with NCCL's own cost model: latency x steps + bytes / bandwidth, the smallest wins.

Bus bandwidth and latencies as in NCCL 2.30.7's tuner (src/graph/tuning.cc), scaled by what nccl-tests measured
(`params/collectives.toml`). Sizes are those of nccl-tests: the whole array for all_gather, reduce_scatter, all_to_all.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sim.cost.collective.group import GroupShape
from sim.cost.collective.rates import (
    PROTOCOLS,
    bus_factor,
    fabric,
    fill,
    inner_hop,
    inter_bandwidth,
    intra_bandwidth,
    levels,
    net_hop,
    params,
    protocol_rate,
    ring_fill,
    scaled,
    tree_switch_hop,
)
from topologies.errors import Refused, UnknownName

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier")
ALGORITHMS = ("auto", "ring", "tree", "nvls", "hierarchical")


class Choice(NamedTuple):
    """One way to run a collective. Seconds; `bandwidth` is the bus bandwidth that it assumes, 0 where latency is all."""

    seconds: float
    latency: float
    algorithm: str
    protocol: str
    bandwidth: float


def choices(name: str, size: float, shape: GroupShape) -> list[Choice]:
    """Every way in which NCCL would run it on this machine. Raises `UnknownName` for a collective that is none of NCCL's."""
    if name not in NAMES:
        raise UnknownName("collective", name, NAMES)
    if shape.ranks < 2:
        return [Choice(0.0, 0.0, "none", "Simple", 0.0)]
    if name == "all_to_all":
        return [_all_to_all(size, shape)]
    size = max(size, 1.0)
    found = [_ring(name, size, shape, protocol) for protocol in PROTOCOLS if _allowed(protocol, shape)]
    if name in ("all_reduce", "barrier"):
        found += [_tree(size, shape, protocol) for protocol in PROTOCOLS if _allowed(protocol, shape)]
    if name == "all_reduce" and _nvls(shape):
        found.append(_in_switch(size, shape))
    return found


def best(name: str, size: float, shape: GroupShape, algorithm: str = "auto") -> Choice:
    """The fastest, or the fastest of one algorithm.

    Raises `UnknownName` for an algorithm that NCCL does not know, `Refused` for one that it would not take for this group.
    """
    if algorithm not in ALGORITHMS:
        raise UnknownName("algorithm", algorithm, ALGORITHMS)
    found = choices(name, size, shape)
    if algorithm == "nvls" and name in ("all_gather", "reduce_scatter") and _nvls(shape) and shape.nodes == 1:
        return _multicast(name, max(size, 1.0), shape)
    if algorithm == "hierarchical" and shape.ranks > 1:
        return _hierarchical(name, max(size, 1.0), shape)
    if algorithm != "auto" and shape.ranks > 1:
        fitting = [choice for choice in found if choice.algorithm == algorithm]
        if not fitting:
            raise Refused(_why_not(name, algorithm, shape, sorted({choice.algorithm for choice in found})))
        found = fitting
    return min(found)


def _why_not(name: str, algorithm: str, shape: GroupShape, allowed: list[str]) -> str:
    """What NCCL would say: which rule keeps the algorithm from this group, what is allowed, and the next step."""
    rules = {
        "ring": "every rank sends to every other directly",
        "tree": "NCCL runs trees for all_reduce only",
        "nvls": "it needs NVSwitch, sm90 or later and 8 or more GPUs of a node; over nodes (NVLSTree) it serves all_reduce alone",
        "hierarchical": "it is an all_reduce over groups of equal size on two or more nodes, two or more ranks on each",
    }
    where = f"{shape.ranks} ranks ({shape.arch}, {shape.link}, {shape.local} on each of {shape.nodes} nodes)"
    return f"algorithm '{algorithm}' for {name} on {where}: {rules[algorithm]}; allowed: {', '.join(['auto', *allowed])}"


def splits(name: str, shape: GroupShape) -> bool:
    """Can the collective be done in the steps of `hierarchical`: an all_reduce over equal groups of ranks on several nodes?"""
    return name == "all_reduce" and shape.nodes > 1 and shape.local > 1 and shape.nodes * shape.local == shape.ranks


def _hierarchical(name: str, size: float, shape: GroupShape) -> Choice:
    """reduce_scatter inside each node, all_reduce of 1/k of the bytes on each rail at once, all_gather inside: one after the other."""
    if not splits(name, shape):
        raise Refused(_why_not(name, "hierarchical", shape, sorted({c.algorithm for c in choices(name, size, shape)})))
    inside = msgspec.structs.replace(shape, ranks=shape.local, nodes=1, inter=0.0)
    rail = msgspec.structs.replace(shape, ranks=shape.nodes, local=1, intra=0.0, switched=False, inter=shape.inter / shape.local)
    parts = [
        min(choices("reduce_scatter", size, inside)),
        min(choices("all_reduce", size / shape.local, rail)),
        min(choices("all_gather", size, inside)),
    ]
    seconds, latency = sum(part.seconds for part in parts), sum(part.latency for part in parts)
    bandwidth = size * bus_factor(name, shape.ranks) / max(seconds - latency, 1e-12)
    return Choice(seconds, latency, "hierarchical", parts[1].protocol, bandwidth)


def _allowed(protocol: str, shape: GroupShape) -> bool:
    """LL128 needs NVLink inside the node (NCCL: at most NVB); LL and LL128 need ordered delivery between nodes, which EFA lacks.

    (AWS's network plugin sets NCCL_PROTO=simple there; the floors of p4de and p5 over two nodes are those of Simple and NVLS.)
    """
    if shape.nodes > 1 and shape.efa and protocol != "Simple":
        return False
    return protocol != "LL128" or shape.link in ("NVL", "NVB") or shape.local == 1


def _nvls(shape: GroupShape) -> bool:
    return shape.switched and shape.arch in ("sm90", "sm100", "sm103") and shape.local >= int(params()["bandwidth"]["nvls_least"])


def _bandwidth(name: str, shape: GroupShape) -> float:
    rates = [intra_bandwidth(name, shape)] if shape.local > 1 else []
    return min([*rates, *([inter_bandwidth(shape)] if shape.nodes > 1 else [])])


def _ring(name: str, size: float, shape: GroupShape, protocol: str) -> Choice:
    """n - 1 steps (all_reduce: twice), each to the neighbour; every node boundary is crossed once a turn."""
    at = PROTOCOLS.index(protocol)
    n = shape.ranks
    turns = 2 if name == "all_reduce" else 1
    crossing = turns * (shape.nodes - 1) if shape.nodes > 1 else 0
    inside = float(params()["latency"][f"ring_base_{fabric(shape)}"][at]) + (turns * (n - 1) - crossing) * inner_hop("ring", at, shape)
    latency = scaled(inside, shape) + crossing * net_hop("ring_net", at, shape) * 1e-6
    if name == "barrier":
        return Choice(latency, latency, "ring", protocol, 0.0)
    bandwidth = protocol_rate(_bandwidth(name, shape), protocol, shape)
    seconds = latency + size * bus_factor(name, n) / bandwidth
    if shape.nodes > 1:
        seconds += fill(latency, size * bus_factor(name, n) / bandwidth, "ring")
    elif protocol == "Simple":
        seconds += ring_fill(size, shape, bandwidth)
    return Choice(seconds, latency, "ring", protocol, bandwidth)


def _net_tree(shape: GroupShape) -> float:
    """Array bytes/s over the NICs of a node: of two nodes each sends the array once, of more about twice (up and down)."""
    return inter_bandwidth(shape) / (1.0 if shape.nodes == 2 else 2.0)


def _tree(size: float, shape: GroupShape, protocol: str) -> Choice:
    """Double binary tree over nodes, a chain inside (Sanders, Speck and Traff 2009): up and down once."""
    at = PROTOCOLS.index(protocol)
    table = params()["latency"]
    chain = float(table["tree_base"][at]) + 2.0 * (shape.local - 1) * inner_hop("tree", at, shape)
    latency = scaled(chain, shape) + 2.0 * levels(shape) * net_hop("tree_net", at, shape) * 1e-6
    rates = [intra_bandwidth("all_reduce", shape) / 2.0] if shape.local > 1 else []
    rates += [_net_tree(shape)] if shape.nodes > 1 else []
    algorithm = protocol_rate(0.92 * min(rates), protocol, shape)
    seconds = latency + size / algorithm
    if shape.nodes > 1:
        seconds += fill(latency, size / algorithm, "net")
    return Choice(seconds, latency, "tree", protocol, algorithm * bus_factor("all_reduce", shape.ranks))


def _in_switch(size: float, shape: GroupShape) -> Choice:
    """NVLS on one node; NVLSTree over several: the switch reduces, the NICs carry a tree. Simple only."""
    table, limits = params()["latency"], params()["bandwidth"]
    # One node: H100's floor under NVLS is that of the ring at small sizes; NCCL then takes the ring.
    latency = (float(table["nvls"]) + 2 * levels(shape) * tree_switch_hop(shape)) * 1e-6
    bus = shape.intra * float(limits["nvls_sm90" if shape.arch == "sm90" else "nvls_sm100"])
    rates = [bus / bus_factor("all_reduce", max(2, shape.local))]
    rates += [_net_tree(shape)] if shape.nodes > 1 else []
    algorithm = min(rates)
    carry = size / algorithm
    extra = fill(latency, carry, "net" if shape.nodes > 1 else "nvls")
    return Choice(latency + carry + extra, latency, "nvls", "Simple", algorithm * bus_factor("all_reduce", shape.ranks))


def _multicast(name: str, size: float, shape: GroupShape) -> Choice:
    """NVLS for all_gather and reduce_scatter on one node, when it is asked for: the switch copies (adds), each port carries (n-1)/n once.

    `auto` leaves it out: the measured nodes run these on the ring.
    """
    latency = float(params()["latency"]["nvls"]) * 1e-6
    bus = shape.intra * float(params()["bandwidth"]["nvls_gather_sm90" if shape.arch == "sm90" else "nvls_gather_sm100"])
    carry = size * bus_factor(name, shape.ranks) / bus
    return Choice(latency + carry + fill(latency, carry, "nvls"), latency, "nvls", "Simple", bus)


def _all_to_all(size: float, shape: GroupShape) -> Choice:
    """Grouped sends and receives: each rank sends 1/n of its array to each other rank, and copies the slice that stays.

    Peers inside are reached by NVLink or PCIe, after which the same channels copy the own slice; peers outside by the NIC, at the
    same time. Every peer outside costs the proxy a post (`proxy`), inside a connection's share of the kernel (`peer`).
    """
    n, k = shape.ranks, shape.local
    table, own = params()["latency"], size / n
    latency = scaled(float(table["direct_base"]) + float(table[f"peer_{fabric(shape)}"]) * (k - 1), shape)
    carry = own / (float(params()["bandwidth"]["self_copy"]) * 1e9)
    if k > 1:
        carry += own * (k - 1) / intra_bandwidth("all_to_all", shape)
    extra = fill(latency, carry, fabric(shape)) if size else 0.0
    if shape.nodes > 1:
        outside = own * (n - k) / (shape.inter * shape.spread / k * float(params()["network"]["all_to_all"]))
        posts = (n - k) * float(table["proxy"]) * 1e-6
        latency += net_hop("ring_net", 2, shape) * 1e-6
        far = fill(latency, outside, "net") if size else 0.0
        carry, extra = (outside, far + posts) if outside + far + posts > carry + extra else (carry, extra)
    bandwidth = size * bus_factor("all_to_all", n) / (carry + extra) if size else 0.0
    return Choice(latency + carry + extra, latency, "direct", "Simple", bandwidth)
