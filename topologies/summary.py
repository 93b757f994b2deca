"""A topology in one table: what `steptwin topology show` prints, for people (`summary`) and for programs (`facts`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from topologies.fabric import Fabric
from topologies.graph import Topology
from topologies.hardware import Gpu
from topologies.machine import Machine
from topologies.units import show_duration, show_rate, show_size


def facts(topology: Topology) -> dict[str, Any]:
    """Devices, host and links of the first node, and how rank 0 reaches other ranks: numbers, whose unit is in their key. Rates are per
    direction."""
    machine, device = topology.machine(0), topology.device(0)
    links = Counter((link.kind, link.rate, link.latency) for link in machine.links.values())
    links.update(_cables(topology))
    found: dict[str, Any] = {
        "rows": [
            {"link": kind, "count": count, "bytes_per_s": rate, "latency_s": latency}
            for (kind, rate, latency), count in sorted(links.items())
        ],
        "name": topology.name,
        "nodes": topology.nodes,
        "ranks": topology.gpus,
        "device": device.name,
        "memory_bytes": device.memory,
        "memory_bytes_per_s": device.bandwidth or _dram(machine),
        "machines": [{"name": run.machine.name, "nodes": run.count} for run in topology.cluster.runs],
        "peak_flops_per_s": dict(device.flops) if isinstance(device, Gpu) else {},
        "sockets": len(machine.sockets),
        "cores": topology.cores(0),
        "nics": dict(Counter(nic.name for nic in machine.nics.values() for _ in range(nic.count))),
        "paths": _paths(topology),
        "network": _network(topology.cluster.fabric) if topology.nodes > 1 else None,
    }
    return found | ({"source": machine.source} if machine.source else {})


def summary(topology: Topology) -> dict[str, Any]:
    """The same in words, without what there is none of."""
    said = facts(topology)
    found: dict[str, Any] = {
        "rows": [
            row | {"rate": show_rate(row.pop("bytes_per_s")), "latency": show_duration(row.pop("latency_s"))} for row in said.pop("rows")
        ],
        **{key: said[key] for key in ("name", "nodes", "ranks", "device")},
        "memory": show_size(said["memory_bytes"]),
        "memory bandwidth": show_rate(said["memory_bytes_per_s"]),
    }
    if topology.cluster.edits:
        found["changed by"] = ", ".join(topology.cluster.edits)
    if len(said["machines"]) > 1:
        runs = (f"{run['nodes']}x {run['name']}" for run in said["machines"])
        found["machines"] = f"{' + '.join(runs)}; what follows is of the first"
    if said["peak_flops_per_s"]:
        found["peak TFLOP/s"] = {kind: round(rate / 1e12, 1) for kind, rate in said["peak_flops_per_s"].items()}
    found |= {key: said[key] for key in ("sockets", "cores", "nics")}
    if said["paths"]:
        found["paths from rank 0"] = {path["kind"]: _way(path) for path in said["paths"]}
    if said["network"]:
        found["network"] = _switches(said["network"])
    return found | ({"source": said["source"]} if "source" in said else {})


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


def _network(fabric: Fabric) -> dict[str, Any]:
    """The switches between the nodes."""
    core = {"block_nodes": fabric.block_nodes, "core_oversubscription": fabric.core_oversubscription} if fabric.block else {}
    return {
        "rails": fabric.rails,
        "leaf_nodes": fabric.pod,
        "spines": fabric.spine_count,
        "oversubscription": fabric.oversubscription,
    } | core


def _switches(network: dict[str, Any]) -> str:
    """The same in words."""
    words = [f"{_count(network['rails'], 'rail')}, leaf switches of {_count(network['leaf_nodes'], 'node')}"]
    if not network["spines"]:
        return f"{words[0]}, no spine over them"
    words.append(f"{_count(network['spines'], 'spine')} over them, {network['oversubscription']:g} : 1")
    if "block_nodes" in network:
        words.append(f"core switches over blocks of {_count(network['block_nodes'], 'node')}, {network['core_oversubscription']:g} : 1")
    return ", ".join(words)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _paths(topology: Topology) -> list[dict[str, Any]]:
    """Each kind of path from rank 0 once, to the first rank that is reached by it; none where there is one rank."""
    seen: dict[str, dict[str, Any]] = {}
    ends = [*range(1, topology.ranks_on(0)), *([topology.ranks_on(0)] if topology.nodes > 1 else [])]
    for rank in ends:
        path = topology.path(0, rank)
        ways = {"bytes_per_s": path.rate, "latency_s": path.latency, "links": len(path.links), "through_host_memory": path.staged}
        seen.setdefault(path.kind, {"kind": path.kind, "rank": rank} | ways)
    return list(seen.values())


def _way(path: dict[str, Any]) -> str:
    how = ", through host memory" if path["through_host_memory"] else ""
    return f"rank {path['rank']}: {show_rate(path['bytes_per_s'])}, {show_duration(path['latency_s'])}, {path['links']} links{how}"
