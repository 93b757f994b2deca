"""Common parts of NCCL's algorithms: bandwidths of links for collectives, latencies of hops, and the fill of pipelines.

Constants are in `params/collectives.toml`. Times are seconds, rates bytes per second.
"""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from sim.cost.collective.group import GroupShape
from sim.cost.device import TWO_DIES

PROTOCOLS = ("LL", "LL128", "Simple")


@cache
def params() -> dict[str, Any]:
    """The constants of `params/collectives.toml`, each with its unit and source there."""
    return tomllib.loads((Path(__file__).parents[1] / "params" / "collectives.toml").read_text("utf-8"))


def bus_factor(name: str, ranks: int) -> float:
    """busbw / algbw (nccl-tests, doc/PERFORMANCE.md)."""
    if name == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if name in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def scaled(microseconds: float, shape: GroupShape) -> float:
    """NCCL's own latency, in seconds, on this GPU: what a kernel takes to start and to pass a line on is so many cycles of its clock.

    GPUs of two dies take longer for the same: their flags and lines cross to the other die's cache.
    """
    table = params()["clock"]
    cycles = microseconds * 1e-6 * float(table["reference"]) * 1e9
    dies = float(table["two_dies"]) if shape.arch in TWO_DIES else 1.0
    return cycles * dies / (shape.clock or float(table["reference"]) * 1e9)


def gpu_generation(arch: str) -> str:
    """The architecture whose constants NCCL takes for `arch`: by compute capability, Volta, Ampere, Hopper or Blackwell (tuning.cc)."""
    digits = arch.removeprefix("sm")
    if not digits.isdigit():
        return arch
    capability = int(digits)
    return "sm100" if capability >= 100 else "sm90" if capability >= 90 else "sm80" if capability >= 80 else "sm70"


def fabric(shape: GroupShape) -> str:
    """`nvlink` or `pcie`: the links between the members inside one node."""
    return "nvlink" if shape.link in ("NVL", "NVB") else "pcie"


def _longer(hop: float, latency: float, typical: float) -> float:
    """Microseconds of a hop whose wire takes `latency` seconds, where the constant holds one of `typical` microseconds."""
    return max(0.1 * hop, hop + latency * 1e6 - typical)


def net_hop(key: str, at: int, shape: GroupShape) -> float:
    """Microseconds of one hop between nodes; `at` is the protocol's place in `PROTOCOLS`."""
    table = params()["latency"]
    hop = table[key]
    return _longer(float(hop[at] if isinstance(hop, list) else hop), shape.network_latency, float(table["wire_net"]))


def tree_switch_hop(shape: GroupShape) -> float:
    """Microseconds of one level of NVLSTree between nodes: what it takes over InfiniBand, and more where the wire is longer."""
    table = params()["latency"]
    return _longer(float(table["nvls_net"]), shape.network_latency, float(table["wire_net"]))


def over_switch(hop: float, crossings: int, shape: GroupShape) -> float:
    """Microseconds of what crosses the NVLinks between two GPUs so many times, one after the other: longer where the wires are. What goes over
    PCIe is fitted with the wires of its nodes, and stays."""
    if shape.local < 2 or fabric(shape) == "pcie":
        return hop
    typical = float(params()["latency"]["wire_nvlink"]) * len(shape.intra_links)
    return _longer(hop, crossings * shape.neighbour_latency, crossings * typical)


def inner_hop(key: str, at: int, shape: GroupShape) -> float:
    """Seconds of one hop inside a node. A ring over several nodes waits there for its proxies' posts to the NIC.

    The post costs what the CPU's vendor makes it, whatever the GPU, three times for Simple (NCCL's tuner, `netOverhead`).
    """
    table = params()["latency"]
    hop = float(table[f"{key}_{fabric(shape)}"][at])
    if shape.local > 1:
        typical = float(table["wire_nvlink"]) * len(shape.intra_links) if fabric(shape) == "nvlink" else float(table["wire_pcie"])
        hop = _longer(hop, shape.neighbour_latency, typical)
    # No wire makes up for the cycles that a GPU takes to pass a line on, which NVLink's hop is made of.
    seconds = scaled(hop, shape) if fabric(shape) == "nvlink" else max(hop * 1e-6, scaled(float(table[f"{key}_nvlink"][at]), shape))
    if shape.nodes == 1 or key == "tree":
        return seconds
    post = float(table["post_amd" if shape.amd else "post_intel"]) * (3.0 if PROTOCOLS[at] == "Simple" else 1.0)
    return max(seconds, post * 1e-6)


def levels(shape: GroupShape) -> int:
    """Height of a binary tree over the nodes."""
    return math.ceil(math.log2(shape.nodes)) if shape.nodes > 1 else 0


def by_arch(table: dict[str, Any], key: str, arch: str) -> float:
    """A value that may be given for an architecture (`key_sm80`, and those that NCCL counts with it), else the one for others (`key`)."""
    return float(table.get(f"{key}_{gpu_generation(arch)}", table[key]))


