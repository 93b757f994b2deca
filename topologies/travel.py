"""Paths between ranks: inside a node, and from node to node over NICs, leaves and spines.

A rank uses the NIC with affinity to its device. On a rail-optimised fabric a flow to another rail first goes over NVLink to the GPU
whose NIC is on the target's rail (NCCL's PXN, 2.12); without such a GPU it goes over a spine.
"""

from __future__ import annotations

from itertools import pairwise

from topologies.affinity import NicUse
from topologies.cluster import full
from topologies.errors import BadInput
from topologies.fabric import Fabric
from topologies.rates import Site
from topologies.route import Leg

End = tuple[int, Site, int]
"""(node, its site, the rank's slot on it)."""


def inside(site: Site, slot_a: int, slot_b: int) -> Leg | None:
    """The path between two different ranks of one node; None where nothing inside the node connects them."""
    machine = site.machine
    if machine.gpus:
        return site.router.leg(site.device(slot_a), site.device(slot_b))
    # Processes of a CPU host: one writes shared memory, the other reads it, over the socket link where they sit apart.
    home_a, home_b = (machine.home(site.device(slot)) for slot in (slot_a, slot_b))
    bus = machine.memory_bus(home_a)
    if home_a == home_b:
        return Leg((bus, bus), "PHB", staged=True)
    leg = site.router.tree(home_a, home_b)
    return Leg((bus, bus, *leg.links), "SYS", staged=True) if leg else None


def across(fabric: Fabric, a: End, b: End) -> tuple[tuple[str, ...], str, bool]:
    """(links, kind, staged) of the path between two ranks over the network. Raises `BadInput` where there is none."""
    (node_a, site_a, _), (node_b, site_b, slot_b) = a, b
    use_b = _use(b)
    nic_b = use_b.names[node_a % len(use_b.names)]
    rail = site_b.rails[nic_b]
    first, nic_a = _leave(a, node_b, rail)
    leaf_a, leaf_b = fabric.leaf(node_a, site_a.rails[nic_a]), fabric.leaf(node_b, rail)
    between: tuple[str, ...] = (leaf_a,)
    if leaf_a != leaf_b:
        # The destination's place below its leaf, so that destinations of one leaf are spread over the spines.
        same = [nic for nic, at in site_b.rails.items() if at == rail]
        key = (
            node_b % fabric.pod * len(same) + same.index(nic_b) + (rail if fabric.block else 0)
        )  # rails share a spine's cables to the core
        between = (leaf_a, *fabric.between(node_a // fabric.pod, leaf_a, node_b // fabric.pod, leaf_b, key), leaf_b)
    hops = (f"n{node_a}/{nic_a}", *between, f"n{node_b}/{nic_b}")
    last = _near(site_b, nic_b, slot_b, inward=True)
    links = (*full(node_a, first.links), *(f"{u}>{v}" for u, v in pairwise(hops)), *full(node_b, last.links))
    return links, "PXN" if first.kind == "PXN" else "NET", first.staged or last.staged


def _leave(a: End, node_b: int, rail: int) -> tuple[Leg, str]:
    """The sender's path to a NIC, and that NIC: its own NIC on the receiver's rail; else the NIC of another GPU on that rail, over NVLink
    (PXN); else its own NIC on another rail. PXN is also used where the direct path goes through host memory, as after a failure of the own
    NIC."""
    _, site, slot = a
    use = _use(a)
    own = next((nic for nic in use.names if site.rails[nic] == rail), None)
    nic = own or use.names[node_b % len(use.names)]
    direct = _near(site, nic, slot)
    if not site.machine.gpus or (own and not direct.staged):
        return direct, nic
    gpu = site.device(slot)
    beside = _over(site, gpu, rail) if own is None else None
    if beside is None and direct.staged:
        beside = _over(site, gpu, site.rails[nic])
        beside = None if beside is None or beside[0].staged else beside
    return beside or (direct, nic)


def _over(site: Site, gpu: str, rail: int) -> tuple[Leg, str] | None:
    """The path over NVLink to a GPU whose NIC is on the rail, and on to that NIC; None where there is no other such GPU."""
    owner = site.owner(rail, gpu)
    if owner is None or owner[0] == gpu:
        return None
    over, out = site.router.leg(gpu, owner[0]), site.router.leg(*owner)
    assert over is not None and out is not None
    return Leg(over.links + out.links, "PXN", out.staged), owner[1]


def _use(end: End) -> NicUse:
    node, site, slot = end
    use = site.nic_use(slot)
    if use is None:
        raise BadInput(
            f"n{node}/{site.device(slot)} of machine '{site.machine.name}' is disconnected: it reaches no NIC. "
            "Give the node a nic in its [tree], or undo the fail= or without= that took its last link"
        )
    return use


def _near(site: Site, nic: str, slot: int, inward: bool = False) -> Leg:
    """The path from a rank's device to its NIC, or back (`inward`); on a CPU host through the memory of the rank's socket. Raises
    `BadInput`."""
    device = site.device(slot)
    if site.machine.gpus:
        leg = site.router.leg(nic, device) if inward else site.router.leg(device, nic)
    else:
        home = site.machine.home(device)
        way = site.router.tree(nic, home) if inward else site.router.tree(home, nic)
        bus = site.machine.memory_bus(home)
        leg = Leg((*way.links, bus) if inward else (bus, *way.links), way.kind) if way else None
    if leg is None:
        raise BadInput(f"machine '{site.machine.name}' is disconnected: {device} and {nic} are not joined")
    return leg
