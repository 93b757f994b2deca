"""NCCL's algorithms and protocols, with NCCL's own cost model: latency x steps + bytes / bandwidth, the smallest wins.

Bus bandwidth and latencies as in NCCL 2.30.7's tuner (src/graph/tuning.cc), scaled by what nccl-tests measured
(`params/collectives.toml`). Sizes are those of nccl-tests: the whole array for all_gather, reduce_scatter, all_to_all.
"""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sim.cost.collective.group import GroupShape
from topologies.errors import UnknownName

PROTOCOLS = ("LL", "LL128", "Simple")
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier")
ALGORITHMS = ("auto", "ring", "tree", "nvls", "hierarchical")


class Choice(NamedTuple):
    """One way to run a collective. Seconds; `bandwidth` is the bus bandwidth that it assumes, 0 where latency is all."""

    seconds: float
    latency: float
    algorithm: str
    protocol: str
    bandwidth: float


@cache
def params() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parents[1] / "params" / "collectives.toml").read_text("utf-8"))


def choices(name: str, size: float, shape: GroupShape) -> list[Choice]:
    """Every way to run it that this machine has."""
    if name not in NAMES:
        raise UnknownName("collective", name, NAMES)
    if shape.ranks < 2:
        return [Choice(0.0, 0.0, "none", "Simple", 0.0)]
    if name == "all_to_all":
        return [_all_to_all(size, shape)]
    size = max(size, 1.0)
    found = [_ring(name, size, shape, protocol) for protocol in PROTOCOLS if _allowed(protocol, shape)]
    if name in ("all_reduce", "reduce", "broadcast", "barrier"):
        found += [_tree(size, shape, protocol) for protocol in PROTOCOLS if _allowed(protocol, shape)]
    if name == "all_reduce" and _nvls(shape):
        found.append(_in_switch(size, shape))
    return found


def best(name: str, size: float, shape: GroupShape, algorithm: str = "auto") -> Choice:
    """The fastest, or the fastest of one algorithm. Raises `UnknownName` when the machine does not have it."""
    found = choices(name, size, shape)
    if algorithm not in ("auto", "hierarchical"):
        fitting = [choice for choice in found if choice.algorithm == algorithm]
        if not fitting:
            raise UnknownName(f"algorithm for {name} on this group", algorithm, sorted({c.algorithm for c in found}))
        found = fitting
    return min(found)


def bus_factor(name: str, ranks: int) -> float:
    """busbw / algbw (nccl-tests, doc/PERFORMANCE.md)."""
    if name == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if name in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def _allowed(protocol: str, shape: GroupShape) -> bool:
    """LL128 needs NVLink inside the node (NCCL: at most NVB)."""
    return protocol != "LL128" or shape.link in ("NVL", "NVB") or shape.local == 1


def _net_hop(key: str, at: int, shape: GroupShape) -> float:
    """Microseconds of one hop between nodes."""
    table = params()["latency"]
    return float(table[key][at]) + (float(table["efa_hop"]) if shape.efa else 0.0)


def _nvls(shape: GroupShape) -> bool:
    return shape.switched and shape.arch in ("sm90", "sm100", "sm103") and shape.local >= 8


def _scaled(microseconds: float, shape: GroupShape) -> float:
    table = params()["scale"]
    return microseconds * 1e-6 * float(table.get(shape.arch, table["other"]))


def _fabric(shape: GroupShape) -> str:
    return "nvlink" if shape.link in ("NVL", "NVB") else "pcie"


def intra_bandwidth(name: str, shape: GroupShape) -> float:
    """Bus bandwidth inside a node for large messages."""
    table = params()["bandwidth"]
    if _fabric(shape) == "pcie":
        return shape.intra * float(table["pcie"])
    kind = "all_reduce" if name in ("all_reduce", "reduce", "broadcast", "barrier") else "all_to_all" if name == "all_to_all" else "gather"
    small = float(table["small_all_reduce" if kind == "all_reduce" else "small_other"])
    return shape.intra * float(table[kind]) * (1.0 - small / shape.local**2)


def inter_bandwidth(shape: GroupShape) -> float:
    """All NICs of the group on one node, as collectives use them."""
    table = params()["network"]
    return shape.inter * float(table["efa" if shape.efa else "efficiency"])


def _bandwidth(name: str, shape: GroupShape) -> float:
    rates = [intra_bandwidth(name, shape)] if shape.local > 1 else []
    return min([*rates, *([inter_bandwidth(shape)] if shape.nodes > 1 else [])])