def intra_bandwidth(name: str, shape: GroupShape) -> float:
    """Bus bandwidth (bytes/s) inside a node for large messages."""
    table = params()["bandwidth"]
    kind = "all_reduce" if name in ("all_reduce", "reduce", "broadcast", "barrier") else "all_to_all" if name == "all_to_all" else "gather"
    wire = shape.intra * by_arch(table, "nvlink", shape.arch)
    if fabric(shape) == "pcie":
        way = "staged" if shape.staged else "direct"
        own = shape.nearest if kind == "all_to_all" else shape.intra
        return min(own * float(table["pcie"]), float(table[f"pcie_{way}_most"][("all_reduce", "gather", "all_to_all").index(kind)]) * 1e9)
    if kind == "all_to_all":
        return wire * float(table["all_to_all"])
    small = float(table["small_all_reduce" if kind == "all_reduce" else "small_other"])
    return wire * float(table["ring"]) * (1.0 - small / shape.local**2 if shape.switched else 1.0)


def message_rate(shape: GroupShape) -> float:
    """Bytes/s of one send inside a node. NVLink: a ring's share, as vidur's 64 MiB reach 229 GB/s on A100 and 349 on H100 (both 0.77)."""
    if fabric(shape) == "pcie":
        return intra_bandwidth("all_to_all", shape)
    table = params()["bandwidth"]
    return shape.intra * by_arch(table, "nvlink", shape.arch) * float(table["ring"])


def inter_bandwidth(shape: GroupShape) -> float:
    """Bytes/s of all NICs of the group on one node together, as rings and trees use them; less where a cable between the nodes is narrower."""
    table = params()["network"]
    return shape.inter * shape.crossing * float(table["efa" if shape.efa else "sockets" if shape.sockets else "rdma"])


def protocol_rate(bandwidth: float, protocol: str, shape: GroupShape) -> float:
    """Bytes/s of `protocol` where Simple carries `bandwidth`: a share of it, for LL with an upper limit."""
    table = params()["protocol"]
    rate = bandwidth * float(table[protocol])
    if protocol == "LL" and shape.nodes > 1:
        rate = min(rate, float(table["ll_max_amd" if shape.amd else "ll_max_intel"][0 if shape.nodes == 2 else 1]) * 1e9)
    elif protocol == "LL":
        rate = min(rate, by_arch(table, "ll_max", shape.arch) * 1e9)
    return rate


def payload_rate(protocol: str, shape: GroupShape) -> float:
    """Bytes/s of data that the links take at most while a protocol fills them: all NICs of a node, or inside one node a GPU's own links."""
    share = float(params()["protocol"][protocol])
    if shape.nodes > 1:
        return share * inter_bandwidth(shape)
    return share * (shape.nearest * float(params()["bandwidth"]["pcie"]) if fabric(shape) == "pcie" else message_rate(shape))


def lines_delay(size: float, shape: GroupShape) -> float:
    """Microseconds (over `scale`) that a ring's LL takes longer on all its channels than on one, where NVLink gives it many.

    A channel joins for every `ll_channel` bytes of a rank's share (NCCL's thread threshold); the wait grows with the ranks, not the steps.
    """
    table = params()["latency"]
    if fabric(shape) != "nvlink":
        return 0.0
    channels = max(1.0, size / (shape.ranks * float(table["ll_channel"])))
    return float(table["ll_channels"]) * shape.local * (1.0 - 1.0 / channels)


def ring_fill(size: float, shape: GroupShape, bandwidth: float) -> float:
    """Seconds until a ring's pipeline of slices runs full: a rank's first slice goes before any can be passed on.

    A slice is at most 1 MiB in each channel (NCCL's Simple protocol: 2 of 8 steps of 512 KiB), and at most the rank's share. GPUs of few NVLinks
    have few channels: each link holds one of the rings that NCCL finds, and each ring is taken twice.
    This is what `flow` has over `events` on one node where nothing contends: flow - ring_fill = events (`ring_all_reduce_events`).
    """
    if shape.local < 2 or shape.nodes > 1:
        return 0.0
    table, kind = params()["pipeline"], fabric(shape)
    most = float(table[f"slices_{kind}"])
    if kind == "nvlink" and not shape.amd:
        most = min(most, float(table["slices_link"]) * shape.intra / (float(table["link"]) * 1e9))
    return min(size / shape.ranks, most * bandwidth / shape.intra) / bandwidth


def fill(latency: float, carry: float, where: str) -> float:
    """Seconds that pipelining in chunks adds to latency + bytes / bandwidth (`carry`).

    k chunks over a depth of d hops take carry + latency d + carry d / k + latency k: with the best k the last two make
    2 sqrt(d latency carry) (as for any pipeline with a start-up cost). Chunks have a greatest size, so for large messages it ends at `cap` latencies.
    """
    table = params()["pipeline"]
    return min(2.0 * math.sqrt(float(table[f"{where}_depth"]) * latency * carry), float(table[f"{where}_cap"]) * latency)
