"""The members of each group, and the simulated ranks that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from sim.mesh import Mesh, peer_of
from sim.program import Op

Key = tuple[object, ...]


class Groups:
    """All groups of a mesh. `stands_for(rank)`: the rank that is simulated in its place."""

    def __init__(self, mesh: Mesh, stands_for: Callable[[int], int]) -> None:
        self.mesh, self.stands_for = mesh, stands_for
        self._members: dict[tuple[str, int], tuple[int, ...]] = {}
        self._represented: dict[tuple[str, int], tuple[int, ...]] = {}

    def alone(self, rank: int) -> Groups:
        """The same groups where `rank` stands for every member of them."""
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
        """A key that a send and its receive have in common: group, sender, receiver and offset. Both ranks are simulated ones."""
        size = len(self.members(op.group, rank))
        other = self.stands_for(self.peer_of(op, rank))
        if op.kind == "send":
            return ("p2p", op.group, rank, other, op.peer % size)
        return ("p2p", op.group, other, rank, -op.peer % size)


def groups_of(mesh: Mesh, stands_for: Sequence[int]) -> Groups:
    """The groups of a mesh. `stands_for[rank]`: the rank that is simulated in its place. Where that is always the first rank of the
    pipeline stage, all plans with this mesh share one `Groups` and what it has found."""
    staged, ranks = _by_stage(mesh)
    return staged if stands_for == ranks else Groups(mesh, stands_for.__getitem__)


def by_stage(mesh: Mesh) -> Groups:
    """The groups where the first rank of each pipeline stage stands for the whole stage. Kept by mesh."""
    return _by_stage(mesh)[0]


@lru_cache(maxsize=64)
def _by_stage(mesh: Mesh) -> tuple[Groups, list[int]]:
    first = [mesh.rank({"pp": stage}) for stage in range(mesh.size("pp"))]
    ranks = [first[stage] for stage in mesh.places("pp")]
    return Groups(mesh, ranks.__getitem__), ranks
