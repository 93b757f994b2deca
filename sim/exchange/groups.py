"""Names of communicators in traces, and tags of messages."""

from __future__ import annotations

from sim.mesh import ALL_AXES
from sim.program import Program


class Groups:
    """Numbers communicators by mesh axis and smallest member, so that separate exports of single ranks agree. The communicator of all ranks
    has no number: its name is empty."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: dict[tuple[int, ...], int] = {}
        self._of: dict[tuple[str, int], tuple[int, ...]] = {}

    def members(self, axis: str, rank: int) -> tuple[int, ...]:
        """Ranks of the group of `rank` along a mesh axis, in group order."""
        found = self._of.get((axis, rank))
        if found is None:
            found = self._of[axis, rank] = self.program.mesh.group(axis, rank)
        return found

    def name(self, axis: str, members: tuple[int, ...]) -> str:
        """`pg_name` of a communicator; "" where it has all ranks."""
        if len(members) == self.program.world:
            return ""
        return str(self.numbers.setdefault(members, ALL_AXES.index(axis) * self.program.world + min(members) + 1))

    def tag(self, axis: str, number: int) -> int:
        """`comm_tag` of message `number` between two ranks along a mesh axis."""
        return number * len(ALL_AXES) + ALL_AXES.index(axis)
