"""Links between switches that ranks' meetings take, on a fabric that passes less up than it takes from below, or of which a part has failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from sim.cost.collective.cables import cables, nodes_of
from sim.engine.fold import Crossing, Passage
from sim.mesh import NEIGHBOURS, Mesh
from topologies.graph import Topology


def crossing_of(mesh: Mesh, topology: Topology) -> Crossing | None:
    """None where ranks never lack rate between switches."""
    if not (topology.narrow or topology.rerouted) or topology.nodes_of(mesh.world) == 1:
        return None
    return lambda axes: _passages(mesh, topology, axes)


@lru_cache(maxsize=16)
def _passages(mesh: Mesh, topology: Topology, axes: tuple[str, ...]) -> tuple[Passage, ...]:
    return tuple(found for axis in axes for group in mesh.groups(axis) for found in _of_group(topology, axis, group))


def _of_group(topology: Topology, axis: str, group: tuple[int, ...]) -> Iterator[Passage]:
    """Of its collectives, and where members exchange with neighbours, of what each sends to the next and to the one before."""
    nodes = nodes_of(topology, group)
    if len(nodes) == 1:
        return
    yield Passage(axis, group, _between(cables(topology, nodes)))
    for way in (1, -1) if axis in NEIGHBOURS else ():
        for at, rank in enumerate(group):
            peer = group[(at + way) % len(group)]
            if topology.node(peer) != topology.node(rank):
                yield Passage(f"{axis}{way:+d}", (rank,), _between(topology.path(rank, peer).links))


def _between(links: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(link for link in links if link.startswith("net/") and ">net/" in link)


def nodes_below(topology: Topology) -> tuple[int, ...]:
    """Nodes below a leaf's uplinks, and below those of the spines of a block; none where these never lack rate."""
    fabric = topology.cluster.fabric
    return tuple(nodes for nodes in (fabric.pod, fabric.block_nodes) if nodes) if topology.narrow else ()


def pods_of(topology: Topology) -> tuple[int, ...]:
    """Ranks below each of these (`nodes_below`)."""
    return tuple(nodes * topology.ranks_per_node for nodes in nodes_below(topology))


def regular(mesh: Mesh, topology: Topology) -> bool:
    """Does each pod hold as many ranks as the others, and are there as many spines as flows are spread over?"""
    cluster = topology.cluster
    even = all(mesh.world <= pod or mesh.world % pod == 0 for pod in pods_of(topology))
    return not topology.narrow or (even and not cluster.scatter and not cluster.fabric.spines)


def inner_axes(mesh: Mesh) -> tuple[str, ...]:
    """Axes that cut others' ranks otherwise: experts' within data parallelism, rings and exchanges of heads within cp, a smaller mesh within FSDP's."""
    experts = ("ep", "edp", "efsdp") if mesh.apart else ()
    kept = ("fsdp_inner",) if mesh.inner > 1 else ()
    return (*experts, *(("cp_ulysses", "cp_ring") if mesh.ulysses > 1 else ()), *kept)


def inner_cuts(mesh: Mesh, size: int) -> bool:
    """Are groups of such axes spread over pods of so many ranks otherwise than others of theirs?"""
    spread = ({tuple(Counter(rank // size for rank in group).values()) for group in mesh.groups(axis)} for axis in inner_axes(mesh))
    return any(len(kinds) > 1 for kinds in spread)
