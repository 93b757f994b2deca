"""Makes a networkx graph of the topology, to draw it or to run networkx algorithms on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from topologies.cluster import Cluster
from topologies.machine import kind_of
from topologies.rates import Rates, Site

if TYPE_CHECKING:
    import networkx


def graph(cluster: Cluster, places: Mapping[int, Site], rates: Rates, nodes: int) -> networkx.DiGraph[Any]:
    """Returns the graph of the first `nodes` nodes, the leaf switches of their NICs and, where leaves are connected, the spines and core
    switches. Vertices have `kind`, `node` (-1 for switches) and `label`; directed edges have `kind`, `rate` in bytes/s and `latency` in
    s."""
    import networkx

    found: networkx.DiGraph[Any] = networkx.DiGraph(name=cluster.name)
    for node in range(min(nodes, cluster.nodes)):
        _node(found, node, places[node])
    if cluster.nodes > 1:
        _network(found, cluster, places, rates, min(nodes, cluster.nodes))
    return found


def _node(found: networkx.DiGraph[Any], node: int, site: Site) -> None:
    machine = site.machine
    for short, link in machine.links.items():
        a, arrow, b = short.partition(">")
        if not arrow:
            a, b = short.partition("@")[2], short
        for name in (a, b):
            found.add_node(f"n{node}/{name}", kind=_kind(name), node=node, label=_label(machine.gpus, machine.nics, name))
        found.add_edge(f"n{node}/{a}", f"n{node}/{b}", kind=link.kind, rate=link.rate, latency=link.latency)
        if not arrow:
            found.add_edge(f"n{node}/{b}", f"n{node}/{a}", kind=link.kind, rate=link.rate, latency=link.latency)


def _kind(name: str) -> str:
    if name.startswith("dram@"):
        return "dram"
    return "engine" if name.endswith((".h2d", ".d2h")) or name.startswith("copy@") else kind_of(name) or name


def _switch(name: str) -> str:
    return next(kind for kind in ("leaf", "spine", "core") if name.startswith(f"net/{kind}"))


def _label(gpus: Mapping[str, Any], nics: Mapping[str, Any], name: str) -> str:
    part = gpus.get(name) or nics.get(name)
    return f"{name} {part.name}" if part else name


def _network(found: networkx.DiGraph[Any], cluster: Cluster, places: Mapping[int, Site], rates: Rates, nodes: int) -> None:
    fabric = cluster.fabric
    leaves: dict[str, None] = {}
    names = []
    for node in range(nodes):
        for nic, rail in places[node].rails.items():
            leaf = fabric.leaf(node, rail)
            leaves[leaf] = None
            names += [(f"n{node}/{nic}", leaf), (leaf, f"n{node}/{nic}")]
    if len(leaves) > 1 or cluster.nodes > fabric.pod:
        for node in range(0, nodes, fabric.pod):
            for i in range(fabric.spine_count):
                spine = fabric.spine_name(node // fabric.pod, i)
                ends = [leaf for leaf in leaves if leaf.startswith(f"net/leaf{node // fabric.pod}.")]
                ends += [f"net/core{i}"] if 0 < fabric.block_nodes < cluster.nodes else []
                names += [pair for end in ends for pair in ((end, spine), (spine, end))]
    for a, b in names:
        if f"{a}>{b}" in rates:
            link = rates.link(f"{a}>{b}")
            for name in (a, b):
                if name.startswith("net/"):
                    found.add_node(name, kind=_switch(name), node=-1, label=name.removeprefix("net/"))
            found.add_edge(a, b, kind=link.kind, rate=link.rate, latency=link.latency)
