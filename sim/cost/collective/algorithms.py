"""The latency and the bandwidth of each algorithm by which NCCL runs a collective.

Bus bandwidth and latencies as in NCCL 2.30.7's tuner (src/graph/tuning.cc), scaled by what nccl-tests measured
(`params/collectives.toml`). Sizes are bytes, those of nccl-tests; times seconds, rates bytes per second.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sim.cost.collective.group import GroupShape
from sim.cost.collective.rates import (
    PROTOCOLS,
    bus_factor,
    fabric,
    fill,
    gpu_generation,
    inner_hop,
    inter_bandwidth,
    intra_bandwidth,
    levels,
    lines_delay,
    message_rate,
    net_hop,
    over_switch,
    params,
    payload_rate,
    protocol_rate,
    ring_fill,
    scaled,
    tree_switch_hop,
)
from sim.routing import different

IN_SWITCH = 3
"""Times that a sum in the switches crosses the wires between GPUs: it is asked for, it comes (multimem.ld_reduce), and is stored
everywhere (multimem.st)."""
_LL_MOST = 16384
"""Bytes up to which NCCL sends by LL (NCCL_P2P_LL_THRESHOLD), and so with its short hop between nodes."""


class Choice(NamedTuple):
    """One way to run a collective. Seconds, bytes per second; `bandwidth`: the bus bandwidth that it assumes, 0 where latency is all."""

    seconds: float
    latency: float
    algorithm: str
    protocol: str
    bandwidth: float
    wire: float = 0.0
    """Seconds in which its data and the flags of LL would cross, at full rate, the links that its group shares with others: those of a GPU, or those of
    a node's NICs where the group has several nodes. Latency, chunks and few channels are not counted."""
    reach: float = 0.0
    """Data per second that these links carry when it fills them."""
    inside: float = 0.0
    """For a group on several nodes: bytes that each GPU sends over the links inside its node; these are not the links that `wire` counts."""


def _narrowest(name: str, shape: GroupShape) -> float:
    rates = [intra_bandwidth(name, shape)] if shape.local > 1 else []
    return min([*rates, *([inter_bandwidth(shape)] if shape.nodes > 1 else [])])


def ring(name: str, size: float, shape: GroupShape, protocol: str) -> Choice:
    """n - 1 steps (all_reduce: twice), each to the neighbour; every node boundary is crossed once a turn."""
    at = PROTOCOLS.index(protocol)
    n = shape.ranks
    turns = 2 if name == "all_reduce" else 1
    crossing = turns * (shape.nodes - 1) if shape.nodes > 1 else 0
    start = float(params()["latency"]["ring_base"][at]) + (lines_delay(size, shape) if protocol == "LL" else 0.0)
    latency = (
        scaled(start, shape)
        + (turns * (n - 1) - crossing) * inner_hop("ring", at, shape)
        + crossing * net_hop("ring_net", at, shape) * 1e-6
    )
    if name == "barrier":
        return Choice(latency, latency, "ring", protocol, 0.0)
    bandwidth = protocol_rate(_narrowest(name, shape), protocol, shape)
    seconds = latency + size * bus_factor(name, n) / bandwidth
    if shape.nodes > 1:
        seconds += fill(latency, size * bus_factor(name, n) / bandwidth, "ring")
    elif protocol == "Simple":
        seconds += ring_fill(size, shape, bandwidth)
    reach = payload_rate(protocol, shape)
    sent = size * bus_factor(name, n)
    return Choice(seconds, latency, "ring", protocol, bandwidth, sent / reach, reach, sent * (1.0 - shape.nodes / n))


def net_tree_rate(shape: GroupShape) -> float:
    """Array bytes/s over the NICs of a node: of two nodes each sends the array once, of more about twice (up and down)."""
    return inter_bandwidth(shape) / (1.0 if shape.nodes == 2 else 2.0)


def tree(size: float, shape: GroupShape, protocol: str) -> Choice:
    """Double binary tree over nodes, a chain inside (Sanders, Speck and Traff 2009): up and down once."""
    at = PROTOCOLS.index(protocol)
    table = params()["latency"]
    chain = scaled(float(table["tree_base"][at]), shape) + 2.0 * (shape.local - 1) * inner_hop("tree", at, shape)
    latency = chain + 2.0 * levels(shape) * net_hop("tree_net", at, shape) * 1e-6
    rates = [intra_bandwidth("all_reduce", shape) / 2.0] if shape.local > 1 else []
    rates += [net_tree_rate(shape)] if shape.nodes > 1 else []
    algorithm = protocol_rate(0.92 * min(rates), protocol, shape)
    seconds = latency + size / algorithm
    if shape.nodes > 1:
        seconds += fill(latency, size / algorithm, "net")
    reach = payload_rate(protocol, shape)
    wire = size * (1.0 if shape.nodes == 2 else 2.0) / reach
    bus, inside = algorithm * bus_factor("all_reduce", shape.ranks), 2.0 * size * (1.0 - shape.nodes / shape.ranks)
    return Choice(seconds, latency, "tree", protocol, bus, wire, reach, inside)


