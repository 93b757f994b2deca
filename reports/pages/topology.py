"""The page of a machine or cluster: its parts, the links of a node, and the paths from rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.figures.machine import machine
from reports.page import Card, Page
from reports.words import ranks
from sim.files.machinefile import machine_words
from topologies.graph import Topology
from topologies.summary import summary

_LINKS = {
    "dram": "dram: memory of a socket",
    "engine": "engine: copy engine of a GPU",
    "nvlink": "nvlink: GPU to NVSwitch or GPU",
    "xgmi": "xgmi: GPU to GPU",
    "c2c": "c2c: CPU to GPU",
    "pcie": "pcie: PCIe",
    "numa": "numa: inside a socket",
    "upi": "upi: between sockets",
    "net": "net: NIC to network switch",
    "spine": "spine: leaf to spine switch, spine to core",
}
_PATHS = {
    "LOC": "the rank itself",
    "NVL": "NVLink",
    "NVB": "NVLink through another GPU",
    "C2C": "the link between CPU and GPU",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PXN": "another GPU's NIC, reached by NVLink",
    "PHB": "the CPU's PCIe root",
    "SYS": "the link between sockets",
    "NET": "the network",
}


_COUNTED = (
    "Each cable inside the node counts twice, once for each direction; those of its NICs (net), and of one leaf switch to the spines (spine), once. "
    "Rate of one direction, latency of one hop."
)


def topology_page(topology: Topology) -> str:
    """The text of a machine's or cluster's page: the first node with its network, its links, and how rank 0 reaches other ranks."""
    found = summary(topology)
    device = f"{found['device']}, {found['memory']} at {found['memory bandwidth']}"
    page = Page(machine_words(topology), f"{ranks(topology.gpus)} on {topology.nodes} node{'s' if topology.nodes > 1 else ''}; {device}.")
    page.cards(_cards(topology, found))
    page.section(
        "What is joined to what",
        "The first node, host memory at the bottom, network on top. Rates are of one direction; hover an edge for both, and its latency.",
    )
    page.figure(machine(topology, 1))
    page.section("Links of a node", _COUNTED)
    rows = [(_LINKS.get(row["link"], row["link"]), str(row["count"]), row["rate"], row["latency"]) for row in found["rows"]]
    page.table(("kind", "directed links", "rate", "latency"), rows)
    page.section("How rank 0 reaches other ranks", "Each kind of path once, in NCCL's words.")
    page.table(
        ("path", "first rank reached so"), [(f"{kind}: {_PATHS.get(kind, kind)}", way) for kind, way in found["paths from rank 0"].items()]
    )
    if found.get("source"):
        page.note(f"Source of the description: {found['source']}")
    return page.text("Made by StepTwin. Rates are decimal (1 GB/s = 1e9 bytes per second), in one direction.")


def _cards(topology: Topology, found: Mapping[str, Any]) -> list[Card]:
    nics = found["nics"]
    memory = f"{found['memory']} each, {found['memory bandwidth']}"
    cards: list[Card] = [
        (f"{topology.ranks_per_node} x {found['device']}", "ranks of a node", memory),
        (f"{found['sockets']} x {topology.host(0).name}", "host", f"{found['cores']} cores"),
    ]
    if topology.kind == "cpu":  # ranks are processes, and memory belongs to the sockets
        cards = [
            (str(topology.ranks_per_node), "ranks of a node", "processes that share its cores and memory"),
            (f"{found['sockets']} x {topology.host(0).name}", "host", f"{found['cores']} cores; {memory}"),
        ]
    if nics:
        cards.append((", ".join(f"{number} x {name}" for name, number in nics.items()), "network", "per node"))
    peak = found.get("peak TFLOP/s")
    if peak:
        kind = "bf16" if "bf16" in peak else next(iter(peak))
        rest = ", ".join(f"{name} {rate:,.0f}" for name, rate in peak.items() if name != kind)
        cards.append((f"{peak[kind]:,.0f} TFLOP/s", f"peak, {kind} dense", rest))
    return cards
