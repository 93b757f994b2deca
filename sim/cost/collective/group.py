"""The machine from the view of a collective: how its members are placed on nodes, and how fast their links are."""

from __future__ import annotations

import math

import msgspec

from sim.cost.collective.cables import cables, channels, crossing, flows, nodes_of, spread
from sim.cost.collective.rings import ring_rate
from topologies.errors import Refused
from topologies.graph import Topology
from topologies.hardware import Cpu, Gpu
from topologies.path import Path

_LINKED = ("NVL", "NVB")
"""Kinds of paths over NVLink or xGMI."""


class GroupShape(msgspec.Struct, frozen=True):
    """A group of ranks on a machine. Rates are bytes per second in one direction."""

    ranks: int
    nodes: int
    local: int
    """Members on one node (the most)."""
    arch: str
    link: str
    """How neighbours inside a node are joined, in NCCL's words: NVL, NVB (NVLink or xGMI), PIX, PXB, PHB, SYS (PCIe); NET where each node has one member."""
    intra: float
    """Bytes/s of one GPU to its peers inside the node."""
    switched: bool
    """All peers are reached at the full rate (NVSwitch), and the switch can reduce (sm90 and later)."""
    inter: float
    """Bytes/s of all NICs of the group's members on one node together, while sibling groups use their NICs; 0 on one node."""
    efa: bool
    """The NICs are AWS's EFA."""
    spread: float
    """Share of `inter` that is left while every node sends to every other: an oversubscribed fabric carries less."""
    intra_links: tuple[str, ...]
    """Links on the path from a member to its nearest peer inside a node."""
    member_links: tuple[str, ...]
    """Those that the group's flow takes inside a node: behind a switch each member's to it and from it, over PCIe those of every hop of the
    ring (a memory bus as often as it is crossed), else `intra_links`."""
    inter_links: tuple[str, ...]
    """Cables that one NIC's flow takes: to the next node, and over the spines where the ring closes. The first is the NIC's own."""
    neighbour_latency: float
    """Seconds of latency of one hop between neighbours inside a node (over PCIe of the shortest)."""
    network_latency: float
    """Seconds of latency from one node to the next (the longest, where nodes differ); 0 on one node."""
    amd: bool = False
    """The hosts have AMD CPUs, whose posts to the NIC take longer (NCCL's tuner)."""
    staged: bool = False
    """Some members reach each other through host memory alone."""
    sockets: bool = False
    """The NICs are Ethernet without RDMA, or GPUDirect-TCPX: NCCL's socket transport."""
    nearest: float = 0.0
    """Bytes/s of one GPU to its nearest peer inside the node: its own link, while `intra` is the slowest hop of the ring."""
    exchange: float = 0.0
    """all_to_all inside a node without a switch: seconds that its most loaded link takes for each byte of a slice, where every member sends one slice to
    every other."""
    pair_links: tuple[tuple[str, int], ...] = ()
    """(link, number of slices that cross it) in such an all_to_all."""
    crossing: float = 1.0
    """Share of `inter` that rings and trees keep on the narrowest cable between the nodes. (Fewer spines leave it whole where one flow for each
    rail leaves a leaf, as of a ring in the order of the nodes.)"""
    sharp: bool = False
    """The fabric is InfiniBand, whose switches can reduce (SHARP)."""
    clock: float = 0.0
    """The GPUs' boost clock in Hz; 0: not known."""
    last: tuple[int, float] = (0, 0.0)
    """(members, bytes/s of their NICs as `inter`) of the node that takes longest to send a slice of each of its members to every rank on other nodes."""


