"""NCCL's algorithms and protocols, with NCCL's own cost model: latency x steps + bytes / bandwidth, the smallest wins.

Bus bandwidth and latencies as in NCCL 2.30.7's tuner (src/graph/tuning.cc), scaled by what nccl-tests measured
(`params/collectives.toml`). Sizes are those of nccl-tests: the whole array for all_gather, reduce_scatter, all_to_all.
"""

from __future__ import annotations

import msgspec

from sim.cost.collective.algorithms import Choice, all_to_all, collnet, in_switch, message, multicast, pat, ring, tree
from sim.cost.collective.group import GroupShape
from sim.cost.collective.rates import PROTOCOLS, bus_factor, params
from sim.cost.device import GROUPED
from topologies.errors import Refused, UnknownName

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier")
_RULES = {
    "ring": "every rank sends to every other directly",
    "tree": "NCCL runs trees for all_reduce only",
    "nvls": "it needs NVSwitch, sm90 or later and 6 or more GPUs of a node; over nodes (NVLSTree) it serves all_reduce alone",
    "pat": "it gathers and scatters over nodes with one rank on each",
    "collnet": "it is an all_reduce over nodes whose InfiniBand switches reduce (SHARP); NCCL takes it only where it is asked for",
    "hierarchical": "it is an all_reduce over groups of equal size on two or more nodes, two or more ranks on each",
}
"""Which rule keeps each algorithm from a group."""
ALGORITHMS = ("auto", *_RULES)


def choices(name: str, size: float, shape: GroupShape) -> list[Choice]:
    """One `Choice` for each algorithm and protocol that NCCL would consider on this machine. For `send`, `shape` is that of its two ranks.
    Raises `UnknownName` for a collective that is none of NCCL's."""
    if name == "send":
        return [message(size, shape)]
    if name not in NAMES:
        raise UnknownName("collective", name, (*NAMES, "send"))
    if shape.ranks < 2:
        return [Choice(0.0, 0.0, "none", "Simple", 0.0)]
    if name == "all_to_all":
        return [all_to_all(size, shape)]
    size = max(size, 1.0)
    found = [ring(name, size, shape, protocol) for protocol in PROTOCOLS if _allowed(protocol, shape)]
    if name in ("all_reduce", "barrier"):
        found += [tree(size, shape, protocol) for protocol in PROTOCOLS if _allowed(protocol, shape)]
    if name == "all_reduce" and _nvls(shape):
        found.append(in_switch(size, shape))
    if name in ("all_gather", "reduce_scatter") and shape.local == 1:
        found.append(pat(name, size, shape))
    return found


def best(name: str, size: float, shape: GroupShape, algorithm: str = "auto") -> Choice:
    """The fastest choice, or the fastest of one algorithm.

    Raises `UnknownName` for an algorithm that NCCL does not know, `Refused` for one that it would not take for this group.
    """
    if algorithm not in ALGORITHMS:
        raise UnknownName("algorithm", algorithm, ALGORITHMS)
    found = choices(name, size, shape)
    if algorithm == "nvls" and name in ("all_gather", "reduce_scatter") and _nvls(shape) and shape.nodes == 1:
        return multicast(name, max(size, 1.0), shape)
    if algorithm == "collnet" and name == "all_reduce" and shape.sharp and shape.nodes > 1:
        return collnet(size, shape, _nvls(shape))
    if algorithm == "hierarchical" and shape.ranks > 1:
        return _hierarchical(name, max(size, 1.0), shape)
    if algorithm != "auto" and shape.ranks > 1:
        fitting = [choice for choice in found if choice.algorithm == algorithm]
        if not fitting:
            raise Refused(_why_not(name, algorithm, shape, sorted({choice.algorithm for choice in found})))
        found = fitting
    return min(found)


def _why_not(name: str, algorithm: str, shape: GroupShape, allowed: list[str]) -> str:
    """The text of the error: the rule that excludes the algorithm for this group, and the algorithms that are allowed."""
    where = f"{shape.ranks} ranks ({shape.arch}, {shape.link}, {shape.local} on each of {shape.nodes} nodes)"
    words = ", ".join(["auto", *(one for one in allowed if one in ALGORITHMS)])
    return f"algorithm '{algorithm}' for {name} on {where}: {_RULES[algorithm]}; allowed: {words}"


def splits(name: str, shape: GroupShape) -> bool:
    """True where `hierarchical` can run the collective: an all_reduce over several nodes with the same number of ranks, two or more, on each."""
    return name == "all_reduce" and shape.nodes > 1 and shape.local > 1 and shape.nodes * shape.local == shape.ranks


def _hierarchical(name: str, size: float, shape: GroupShape) -> Choice:
    """reduce_scatter inside each node, all_reduce of 1/k of the bytes on each rail at once, all_gather inside: one after the other."""
    if not splits(name, shape):
        raise Refused(_why_not(name, "hierarchical", shape, sorted({c.algorithm for c in choices(name, size, shape)})))
    inside = msgspec.structs.replace(shape, ranks=shape.local, nodes=1, inter=0.0)
    rail = msgspec.structs.replace(
        shape, ranks=shape.nodes, local=1, link="NET", intra=0.0, switched=False, inter=shape.inter / shape.local
    )
    parts = [
        min(choices("reduce_scatter", size, inside)),
        min(choices("all_reduce", size / shape.local, rail)),
        min(choices("all_gather", size, inside)),
    ]
    seconds, latency = sum(part.seconds for part in parts), sum(part.latency for part in parts)
    bandwidth = size * bus_factor(name, shape.ranks) / max(seconds - latency, 1e-12)
    wire, reach, sent = parts[1].wire, parts[1].reach * shape.local, size * bus_factor("all_reduce", shape.local)
    return Choice(seconds, latency, "hierarchical", parts[1].protocol, bandwidth, wire, reach, sent)


def _allowed(protocol: str, shape: GroupShape) -> bool:
    """LL128 needs NVLink inside the node (NCCL: at most NVB); LL and LL128 need ordered delivery between nodes, which EFA lacks.

    (AWS's network plugin sets NCCL_PROTO=simple there; p4de's and p5's timings, floors and gathers of up to 32 nodes, are those of Simple and
    NVLS. The plugin's tuner names LL and LL128 on p5en and p6, of which no timings tell the protocols apart.)
    """
    if shape.nodes > 1 and shape.efa and protocol != "Simple":
        return False
    return protocol != "LL128" or shape.link in ("NVL", "NVB") or shape.local == 1


def _nvls(shape: GroupShape) -> bool:
    return shape.switched and shape.arch in GROUPED and shape.local >= int(params()["bandwidth"]["nvls_least"])
