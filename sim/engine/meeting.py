"""Where ranks meet: a collective or a message starts when its last member has arrived.

The k-th collective that a rank runs in a group on a lane meets the k-th of every other member; the k-th send
that a issues to b meets the k-th receive that b issues from a, whatever their lanes. Folded ranks are represented: a
member that is not simulated arrives with the rank that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from sim.engine.state import Item
from sim.mesh import Mesh, peer_of
from sim.program import Op
from topologies.errors import BadInput

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


class Meeting:
    """Items that have arrived so far, and when."""

    __slots__ = ("arrived", "items", "needed")

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.items: list[Item] = []
        self.arrived: list[float] = []


class Meetings:
    """Matches items across ranks. `complete(items, arrivals)` is called when all needed have come."""

    def __init__(self, groups: Groups, complete: Callable[[list[Item], list[float]], None]) -> None:
        self._groups, self._complete = groups, complete
        self._open: dict[Key, Meeting] = {}
        self._count: dict[Key, int] = {}

    def arrive(self, item: Item, time: float) -> None:
        """An item has come to its meeting at `time` (seconds); when it is the last, the meeting is complete."""
        op = item.op
        if op.kind == "collective":
            reps = self._groups.represented(op.group, item.rank)
            base: Key = (op.group, reps, op.lane)
            needed = len(reps)
            item.turn = self._next((base, item.rank, op.kind))
        else:
            base, needed = self._pair(item), 2
        number = item.turn
        meeting = self._open.setdefault((base, number), Meeting(needed))
        meeting.items.append(item)
        meeting.arrived.append(time)
        if len(meeting.items) == needed:
            del self._open[base, number]
            self._complete(meeting.items, meeting.arrived)

    def number(self, item: Item) -> None:
        """Called when a message is issued."""
        item.turn = self._next((self._pair(item), item.rank, item.op.kind))

    def _next(self, side: Key) -> int:
        number = self._count.get(side, 0)
        self._count[side] = number + 1
        return number

    def _pair(self, item: Item) -> Key:
        return self._groups.pair(item.op, item.rank)

    def check_empty(self) -> None:
        """Raises `BadInput` that names who waits for whom when a run has ended with ranks still waiting."""
        waiting = [item for meeting in self._open.values() for item in meeting.items]
        if waiting:
            lines = "; ".join(f"rank {i.rank} at {i.call.at}/{i.op.id} ({i.op.kind} in {i.op.group})" for i in waiting[:8])
            raise BadInput(f"the program deadlocks: {len(waiting)} ops wait for a peer that never comes: {lines}")
