"""Finds ranks with equal places on a machine, so that one may be simulated for all of them.

Ranks have equal places when their nodes are equal and each shares its switches, buses and NICs with as many ranks of each stage as the
others do. Then nodes, and what is shared in them, hold whole blocks of ranks, and all blocks hold the same mix of stages.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from sim.engine.fold import Places
from sim.mesh import Mesh
from sim.setting.crossings import crossing_of, inner_axes, inner_cuts, nodes_below, pods_of, regular
from sim.setting.mirrored import mirrored
from topologies.graph import Topology


@lru_cache(maxsize=8)
def places_of(mesh: Mesh, topology: Topology) -> Places | None:
    """The places of a mesh's ranks on the machine. None: each rank must be simulated.

    Ranks of unequal nodes (other machines, a broken one) and slow ranks are kinds of their own. Where the devices of a node are joined unevenly (PCIe below two sockets, DGX-1), groups of two mesh axes meet on
    links that differ from place to place: then ranks are equal only to those in the same place of another node. Where such groups leave the
    node, what joins its devices to the NICs counts too: some may share one that others have to themselves, or sit below another socket.
    """
    axes = sum(size > 1 for size in (*mesh.sizes.values(), mesh.ep))
    one = topology.nodes_of(mesh.world) == 1
    far = axes > 1 and not one
    firsts = _firsts(topology, mesh.world)
    every_even = all(topology.even_on(node) for node in set(firsts))
    even = axes < 2 or every_even
    if (one and not even) or not (topology.repeated or _comparable(topology)):
        return None
    uneven = topology.kind == "cuda" and not every_even
    cut = not one and _cuts(mesh, topology.ranks_per_node)
    below = [pod for pod in pods_of(topology) if pod < mesh.world]
    alike_below = one or (regular(mesh, topology) and not any(_cuts(mesh, pod) or inner_cuts(mesh, pod) for pod in below))
    spans = _spans(mesh, topology, uneven) if cut else [0] * mesh.world

    own = mesh.apart and not topology.repeated  # messages of experts' groups, one for several nodes of each kind, were up to 7 % too fast

    def kind(rank: int) -> tuple[int, int, int, int, float]:
        node, place = topology.place(rank)
        first = firsts[node]
        at = place if uneven else _profiles(topology, first, topology.ranks_per_node, far)[place]
        return spans[rank], first, node if own else 0, at, topology.speed(rank)

    return Places(
        topology.symmetric and even and not cut and alike_below and _aligned(mesh, topology, far),
        topology.beside,
        kind,
        lambda rank: (f"n{topology.node(rank)}", *_links(topology, rank, far)),
        (lambda rank: _spreads(mesh, topology)[rank]) if cut or not alike_below else None,
        (lambda along, ranks: mirrored(mesh, topology, along, ranks))
        if uneven and not cut and alike_below and topology.symmetric
        else None,
        not topology.symmetric,
        crossing_of(mesh, topology),
    )


def _firsts(topology: Topology, world: int) -> list[int]:
    """For each node that holds a rank, the first node that is built and connected like it."""
    found: dict[int, int] = {}
    return [found.setdefault(topology.node_kind(node), node) for node in range(topology.nodes_of(world))]


def _comparable(topology: Topology) -> bool:
    """Whether unequal nodes, or nodes on unequal paths, can be handled as kinds of their own and by their shared paths (`crossing_of`).
    They can where each node has as many ranks, in order, and where nodes are equal or links between them are fast enough."""
    cluster = topology.cluster
    equal = len(cluster.runs) == 1 and not cluster.special
    return len({run.ranks for run in cluster.runs}) == 1 and not cluster.scatter and (equal or not topology.narrow)


def _cuts(mesh: Mesh, size: int) -> bool:
    """Whether groups begin in one node (or pod) of `size` ranks and end in another, so that some groups are spread over nodes
    differently than others. Whole stages that do so do not count (`_aligned`)."""
    inner, stages = 1, mesh.size("pp")
    for axis in reversed(mesh.order):
        inner, stages = inner * mesh.size(axis), 1 if axis == "pp" else stages
        if inner * stages == mesh.world:
            return False
        if axis != "pp" and size % inner and inner % size:
            return True
    return False


def _spans(mesh: Mesh, topology: Topology, uneven: bool) -> list[int]:
    """For each rank a number. Ranks have the same number if their groups lie on nodes in the same way: in the same order on the same
    rails, with as many members on each node, NIC and switch; on `uneven` nodes also in the same places."""
    links = [_links(topology, rank, True) for rank in range(mesh.world)]
    leaves = [[link.partition(">")[2] for link in own if ">net/" in link] for own in links]
    # What reaches a peer on another rail leaves by that rail's NIC (PXN), where others of the node may send.
    places = [(topology.local(rank),) if uneven else tuple(leaf.rpartition(".")[2] for leaf in leaves[rank]) for rank in range(mesh.world)]
    found: list[list[object]] = [[] for _ in range(mesh.world)]
    for axis in mesh.order:
        for group in mesh.groups(axis) if mesh.size(axis) > 1 else ():
            known: dict[object, int] = {}
            shared = [(topology.node(rank), *links[rank], *leaves[rank]) for rank in group]
            span = tuple(
                (*places[rank], *(known.setdefault(name, len(known)) for name in names)) for rank, names in zip(group, shared, strict=True)
            )
            for rank in group:
                found[rank].append(span)
    numbers: dict[tuple[object, ...], int] = {}
    return [numbers.setdefault(tuple(each), len(numbers)) for each in found]


@lru_cache(maxsize=2)
def _spreads(mesh: Mesh, topology: Topology) -> list[tuple[tuple[int, ...], ...]]:
    """For each rank how far its groups are spread, innermost groups first, since they meet most often. For each group: whether it lies
    on several nodes (slower), whether it lies below several switches whose uplinks are slower, and how few members the emptiest of its
    nodes holds, since all others wait for that node's NICs. Larger keys are slower."""
    below = nodes_below(topology)[::-1]
    found: list[list[tuple[int, ...]]] = [[] for _ in range(mesh.world)]
    for axis in (*inner_axes(mesh), *reversed(mesh.order)):
        for group in mesh.groups(axis) if mesh.size(axis) > 1 else ():
            held = Counter(map(topology.node, group))
            pods = (min(len({node // nodes for node in held}), 2) for nodes in below)
            spread = (min(len(held), 2), *pods, -min(held.values()))
            for rank in group:
                found[rank].append(spread)
    return [tuple(each) for each in found]


def _links(topology: Topology, rank: int, far: bool) -> tuple[str, ...]:
    """Names of the links in the rank's node between its device and host memory, in both directions; with `far`, also those on the path
    to other nodes."""
    found = tuple(link for to_device in (True, False) for link in topology.host_path(rank, to_device).links)
    if not far:
        return found
    node, place = topology.place(rank)
    first = topology.first_ranks()
    other = first if node else topology.on_node(first[-1] + 1)
    return found + tuple(link for link in topology.path(rank, other[place]).links if link.startswith(f"n{node}/"))


@lru_cache(maxsize=64)
def _profiles(topology: Topology, node: int, taken: int, far: bool) -> tuple[int, ...]:
    """For each of the first `taken` places of a `node`, which hold a rank, a number. It is the same where the links (`_links`) have the
    same rates and as many users."""
    ways = [_links(topology, rank, far) for rank in topology.ranks_of(node)[:taken]]
    users = Counter(link for way in ways for link in dict.fromkeys(way))
    kinds = [tuple((users[link], topology.rates[link]) for link in way) for way in ways]
    return tuple(kinds.index(kind) for kind in kinds)


@lru_cache(maxsize=64)
def _blocks(topology: Topology, far: bool) -> tuple[int, ...]:
    """Sizes, in ranks, of a node and of the blocks of consecutive ranks in it that share a link. () where ranks that share a link are
    not such blocks, or where places differ."""
    ranks = topology.first_ranks()
    sharing: dict[str, list[int]] = {}
    for rank in ranks:
        for link in dict.fromkeys(_links(topology, rank, far)):
            sharing.setdefault(link, []).append(rank)
    for users in sharing.values():
        if users[0] % len(users) or users[-1] - users[0] != len(users) - 1:
            return ()
    plain = not topology.cluster.scatter and len(set(_profiles(topology, 0, len(ranks), far))) == 1
    return tuple({len(ranks): None, **{len(users): None for users in sharing.values()}}) if plain else ()


def _aligned(mesh: Mesh, topology: Topology, far: bool) -> bool:
    """Whether every block (of a node, of what is shared in it, of a pod) that holds ranks of a stage holds the same mix of stages as
    all others that do."""
    stages, inner, size = mesh.size("pp"), 1, topology.ranks_per_node
    if stages == 1 and (mesh.world == topology.gpus or (not topology.cluster.scatter and (mesh.world % size == 0 or mesh.world < size))):
        return len(set(_profiles(topology, 0, min(mesh.world, size), far))) == 1
    for axis in reversed(mesh.order):
        if axis == "pp":
            break
        inner *= mesh.size(axis)
    blocks = _blocks(topology, far)
    blocks += pods_of(topology) if blocks else ()
    return bool(blocks) and all(_whole(min(block, mesh.world), inner, stages, mesh.world) for block in blocks)


def _whole(block: int, inner: int, stages: int, world: int) -> bool:
    """Whether all blocks of `block` ranks that hold ranks of a stage hold the same mix. Ranks are in this order: `inner` of one stage,
    as many of the next one, and again from the first stage on."""
    turn = inner * stages
    if inner % block == 0:  # each block holds ranks of one stage
        return True
    if block % inner:
        return False
    return turn == world or (world % block == 0 and (block % turn == 0 or turn % block == 0))
