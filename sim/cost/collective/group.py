"""What a collective sees of the machine: how its members sit on nodes, and how fast they reach each other."""

from __future__ import annotations

import msgspec

from sim.cost.collective.rings import ring_rate
from topologies.graph import Topology
from topologies.hardware import Gpu, Nic
from topologies.path import Path


class GroupShape(msgspec.Struct, frozen=True):
    """A group of ranks on a machine. Rates are bytes per second in one direction."""

    ranks: int
    nodes: int
    local: int
    """Members on one node (the most)."""
    arch: str
    link: str
    """NVL (NVLink or xGMI), NET inside a node never; PIX, PXB, PHB, SYS: PCIe."""
    intra: float
    """Per GPU, to its peers inside the node."""
    switched: bool
    """All peers are reached at the full rate (NVSwitch), and the switch can reduce (sm90 and later)."""
    inter: float
    """All NICs of the group's members on one node together, while its siblings use theirs."""
    efa: bool
    """The NICs are AWS's EFA."""
    spread: float
    """Share of `inter` that is left while every node sends to every other: an oversubscribed fabric carries less."""
    intra_links: tuple[str, ...]
    inter_links: tuple[str, ...]
    """Cables that one NIC's flow takes: to the next node, and over the spines where the ring closes. The first is the NIC's own."""
    neighbour_latency: float
    network_latency: float
    amd: bool = False
    """The hosts have AMD CPUs, whose posts to the NIC take longer (NCCL's tuner)."""
    staged: bool = False
    """Some members reach each other through host memory alone."""
    sockets: bool = False
    """The NICs are Ethernet without RDMA, or GPUDirect-TCPX: NCCL's socket transport."""
    nearest: float = 0.0
    """Per GPU, to its nearest peer inside the node: the GPU's own link, where `intra` is the ring's slowest hop."""
    exchange: float = 0.0
    """Seconds, for each byte of a slice, that the most loaded link of a PCIe node takes while every member sends a slice to every other."""
    crossing: float = 1.0
    """Share of `inter` that rings and trees keep on the narrowest cable between the nodes. (Fewer spines leave it whole: of a ring in the
    order of the nodes one flow for each rail leaves a leaf.)"""
    sharp: bool = False
    """The fabric is InfiniBand, whose switches can reduce (SHARP)."""
    clock: float = 0.0
    """The GPUs' boost clock in Hz; 0: not known."""


def group_shape(topology: Topology, ranks: tuple[int, ...], siblings: int = 1) -> GroupShape:
    """The shape of `ranks` (in group order); `siblings` equal groups communicate at the same moment."""
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(topology.node(rank), []).append(rank)
    inside = max(nodes.values(), key=len)
    device = topology.device(ranks[0])
    arch = device.arch if isinstance(device, Gpu) else "cpu"
    near, intra = _neighbour(topology, inside)
    first = next(iter(nodes.values()))
    outside = next((members for node, members in nodes.items() if node != topology.node(ranks[0])), None)
    far = topology.path(first[0], outside[0]) if outside else None
    wires = [nic.name.lower() for nic in _nics(topology, ranks[0])]
    return GroupShape(
        ranks=len(ranks),
        nodes=len(nodes),
        local=len(inside),
        arch=arch,
        link=near.kind if near else "NET",
        intra=intra,
        switched=_switched(topology, inside),
        inter=_inter(topology, first, siblings) if far else 0.0,
        spread=_spread(topology, nodes, _inter(topology, first, siblings)) if far else 1.0,
        efa=any("efa" in name for name in wires),
        sockets=any(name.startswith(("ethernet", "tcp")) for name in wires),
        nearest=near.rate if near else 0.0,
        exchange=_exchange(topology, inside) if near and near.kind not in ("NVL", "NVB") else 0.0,
        crossing=_crossing(topology, nodes) if far else 1.0,
        sharp=any(name.startswith("ib-") for name in wires),
        clock=device.clock if isinstance(device, Gpu) else 0.0,
        intra_links=near.links if near else (),
        inter_links=tuple(dict.fromkeys(link for path in _crossings(topology, nodes) for link in path.links if "net/" in link)),
        neighbour_latency=near.latency if near else 0.0,
        network_latency=far.latency if far else 0.0,
        amd="epyc" in topology.host(topology.node(ranks[0])).name.lower(),
        staged=any(topology.path(inside[0], other).staged for other in inside[1:]),
    )


