"""Finds places of an uneven node that can be exchanged without any effect: slots of one socket, sockets that mirror each other.

A symmetry of a machine is a renaming of its ranks and links that leaves all paths, and all that meets, as they are. Ranks that are
equal by a symmetry need to be simulated only once (orbits are an equitable partition: Godsil and Royle, Algebraic Graph Theory, 9.3).
The symmetries looked for flip one bit of the place of all ranks at once: they map the groups of a mesh onto each other where its axes
are powers of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from sim.cost.collective import group_shape
from sim.mesh import NEIGHBOURS, Mesh
from topologies.graph import Topology

Ways = tuple[object, tuple[tuple[str, ...], ...]]
"""(what a group or a rank sees of the machine, its links for each purpose)."""


def mirrored(mesh: Mesh, topology: Topology, along: Iterable[str], ranks: Iterable[int]) -> int:
    """A mask of the bits that may be flipped on all ranks at once, if ranks meet `along` these axes: ranks that differ in these bits
    alone are equal. Ranks with all these bits 0 are then simulated, and they show all that happens on shared links. 0: there are no
    such bits. `ranks`: each stands for all in the same place of nodes like its own; only these nodes are looked at."""
    size = topology.ranks_per_node
    if size & (size - 1) or mesh.world % size or topology.cluster.scatter:
        return 0
    seen = _Seen(mesh, topology, along, {other: None for rank in ranks for other in topology.on_node(rank)})
    free = sum(bit for bit in (1 << at for at in range(size.bit_length() - 1)) if seen.stays(bit))
    return free if seen.shown(free) else 0


class _Seen:
    """What ranks of whole nodes, and their groups, see of a machine."""

    def __init__(self, mesh: Mesh, topology: Topology, along: Iterable[str], ranks: Iterable[int]) -> None:
        self._topology, self._ranks = topology, list(ranks)
        axes = [axis for axis in along if mesh.size(axis) > 1]
        self._names: dict[int, dict[str, str]] = {}
        """Bit -> {link: the link that takes its place when the bit flips}."""
        self._fixed = [mesh.places(axis) for axis in ("pp", "cp", *(("dp_replicate", "dp_shard") if "dp_ring" in axes else ()))]
        self._of = {axis: {rank: mesh.group(axis, rank) for rank in self._ranks} for axis in axes}
        self._met = {group: self._meeting(group) for group in dict.fromkeys(group for of in self._of.values() for group in of.values())}
        self._own = {rank: self._alone(rank, axes) for rank in self._ranks}

    def _meeting(self, group: tuple[int, ...]) -> Ways:
        shape = group_shape(self._topology, group)
        bare = replace(shape, intra_links=(), member_links=(), inter_links=(), pair_links=())
        crossed = tuple(link for link, times in shape.pair_links for _ in range(times))
        return (bare, len(shape.intra_links)), (shape.member_links, shape.inter_links, crossed)

    def _alone(self, rank: int, axes: Sequence[str]) -> Ways:
        """What a rank sees: its paths to host memory, to the other ranks of its node, and from and to its neighbours."""
        found = [self._topology.host_path(rank, to_device) for to_device in (True, False)]
        found += [self._topology.path(rank, other) for other in self._topology.on_node(rank)]
        for axis in axes:
            group = self._of[axis][rank]
            at = group.index(rank)
            if axis in NEIGHBOURS:
                found += [self._topology.path(*pair) for pair in ((rank, group[at - len(group) + 1]), (group[at - 1], rank))]
        return [(path.kind, path.rate, path.latency, path.staged) for path in found], tuple(path.links for path in found)

    def stays(self, bit: int) -> bool:
        """Whether everything stays as it is when this bit of all ranks flips."""
        if any(places[rank] != places[rank ^ bit] for places in self._fixed for rank in self._ranks):
            return False
        names = self._names[bit] = {}
        pairs = list(dict.fromkeys((group, of[rank ^ bit]) for of in self._of.values() for rank, group in of.items()))
        return (
            all({rank ^ bit for rank in group} == set(image) for group, image in pairs)
            and all(self._sees(rank, bit, names) for rank in self._ranks)
            and all(self._renamed(self._met[group][1][1], self._met[image][1][1], names) for group, image in pairs)
            and len(set(names.values())) == len(names)
            and all(self._meets(group, image, names) for group, image in pairs)
        )

    def _sees(self, rank: int, bit: int, names: dict[str, str]) -> bool:
        """Whether the rank sees what its mirror image sees. `names`: link -> the link that takes its place, as far as known; this adds
        to it."""
        (kinds, ways), (others, images), size = self._own[rank], self._own[rank ^ bit], self._topology.ranks_per_node
        assert isinstance(kinds, list) and isinstance(others, list)
        there = [0, 1, *(2 + (at ^ bit) for at in range(size)), *range(2 + size, len(ways))]
        return all(kinds[at] == others[image] and self._renamed(ways[at], images[image], names) for at, image in enumerate(there))

    def _renamed(self, way: Sequence[str], image: Sequence[str], names: dict[str, str]) -> bool:
        """Whether each link of `image` can take the place of the link of `way` at the same position: same rate, and no conflict with
        `names`, to which this adds."""
        rates = self._topology.rates
        return len(way) == len(image) and all(
            names.setdefault(link, other) == other and rates[link] == rates[other] for link, other in zip(way, image, strict=True)
        )

    def _meets(self, group: tuple[int, ...], image: tuple[int, ...], names: dict[str, str]) -> bool:
        (bare, ways), (other, images) = self._met[group], self._met[image]
        return bare == other and all(
            Counter(names.get(link, "") for link in way) == Counter(there) for way, there in zip(ways, images, strict=True)
        )

    def shown(self, free: int) -> bool:
        """Whether ranks whose `free` bits are 0 show what happens on all links. Of links that mirror each other, one must carry a flow
        of such a rank for each of its flows, and carry as much of these ranks' flows as any of the others, so that none is fuller."""
        flows = {(axis, rank): self._met[group][1] for axis, of in self._of.items() for rank, group in of.items()}
        flows |= {("", rank): (*ways[:2], *ways[2 + self._topology.ranks_per_node :]) for rank, (_, ways) in self._own.items()}
        taken = {flow: Counter(link for way in ways for link in way) for flow, ways in flows.items()}
        users: dict[str, list[tuple[str, int]]] = {}
        for flow, links in taken.items():
            for link in links:
                users.setdefault(link, []).append(flow)

        def shows(link: str, orbit: set[str]) -> bool:
            own = {flow for other in orbit for flow in users[other] if not flow[1] & free}
            return all(link in taken[axis, rank & ~free] for axis, rank in users[link]) and all(
                taken[flow][link] >= taken[flow][other] for flow in own for other in orbit
            )

        return all(any(shows(link, orbit) for link in orbit) for orbit in self._orbits(free, users))

    def _orbits(self, free: int, links: Iterable[str]) -> list[set[str]]:
        """Sets of links that take each other's places when bits of `free` flip."""
        found: dict[str, set[str]] = {}
        for link in links:
            found[link] = {link}
        for bit, names in self._names.items():
            for link in found if bit & free else ():
                one, other = found[link], found[names[link]]
                if one is not other:
                    one |= other
                    found.update(dict.fromkeys(other, one))
        return list({id(orbit): orbit for orbit in found.values()}.values())
