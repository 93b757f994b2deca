"""Messages and sums of tensors in the host memory of GPU ranks (a parameter server, gradients summed on the CPU): gloo moves them, as
torch's "cpu:gloo,cuda:nccl" does. NVLink and the devices' peer paths carry nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sim.cost.collective.gloo import gloo_cost
from sim.cost.price import Cost
from topologies.graph import Topology


def staged(name: str, size: int, members: Sequence[int], topology: Topology, network: Cost) -> Cost:
    """`size` bytes between the hosts' processes of `members`. `network` is what the machine's own links would take: between nodes the slower of
    the two counts, and the links are used for as long."""
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
