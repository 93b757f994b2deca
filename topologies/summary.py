"""A topology in one table: what `steptwin topology show` prints."""

from __future__ import annotations

from collections import Counter
from typing import Any

from topologies.fabric import Fabric
from topologies.graph import Topology
from topologies.hardware import Gpu
from topologies.machine import Machine
from topologies.units import show_duration, show_rate, show_size


def summary(topology: Topology) -> dict[str, Any]:
    """Devices, host and links of the first node, and how rank 0 reaches other ranks. Rates are per direction."""
    machine, device = topology.machine(0), topology.device(0)
    links = Counter((link.kind, link.rate, link.latency) for link in machine.links.values())
    links.update(_cables(topology))
    rows = [
        {"link": kind, "count": count, "rate": show_rate(rate), "latency": show_duration(latency)}
        for (kind, rate, latency), count in sorted(links.items())
    ]
    found: dict[str, Any] = {
        "rows": rows,
        "name": topology.name,
        "nodes": topology.nodes,
        "ranks": topology.gpus,
        "device": device.name,
        "memory": show_size(device.memory),
        "memory bandwidth": show_rate(device.bandwidth or _dram(machine)),
    }
    others = [f"{run.count}x {run.machine.name}" for run in topology.cluster.runs]
    if len(others) > 1:
        found["machines"] = f"{' + '.join(others)}; what follows is of the first"
    if isinstance(device, Gpu):
        found["peak TFLOP/s"] = {kind: round(rate / 1e12, 1) for kind, rate in device.flops.items()}
    found |= {"sockets": len(machine.sockets), "cores": topology.cores(0), "nics": dict(Counter(nic.name for nic in machine.nics.values()))}
    if topology.gpus > 1:
        found["paths from rank 0"] = _paths(topology)
    if topology.nodes > 1:
        found["network"] = _network(topology.cluster.fabric)
    if machine.source:
        found["source"] = machine.source
    return found


def _cables(topology: Topology) -> Counter[tuple[str, float, float]]:
    """Cables of the first node to its leaves (`net`), and of one leaf to the spines over it (`spine`): what `link.KIND.rate` means."""
    found: Counter[tuple[str, float, float]] = Counter()
    for name in topology.rates if topology.nodes > 1 else ():
        if (name.startswith("n0/") and ">net/" in name) or name.startswith("net/leaf0.0>net/spine"):
            link = topology.link(name)
            found[link.kind, link.rate, link.latency] += 1
    return found


def _dram(machine: Machine) -> float:
    """What a processor's own memory gives, where no device has its own."""
    return sum(link.rate for link in machine.links.values() if link.kind == "dram")


def _network(fabric: Fabric) -> str:
    """The switches between the nodes, in words."""
    words = [f"{_count(fabric.rails, 'rail')}, leaf switches of {_count(fabric.pod, 'node')}"]
    words.append(f"{_count(fabric.spine_count, 'spine')} over them, {fabric.oversubscription:g} : 1")
    if fabric.block:
        words.append(f"core switches over blocks of {_count(fabric.block_nodes, 'node')}, {fabric.core_oversubscription:g} : 1")
    return ", ".join(words)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _paths(topology: Topology) -> dict[str, str]:
    """Each kind of path once, to the first rank that is reached by it."""
    seen: dict[str, str] = {}
    ends = [*range(1, topology.ranks_on(0)), *([topology.ranks_on(0)] if topology.nodes > 1 else [])]
    for rank in ends:
        path = topology.path(0, rank)
        how = ", through host memory" if path.staged else ""
        seen.setdefault(path.kind, f"rank {rank}: {show_rate(path.rate)}, {show_duration(path.latency)}, {len(path.links)} links{how}")
    return seen
