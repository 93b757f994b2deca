"""Groups of ranks that lie on several nodes."""

from __future__ import annotations

from sim.mesh import Mesh
from topologies.graph import Topology


def astride(mesh: Mesh, topology: Topology, axis: str) -> tuple[int, ...]:
    """The first group along `axis` whose ranks lie on several nodes; () where each has one."""
    if topology.nodes == 1 or mesh.size(axis) == 1 or mesh.world <= topology.ranks_per_node:
        return ()
    return next((group for group in mesh.groups(axis) if len({topology.node(rank) for rank in group}) > 1), ())