def _switch_rate(shape: GroupShape) -> float:
    """Array bytes/s of an all_reduce in the switches of one node (NVLS).

    Each GPU sends its array once (the switch adds), the owner of a slice gets and multicasts it: (1 + 1/k) of the array in either
    direction. NCCL's tuner gives the share of the wire by architecture (`nvls_efficiency`), one factor holds for what is measured.
    """
    limits = params()["bandwidth"]
    wire = shape.intra * float(limits[f"nvls_{gpu_generation(shape.arch)}"]) * float(limits["nvls"])
    return wire / (1.0 + 1.0 / shape.local)


def in_switch(size: float, shape: GroupShape) -> Choice:
    """NVLS on one node; NVLSTree over several: the switch reduces, the NICs carry a tree. Simple only."""
    # One node: H100's floor under NVLS is that of the ring at small sizes; NCCL then takes the ring.
    latency = (over_switch(float(params()["latency"]["nvls"]), IN_SWITCH, shape) + 2 * levels(shape) * tree_switch_hop(shape)) * 1e-6
    algorithm = min([_switch_rate(shape), *([net_tree_rate(shape)] if shape.nodes > 1 else [])])
    carry = size / algorithm
    extra = fill(latency, carry, "net" if shape.nodes > 1 else "nvls")
    bus, seconds = algorithm * bus_factor("all_reduce", shape.ranks), latency + carry + extra
    if shape.nodes > 1:
        inside = size * (1.0 + 1.0 / shape.local)
        return Choice(seconds, latency, "nvls", "Simple", bus, size / net_tree_rate(shape), inter_bandwidth(shape), inside)
    return Choice(seconds, latency, "nvls", "Simple", bus, carry, algorithm * (1.0 + 1.0 / shape.local))


def collnet(size: float, shape: GroupShape, switched: bool) -> Choice:
    """All_reduce over SHARP: each NIC sends its share of the array once to switches that add, and gets it back once.

    Inside a node NVSwitches reduce (`switched`, NCCL's NVLS over nodes), else every GPU sends to every other (CollNetDirect).
    Latencies and the 0.9 of its bandwidth are the tuner's; no measurement.
    """
    table, limits = params()["latency"], params()["bandwidth"]
    if switched:
        latency = (over_switch(float(table["nvls"]), IN_SWITCH, shape) + float(table["collnet_nvls"])) * 1e-6
        inside = _switch_rate(shape)
    else:
        arity = min(1, shape.local - 1) * float(table["collnet"]) + (shape.local - 1) * float(table["collnet_arity"])
        latency = (over_switch(2.0 * arity, 2, shape) + float(table["collnet_net"])) * 1e-6
        inside = intra_bandwidth("all_reduce", shape) / bus_factor("all_reduce", shape.local) if shape.local > 1 else math.inf
    algorithm = float(limits["collnet"]) * min(inside, inter_bandwidth(shape))
    carry = size / algorithm
    seconds = latency + carry + fill(latency, carry, "net")
    reach, sent = inter_bandwidth(shape), size * (1.0 + 1.0 / shape.local if switched else bus_factor("all_reduce", shape.local))
    return Choice(seconds, latency, "collnet", "Simple", algorithm * bus_factor("all_reduce", shape.ranks), size / reach, reach, sent)


def pat(name: str, size: float, shape: GroupShape) -> Choice:
    """Parallel aggregated trees, for all_gather and reduce_scatter over nodes of one rank each: log2(N) hops and a share for every rank."""
    table = params()["latency"]
    hop = net_hop("pat_net", 0, shape) / float(table["pat_overlap"])
    latency = (float(table["pat_base"]) + math.ceil(math.log2(shape.nodes)) * hop + shape.ranks * float(table["pat_rank"])) * 1e-6
    bus = inter_bandwidth(shape) * float(params()["bandwidth"]["pat"])
    carry = size * bus_factor(name, shape.ranks) / bus
    wire, reach = size * bus_factor(name, shape.ranks) / inter_bandwidth(shape), inter_bandwidth(shape)
    return Choice(latency + carry + fill(latency, carry, "ring"), latency, "pat", "Simple", bus, wire, reach)


