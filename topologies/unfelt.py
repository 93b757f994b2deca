"""Finds what-ifs that have no effect on the ranks of a plan, so that the user does not take an unchanged result for an answer."""

from __future__ import annotations

from topologies.graph import Topology

_ABOVE_LEAVES = ("oversubscription", "spines", "link.spine.rate", "link.spine.latency")
_ABOVE_SPINES = ("core_oversubscription",)
_NETWORK = (
    "nic.rate",
    "nic.latency",
    "link.net.rate",
    "link.net.latency",
    "rails",
    "pod",
    "block",
    "without=nic",
    "without=spine",
    "fail=nic",
    "fail=leaf",
)


def unfelt(topology: Topology, ranks: int) -> list[str]:
    """A sentence for each edit of the machine that has no effect on the first `ranks` ranks, because of their place."""
    found = []
    for edit in dict.fromkeys(topology.cluster.edits):
        why = _why(topology, ranks, *(part.strip() for part in edit.strip().removeprefix("fabric.").split("=", 1)))
        if why:
            found.append(f"{edit} has no effect: {why}")
    return found


def unmeasured(topology: Topology) -> list[str]:
    """A sentence for each edit of a device that does not change the costs that a calibration has measured."""
    keys = {edit: edit.partition("=")[0].strip() for edit in topology.cluster.edits}
    devices = {edit: key for edit, key in keys.items() if key.startswith(("gpu.", "cpu.flops", "cpu.bandwidth")) and key != "gpu.memory"}
    return [f"{edit} does not reach what the calibration has, which is of the device as it was: leave one of them out" for edit in devices]


def _why(topology: Topology, ranks: int, key: str, value: str) -> str:
    fabric = topology.cluster.fabric
    nodes = topology.nodes_of(ranks)
    if key == "cpu.clock":
        return "host work is that of the framework's table or of a calibration (steptwin probe); cpu.flops and cpu.bandwidth are what a CPU computes at"
    above = key in _ABOVE_LEAVES or (key == "fail" and value.startswith("spine:"))
    if fabric.rail_only and (above or key in _ABOVE_SPINES):
        return "there are no spines"
    if above and nodes <= fabric.pod:
        where = "the one node" if nodes == 1 else f"all {nodes} nodes hang on the same leaf switches, of {fabric.pod} nodes each"
        return f"{where}, below the spines" + ("" if nodes == 1 else f"; pod={max(1, nodes // 2)} puts them on two")
    if nodes == 1 and {key, f"{key}={value.partition(':')[0]}"} & {*_NETWORK} and not _kinds(topology, ranks) & {"NET", "PXN"}:
        return "the ranks are all on one node, and send nothing over its NICs"
    if key in _ABOVE_SPINES and (not fabric.block or nodes <= fabric.block_nodes):
        return f"no core switch is between the {nodes} nodes (block says how many leaves of nodes share spines)"
    if (key, value) in (("without", "p2p"), ("p2p", "none")) and _all_linked(topology, ranks):
        return "the GPUs of a node reach each other over NVLink, which stays; without=nvlink takes it away"
    return ""


def _all_linked(topology: Topology, ranks: int) -> bool:
    """True if all ranks of the first node reach each other over NVLink (or xGMI)."""
    found = _kinds(topology, ranks)
    return bool(found) and found <= {"NVL", "NVB"}


def _kinds(topology: Topology, ranks: int) -> set[str]:
    """Kinds of the paths between the ranks of the first node."""
    here = [rank for rank in range(min(ranks, topology.ranks_on(0))) if topology.node(rank) == 0]
    return {topology.path(a, b).kind for a in here for b in here if a != b}
