"""The links between switches that ranks' collectives and messages use, on a fabric that is oversubscribed or of which a part has
failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from sim.cost.collective.cables import cables, nodes_of
from sim.engine.fold import Crossing, Passage
from sim.mesh import NEIGHBOURS, Mesh
from topologies.graph import Topology


def crossing_of(mesh: Mesh, topology: Topology) -> Crossing | None:
    """The `Crossing` of these ranks; None where links between switches are always fast enough."""
    if not (topology.narrow or topology.rerouted) or topology.nodes_of(mesh.world) == 1:
        return None
    return lambda axes: _passages(mesh, topology, axes)


@lru_cache(maxsize=16)
def _passages(mesh: Mesh, topology: Topology, axes: tuple[str, ...]) -> tuple[Passage, ...]:
    return tuple(found for axis in axes for group in mesh.groups(axis) for found in _of_group(topology, axis, group))


def _of_group(topology: Topology, axis: str, group: tuple[int, ...]) -> Iterator[Passage]:
    """The passages of a group: of its collectives, and where members exchange with neighbours, of each member's messages to the next
    one and to the one before. None where the group lies on one node."""
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
    """(nodes below a leaf switch, nodes below the spines of a block), as far as there are such; () where their uplinks are fast enough."""
    fabric = topology.cluster.fabric
    return tuple(nodes for nodes in (fabric.pod, fabric.block_nodes) if nodes) if topology.narrow else ()


def pods_of(topology: Topology) -> tuple[int, ...]:
    """The same in ranks: how many are below each of `nodes_below`."""
    return tuple(nodes * topology.ranks_per_node for nodes in nodes_below(topology))


def regular(mesh: Mesh, topology: Topology) -> bool:
    """Whether each pod holds as many ranks as the others, on a fabric without scattered ranks and without a given number of spines.
    True on fabrics that are not oversubscribed."""
    cluster = topology.cluster
    even = all(mesh.world <= pod or mesh.world % pod == 0 for pod in pods_of(topology))
    return not topology.narrow or (even and not cluster.scatter and not cluster.fabric.spines)


def inner_axes(mesh: Mesh) -> tuple[str, ...]:
    """Axes that split the ranks of other axes in their own way: experts' axes within data parallelism, rings and exchanges of heads
    within cp, a smaller mesh within FSDP's."""
    experts = ("ep", "edp", "efsdp") if mesh.apart else ()
    kept = ("fsdp_inner",) if mesh.inner > 1 else ()
    return (*experts, *(("cp_ulysses", "cp_ring") if mesh.ulysses > 1 else ()), *kept)


def inner_cuts(mesh: Mesh, size: int) -> bool:
    """Whether the groups of some inner axis are spread differently over pods of `size` ranks."""
    spread = ({tuple(Counter(rank // size for rank in group).values()) for group in mesh.groups(axis)} for axis in inner_axes(mesh))
    return any(len(kinds) > 1 for kinds in spread)
