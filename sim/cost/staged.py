"""Messages and collectives on tensors in the host memory of GPU ranks (a parameter server, gradients summed on the CPU). gloo moves them, as with
torch's backend "cpu:gloo,cuda:nccl"; they use no NVLink and no peer-to-peer path between devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sim.cost.collective.gloo import gloo_cost
from sim.cost.price import Cost
from topologies.graph import Topology


def staged(name: str, size: int, members: Sequence[int], topology: Topology, network: Cost) -> Cost:
    """The cost of the message or collective `name` of `size` bytes between the processes of `members`. `network`: its cost on the machine's own links.
    Inside one node gloo's cost counts; between nodes the slower of the two, and where that is gloo the links carry the same bytes at a lower rate."""
    own = gloo_cost(name, size, len(members), ())
    nodes = [topology.node(rank) for rank in members]
    share = nodes.count(nodes[0]) / len(nodes)
    cores = tuple((f"n{nodes[0]}.{resource}", amount * share) for resource, amount in own.uses)
    if len(set(nodes)) == 1:
        return Cost(own.seconds, own.source, uses=cores)
    network = replace(network, elsewhere=())
    if network.seconds >= own.seconds:
        return network
    slower = network.seconds / own.seconds
    return replace(network, seconds=own.seconds, source=own.source, uses=tuple((link, amount * slower) for link, amount in network.uses))