def group_shape(topology: Topology, ranks: tuple[int, ...], siblings: int = 1) -> GroupShape:
    """The shape of `ranks` (in group order); `siblings` equal groups communicate at the same moment.

    Where nodes differ (two kinds of machine, a failed NIC) the slowest of each thing counts, wherever it stands: rings and trees pass all nodes.
    """
    nodes = nodes_of(topology, ranks)
    kinds = _kinds(topology, nodes)
    devices = [topology.device(kind[0]) for kind in kinds]
    _one_maker(topology, devices)
    inside, (near, intra) = min(((kind, _neighbour(topology, kind)) for kind in kinds), key=_pace)
    chip = min(devices, key=lambda device: device.clock)
    far = _far(topology, nodes, kinds)
    pairs = _pairs(topology, inside) if near and not _switched(topology, inside) else ()
    wires = [[nic.name.lower() for nic in topology.nics(kind[0])] for kind in kinds]
    held = list(nodes.values())
    leaves = [(len(kind), _inter(topology, kind, siblings, next(o[0] for o in held if kind[0] not in o))) for kind in kinds] if far else []
    inter = min((rate for _, rate in leaves), default=0.0)
    local = max(len(kind) for kind in kinds)
    found = cables(topology, nodes)
    return GroupShape(
        ranks=len(ranks),
        nodes=len(nodes),
        local=local,
        arch=chip.arch if isinstance(chip, Gpu) else "cpu",
        link=near.kind if near else "NET",
        intra=intra,
        switched=all(_switched(topology, kind) for kind in kinds if len(kind) > 1) and near is not None,
        inter=inter,
        spread=spread(topology, nodes, inter) if far else 1.0,
        efa=any("efa" in name for names in wires for name in names),
        sockets=any(name.startswith(("ethernet", "tcp")) for names in wires for name in names),
        nearest=_nearest(topology, inside, near),
        exchange=max((times / topology.rates[link] for link, times in pairs), default=0.0),
        pair_links=pairs,
        crossing=crossing(topology, found, inter / len(flows(topology, held[0], held[1]))) if far else 1.0,
        sharp=all(any(name.startswith("ib-") for name in names) for names in wires),
        clock=chip.clock if isinstance(chip, Gpu) else 0.0,
        last=max(leaves, key=lambda node: node[0] * (len(ranks) - node[0]) / node[1] if node[1] else math.inf, default=(0, 0.0)),
        intra_links=near.links if near else (),
        member_links=_member_links(topology, inside, near),
        inter_links=found,
        neighbour_latency=_soonest(topology, inside, near),
        network_latency=far.latency if far else 0.0,
        amd=any("epyc" in topology.host(topology.node(kind[0])).name.lower() for kind in kinds),
        staged=any(topology.path(kind[0], other).staged for kind in kinds for other in kind[1:]),
    )


def _one_maker(topology: Topology, devices: list[Gpu | Cpu]) -> None:
    """Raises `Refused` for a communicator of GPUs of both makers: NCCL runs on NVIDIA's alone, RCCL on AMD's."""
    amd = {device.name: device.arch.startswith("gfx") for device in devices if isinstance(device, Gpu)}
    if len(set(amd.values())) > 1:
        raise Refused(
            f"{topology.name}: {' and '.join(amd)} cannot be in one group of ranks: NCCL joins NVIDIA's GPUs, RCCL AMD's, and neither the "
            "other's. Predict the plan on either kind of machine by itself"
        )


def _kinds(topology: Topology, nodes: dict[int, list[int]]) -> list[list[int]]:
    """The members on the first node of each kind: nodes of one kind are the same machine with as many members on the same places."""
    found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for node, members in nodes.items():
        found.setdefault((id(topology.machine(node)), tuple(map(topology.local, members))), members)
    return list(found.values())


def _pace(kind: tuple[list[int], tuple[Path | None, float]]) -> tuple[float, int]:
    """Sort key: the rate between the members of a node (infinite for one member), then more members first."""
    members, (near, rate) = kind
    return (rate if near else math.inf), -len(members)


def _far(topology: Topology, nodes: dict[int, list[int]], kinds: list[list[int]]) -> Path | None:
    """The way of a channel from the first node to the next; where nodes differ, the longest from one of each kind to a node beside it."""
    if len(nodes) < 2:
        return None
    held = list(nodes.values())
    pairs = [(held[0], held[1])] if len(kinds) == 1 else [(kind, next(other for other in held if other is not kind)) for kind in kinds]
    return max((topology.path(*next(channels(topology, *pair))) for pair in pairs), key=lambda path: path.latency)


def _neighbour(topology: Topology, members: list[int]) -> tuple[Path | None, float]:
    """The way from a member to the next in a ring, and the rate of all rings: NVLinks where they close one, else the PCIe path."""
    if len(members) < 2:
        return None, 0.0
    paths = [topology.path(members[0], other) for other in members[1:]]
    if _switched(topology, members):
        slowest = min(_hops(topology, members), key=lambda path: path.rate)
        return slowest, slowest.rate
    if any(path.kind in _LINKED for path in paths):
        linked = ring_rate(topology, members)
        if linked:
            return next(path for path in paths if path.kind in _LINKED), linked
        # Bridged pairs: the ring leaves them over PCIe, at the pace of its slowest hop.
    ring = _hops(topology, members)
    hops = [path for path in ring if path.kind not in _LINKED] or paths
    halved = len(ring) > 3 and all(path.staged for path in ring)
    return min(hops, key=lambda path: (-path.rate, path.latency)), min(path.rate for path in hops) / (2 if halved else 1)