def _nics(topology: Topology, rank: int) -> tuple[Nic, ...]:
    use = topology.nic_of(rank)
    return use.nics if use is not None else ()


def _neighbour(topology: Topology, members: list[int]) -> tuple[Path | None, float]:
    """The way from a member to the next in a ring, and the rate of all rings: NVLinks where they close one, else the PCIe path."""
    if len(members) < 2:
        return None, 0.0
    paths = [topology.path(members[0], other) for other in members[1:]]
    if _switched(topology, members):
        return paths[0], paths[0].rate
    if any(path.kind in ("NVL", "NVB") for path in paths):
        linked = ring_rate(topology, members)
        if linked:
            return next(path for path in paths if path.kind in ("NVL", "NVB")), linked
        # Bridged pairs: the ring leaves them over PCIe, at the pace of its slowest hop.
        paths = [path for path in paths if path.kind not in ("NVL", "NVB")] or paths
    shared = sum(1 for path in paths if set(path.links) & set(paths[0].links))
    return paths[0], min(path.rate for path in paths) / (2 if paths[0].staged and shared > 2 else 1)


def _exchange(topology: Topology, members: list[int]) -> float:
    """The most loaded link's slices over its rate: switches' uplinks and the sockets' link carry those of many pairs."""
    loads: dict[str, int] = {}
    for a in members:
        for b in members:
            if a != b:
                path = topology.path(a, b)
                for link, times in getattr(path, "loads", ()) or tuple((link, 1) for link in path.links):
                    loads[link] = loads.get(link, 0) + times
    return max(times / topology.rates[link] for link, times in loads.items())


def _switched(topology: Topology, members: list[int]) -> bool:
    return len(members) > 1 and any("nvswitch" in link for link in topology.path(members[0], members[1]).links)


def _crossings(topology: Topology, nodes: dict[int, list[int]]) -> list[Path]:
    """Hops of a ring over the nodes: to the next one, and from the last back to the first, which crosses the spines where there are any."""
    held = list(nodes.values())
    return [topology.path(held[0][0], held[1][0]), topology.path(held[-1][0], held[0][0])] if len(held) > 1 else []


def _crossing(topology: Topology, nodes: dict[int, list[int]]) -> float:
    """The narrowest cable of the hops between nodes over the first, a NIC's own."""
    rates = [topology.rates[link] for path in _crossings(topology, nodes) for link in path.links if "net/" in link]
    return min(1.0, min(rates) / rates[0]) if rates else 1.0


def _spread(topology: Topology, nodes: dict[int, list[int]], inter: float) -> float:
    """Share of the NICs' rate that the fabric carries while every node sends to every other: what leaves a leaf shares its uplinks."""
    fabric = topology.cluster.fabric
    uplinks = [topology.rates[link] for path in _crossings(topology, nodes)[1:] for link in path.links if ">net/spine" in link]
    pod = min(fabric.pod, len(nodes))
    if not uplinks or pod >= len(nodes):
        return 1.0
    leaving = (len(nodes) - pod) / (len(nodes) - 1)
    carried = min(uplinks) * fabric.spine_count * fabric.rails
    return min(1.0, carried / (pod * inter * leaving)) if inter else 1.0


def _inter(topology: Topology, members: list[int], siblings: int) -> float:
    """All NICs that the members on one node use; with siblings beside them, only their share."""
    seen: dict[str, float] = {}
    share = 0.0
    for member in members:
        use = topology.nic_of(member)
        if use is None:
            continue
        share += use.rate
        for name, nic in zip(use.names, use.nics, strict=True):
            seen[name] = nic.rate
    whole = sum(seen.values())
    return min(whole, share) if siblings > 1 else whole