def multicast(name: str, size: float, shape: GroupShape) -> Choice:
    """NVLS for all_gather and reduce_scatter on one node, where the plan asks for it: the switch copies (adds), each port carries (n-1)/n once.

    `auto` leaves it out: the measured nodes run these on the ring.
    """
    latency = over_switch(float(params()["latency"]["nvls"]), IN_SWITCH - 1, shape) * 1e-6  # it adds or it copies
    bus = shape.intra * float(params()["bandwidth"][f"nvls_gather_{gpu_generation(shape.arch)}"])
    carry = size * bus_factor(name, shape.ranks) / bus
    return Choice(latency + carry + fill(latency, carry, "nvls"), latency, "nvls", "Simple", bus, carry, bus)


def _inside(own: float, ranks: int, latency: float, shape: GroupShape) -> tuple[float, float]:
    """Seconds of an all_to_all's part inside a node, beyond the latency: to carry slices of `own` bytes, and what the protocol adds.

    PCIe: a GPU's own link carries the slices of all its peers, and links that pairs share carry those of all pairs (as SimuMax fitted on 4
    and 8 A100 PCIe: 19.1 and 8.3 GB/s of bus bandwidth, here 18.8 and 7.0). NVLink: a peer's channels send short slices as LL at
    `direct_ll`, longer ones as Simple, which starts `direct_simple` later; in a mesh whose links are not all alike, the most loaded one is
    the last to have carried its slices.
    """
    copy = own / (float(params()["bandwidth"]["self_copy"]) * 1e9)
    if shape.local == 1 or not own:
        return copy, 0.0
    rate = intra_bandwidth("all_to_all", shape)
    if fabric(shape) == "pcie":
        carry = max(copy, own * (ranks - 1) / rate, own * shape.exchange)
        return carry, fill(latency, carry, "pcie")
    carry = own * max(shape.local - 1, shape.exchange * shape.intra) / rate + copy
    table = params()["latency"]
    simple = float(table["direct_simple"]) * 1e-6 + fill(latency, carry, "nvlink")
    return carry, max(0.0, min(simple, own / (float(table["direct_ll"]) * 1e9) - carry))


def all_to_all(size: float, shape: GroupShape, copies: int = 0) -> Choice:
    """Grouped sends and receives: each rank sends 1/n of its array to each other rank, and copies the slice that stays.

    Peers inside are reached by NVLink, whose channels copy the own slice afterwards, or by PCIe, which leaves channels idle that copy it
    meanwhile; peers outside by the NIC, at the same time, and a GPU's PCIe link carries what goes to both. Every peer outside costs the
    proxy a post (`proxy`), inside a connection's share of the kernel (`peer`). Where nodes hold different numbers of ranks, all wait for the one
    whose NICs are the last to have sent its members' slices.

    `copies`: the array holds tokens for `copies` ranks each, drawn evenly, once for each different rank. Then a token crosses the network once
    to each node, to the rank of the sender's place there, which hands it on by NVLink meanwhile (DeepEP's internode kernels, HybridEP).
    """
    n, k = shape.ranks, shape.local
    table, own = params()["latency"], size / n
    latency = scaled(over_switch(float(table["direct_base"]), 1, shape) + float(table[f"peer_{fabric(shape)}"]) * (k - 1), shape)
    carry, extra = _inside(own, n, latency, shape)
    wire, sent, inside = carry, own * (k - 1), own * ((n if copies else k) - 1)
    if shape.nodes > 1:
        members, rate = shape.last
        far_ranks, share = (shape.nodes - 1, different(shape.nodes, copies) / different(n, copies)) if copies else (n - members, 1.0)
        gone = own * (n - members) * members * share
        outside = gone / (rate * shape.spread * float(params()["network"]["all_to_all"]))
        posts = far_ranks * float(table["proxy"]) * 1e-6
        latency += net_hop("ring_net", 2, shape) * 1e-6
        far = fill(latency, outside, "net") if size else 0.0
        if copies and k > 1:
            carry = max(carry, own * (n - 1) / intra_bandwidth("all_to_all", shape))
        carry, extra = (outside, far + posts) if outside + far + posts > carry + extra else (carry, extra)
        wire, sent = outside * shape.spread, gone
    bandwidth = size * bus_factor("all_to_all", n) / (carry + extra) if size else 0.0
    return Choice(latency + carry + extra, latency, "direct", "Simple", bandwidth, wire, sent / wire if wire else 0.0, inside)


def message(size: float, shape: GroupShape) -> Choice:
    """One send and its receive between the two ranks of `shape`: the latency of one peer of an all_to_all, at the full rate of the link."""
    table = params()["latency"]
    if shape.nodes > 1:
        rate = shape.inter * shape.crossing * float(params()["network"]["message"])
        hop = net_hop("ring_net", 0 if size <= _LL_MOST else 2, shape)
    else:
        rate, hop = message_rate(shape), over_switch(float(table[f"peer_{fabric(shape)}"]), 1, shape)
    latency = scaled(float(table["direct_base"]), shape) + hop * 1e-6
    return Choice(latency + size / rate, latency, "direct", "Simple", rate)