def _soonest(topology: Topology, members: list[int], near: Path | None) -> float:
    """Latency of a hop; on PCIe the shortest of the ring's, as of the nodes that the constants were fitted on: bridges leave out some of the others."""
    if near is None or near.kind in _LINKED:
        return near.latency if near else 0.0
    return min(path.latency for path in _hops(topology, members))


def _nearest(topology: Topology, members: list[int], near: Path | None) -> float:
    """Rate of `near`; a bridge in its place hides how near a peer is over PCIe, where what leaves the bridges goes by the GPU's own link."""
    if near is None or near.kind in _LINKED:
        return near.rate if near else 0.0
    hops = _hops(topology, members)
    bridged = any(path.kind in _LINKED for path in hops)
    return max([near.rate, *(topology.rates[path.links[0]] for path in hops if bridged and path.kind not in _LINKED)])


def _hops(topology: Topology, members: list[int]) -> list[Path]:
    """Those of a ring in the order of the ranks, which a tree of PCIe is numbered in: it crosses each link once in either direction. Behind NVSwitches
    all orders are equal: one whose link to them is cut comes between two from whom it is reached fastest."""
    order = sorted(members)
    ring = [a for a in order if any(_by_switch(topology.path(a, b)) for b in order if b != a)] or order
    for lost in [a for a in order if a not in ring]:
        turns = [[*ring[at:], *ring[:at]] for at in range(len(ring))]
        ring = [lost, *max(turns, key=lambda turn: sorted(topology.path(lost, turn[end]).rate for end in (0, -1)))]
    return [topology.path(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]


def _by_switch(path: Path) -> bool:
    return any("nvswitch" in link for link in path.links)


def _member_links(topology: Topology, members: list[int], near: Path | None) -> tuple[str, ...]:
    if near is None or (near.kind in _LINKED and not _switched(topology, members)):
        return near.links if near else ()
    links = [link for path in _hops(topology, members) for link in path.links]
    buses = [link for link in links if ">" not in link] if near.kind not in _LINKED else []
    return (*dict.fromkeys(link for link in links if ">" in link), *buses)


def _pairs(topology: Topology, members: list[int]) -> tuple[tuple[str, int], ...]:
    """Slices that cross each link while every member sends one to every other: switches' uplinks, the sockets' link, and NVLinks of a mesh where
    some members reach others over a third carry those of many."""
    found: dict[str, int] = {}
    for a in members:
        for b in members:
            for link, times in topology.path(a, b).loads:
                found[link] = found.get(link, 0) + times
    return tuple(found.items())


def _switched(topology: Topology, members: list[int]) -> bool:
    """True where all members are connected to the NVSwitches. A member whose links to them are cut cannot take part in a reduction there, and every ring
    must leave the switches to reach it."""
    return len(members) > 1 and all(map(_by_switch, _hops(topology, members)))


def _inter(topology: Topology, members: list[int], siblings: int, beyond: int) -> float:
    """All NICs that the members on one node use; with siblings beside them, only their share. A NIC sends no more than its members bring to it:
    `beyond` is a rank of another node, and the way there says what the node's own links carry."""
    rates: dict[str, float] = {}
    brought: dict[str, float] = {}
    share = 0.0
    for member in members:
        use = topology.nic_of(member)
        if use is None:
            continue
        ways = _inside(topology, member, beyond)
        share += min(use.rate, ways)
        for name, nic in zip(use.names, use.nics, strict=True):
            rates[name] = nic.rate
            brought[name] = brought.get(name, 0.0) + ways / len(use.names)
    whole = sum(min(rate, brought[name]) for name, rate in rates.items())
    return min(whole, share) if siblings > 1 else whole


def _inside(topology: Topology, member: int, beyond: int) -> float:
    """Bytes per second that a rank's node brings from it to its NICs, or back: the narrowest link before the NIC's own, infinite without. What goes
    out may have a better way than what comes in (PXN)."""
    own = f"n{topology.node(member)}/"
    ways = (*topology.path(member, beyond).links, *topology.path(beyond, member).links)
    links = [link for link in ways if "/nic" not in link and link.startswith(own)]
    return min((topology.rates[link] for link in links), default=math.inf)