def _protocol(bandwidth: float, protocol: str, shape: GroupShape) -> float:
    table = params()["protocol"]
    rate = bandwidth * float(table[protocol])
    if protocol == "LL":
        key = f"ll_max_{shape.arch}"
        rate = min(rate, float(table.get(key, table["ll_max_other"])) * 1e9)
    return rate


def _ring(name: str, size: float, shape: GroupShape, protocol: str) -> Choice:
    """n - 1 steps (all_reduce: twice), each to the neighbour; every node boundary is crossed once a turn."""
    at = PROTOCOLS.index(protocol)
    table, n = params()["latency"], shape.ranks
    turns = 2 if name == "all_reduce" else 1
    crossing = turns * (shape.nodes - 1) if shape.nodes > 1 else 0
    steps = turns * (n - 1)
    hop = float(table[f"ring_{_fabric(shape)}"][at])
    micro = float(table["ring_base"][at]) + (steps - crossing) * hop + crossing * _net_hop("ring_net", at, shape)
    if name == "barrier":
        return Choice(_scaled(micro, shape), _scaled(micro, shape), "ring", protocol, 0.0)
    bandwidth = _protocol(_bandwidth(name, shape), protocol, shape)
    latency = _scaled(micro, shape)
    return Choice(latency + size * bus_factor(name, n) / bandwidth, latency, "ring", protocol, bandwidth)


def _tree(size: float, shape: GroupShape, protocol: str) -> Choice:
    """Double binary tree over nodes, a chain inside (Sanders, Speck and Traff 2009): up and down once.

    Over two nodes each direction of the NICs carries the array once, over more about twice.
    """
    at = PROTOCOLS.index(protocol)
    table = params()["latency"]
    hop = float(table[f"tree_{_fabric(shape)}"][at])
    levels = math.ceil(math.log2(shape.nodes)) if shape.nodes > 1 else 0
    micro = float(table["tree_base"][at]) + 2.0 * ((shape.local - 1) * hop + levels * _net_hop("tree_net", at, shape))
    latency = _scaled(micro, shape)
    rates = [0.92 * intra_bandwidth("all_reduce", shape) / 2.0] if shape.local > 1 else []
    if shape.nodes > 1:
        rates.append(inter_bandwidth(shape) / (1.0 if shape.nodes == 2 else 2.0))
    algorithm = _protocol(min(rates), protocol, shape)
    return Choice(latency + size / algorithm, latency, "tree", protocol, algorithm * bus_factor("all_reduce", shape.ranks))


def _in_switch(size: float, shape: GroupShape) -> Choice:
    """NVLS on one node; NVLSTree over several: the switch reduces, the NICs carry a tree."""
    table, limits = params()["latency"], params()["bandwidth"]
    levels = math.ceil(math.log2(shape.nodes)) if shape.nodes > 1 else 0
    hop = float(table["efa_hop"]) + float(table["nvls_net"]) if shape.efa else float(table["nvls_net"])
    latency = (float(table["nvls"]) + 2 * levels * hop) * 1e-6
    # H100's floor under NVLS is that of the ring at small sizes: NCCL then takes the ring.
    bus = shape.intra * float(limits["nvls_sm90" if shape.arch == "sm90" else "nvls_sm100"])
    rates = [bus / bus_factor("all_reduce", max(2, shape.local))]
    if shape.nodes > 1:
        rates.append(inter_bandwidth(shape) / (1.0 if shape.nodes == 2 else 2.0))
    algorithm = min(rates)
    return Choice(latency + size / algorithm, latency, "nvls", "Simple", algorithm * bus_factor("all_reduce", shape.ranks))


def _all_to_all(size: float, shape: GroupShape) -> Choice:
    """Direct: each rank sends 1/n of its array to each other, inside by NVLink and outside by its NIC, both at once."""
    n, k = shape.ranks, shape.local
    own = size / n  # to each peer's share: nccl-tests counts the n ranks' slices of one rank
    times = []
    if k > 1:
        times.append(own * (k - 1) / intra_bandwidth("all_to_all", shape))
    if shape.nodes > 1:
        times.append(own * (n - k) / (shape.inter / k * float(params()["network"]["all_to_all"])))
    table = params()["latency"]
    hop = float(table["ring_net" if shape.nodes > 1 else f"ring_{_fabric(shape)}"][0])
    latency = _scaled(float(table["ring_base"][0]) + hop * min(n - 1, 8), shape)
    return Choice(latency + max(times), latency, "direct", "Simple", size * bus_factor("all_to_all", n) / max(times) if size else 0.0)
