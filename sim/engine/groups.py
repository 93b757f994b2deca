"""Who is in which group, and which of the simulated ranks stands for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from sim.mesh import Mesh, peer_of
from sim.program import Op

Key = tuple[object, ...]


class Groups:
    """Who is in which group, and which simulated ranks stand for them."""

    def __init__(self, mesh: Mesh, stands_for: Callable[[int], int]) -> None:
        self.mesh, self.stands_for = mesh, stands_for
        self._members: dict[tuple[str, int], tuple[int, ...]] = {}
        self._represented: dict[tuple[str, int], tuple[int, ...]] = {}

    def alone(self, rank: int) -> Groups:
        """The groups of one rank that stands for every member of them."""
        found = Groups(self.mesh, lambda _: rank)
        found._members = self._members
        return found

    def members(self, axis: str, rank: int) -> tuple[int, ...]:
        """All ranks of the group of `rank` along a mesh axis, in group order."""
        found = self._members.get((axis, rank))
        if found is None:
            found = self._members[axis, rank] = self.mesh.group(axis, rank)
        return found

    def represented(self, axis: str, rank: int) -> tuple[int, ...]:
        """The simulated ranks that stand for the group's members."""
        found = self._represented.get((axis, rank))
        if found is None:
            found = self._represented[axis, rank] = tuple(sorted({self.stands_for(member) for member in self.members(axis, rank)}))
        return found

    def peer_of(self, op: Op, rank: int) -> int:
        """The rank at the other end of `rank`'s send or receive."""
        return peer_of(self.members(op.group, rank), rank, op.peer)

    def pair(self, op: Op, rank: int) -> Key:
        """What a send shares with its receive: group, ends and direction."""
        size = len(self.members(op.group, rank))
        other = self.stands_for(self.peer_of(op, rank))
        if op.kind == "send":
            return ("p2p", op.group, rank, other, op.peer % size)
        return ("p2p", op.group, other, rank, -op.peer % size)


def groups_of(mesh: Mesh, stands_for: Sequence[int]) -> Groups:
    """The groups of ranks of which `stands_for` tells, for each, the one that is simulated in its place. Where that is the first of each
    pipeline stage, they are the same for all plans with this mesh, and what is known of them is kept."""
    staged, ranks = _by_stage(mesh)
    return staged if stands_for == ranks else Groups(mesh, stands_for.__getitem__)


def by_stage(mesh: Mesh) -> Groups:
    """The groups where one rank stands for all of its pipeline stage."""
    return _by_stage(mesh)[0]


@lru_cache(maxsize=64)
def _by_stage(mesh: Mesh) -> tuple[Groups, list[int]]:
    first = [mesh.rank({"pp": stage}) for stage in range(mesh.size("pp"))]
    ranks = [first[stage] for stage in mesh.places("pp")]
    return Groups(mesh, ranks.__getitem__), ranks
