"""Matches ops across ranks. Each group (or pair of ranks) has a table, where its ops meet by number; each rank has a seat there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from sim.engine.groups import Groups
from sim.program import Op

A = TypeVar("A")
"""What is kept of one member that has come."""


class Table(Generic[A]):
    """Open meetings of one group (or one pair of ranks) by number: who has come so far."""

    __slots__ = ("needed", "open")

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.open: dict[int, list[A]] = {}

    def come(self, number: int, one: A) -> list[A] | None:
        """Adds a member to meeting `number`. Returns all members if this is the last one, else None."""
        come = self.open.setdefault(number, [])
        come.append(one)
        if len(come) < self.needed:
            return None
        del self.open[number]
        return come


class Seat(Generic[A]):
    """One rank's place at a table; `number` counts its ops there."""

    __slots__ = ("number", "table")

    def __init__(self, table: Table[A]) -> None:
        self.table, self.number = table, 0

    def next(self) -> tuple[Table[A], int]:
        """The table and the number of the meeting to which the rank's next op comes."""
        self.number += 1
        return self.table, self.number


class Seats(Generic[A]):
    """All tables of one run."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._tables: dict[object, Table[A]] = {}
        self._seats: dict[object, Seat[A]] = {}
        self._of: dict[tuple[int, str, str, str, int], Seat[A]] = {}

    def of(self, op: Op, rank: int) -> Seat[A]:
        """The rank's seat for an op. Collectives meet by group and lane, messages by pair of ranks and direction."""
        asked = (rank, op.kind, op.group, op.lane, op.peer)
        seat = self._of.get(asked)
        if seat is None:
            seat = self._of[asked] = self._found(op, rank)
        return seat

    def _found(self, op: Op, rank: int) -> Seat[A]:
        if op.kind == "collective":
            members = self._groups.represented(op.group, rank)
            base: object = (op.group, members, op.lane)
            needed = len(members)
        else:
            base, needed = self._groups.pair(op, rank), 2
        key = (base, rank, op.kind)
        seat = self._seats.get(key)
        if seat is None:
            table = self._tables.get(base)
            if table is None:
                table = self._tables[base] = Table(needed)
            seat = self._seats[key] = Seat(table)
        return seat

    def waiting(self) -> Iterator[A]:
        """All who have come to a meeting to which others never came. None, when a run has ended well."""
        return (one for table in self._tables.values() for come in table.open.values() for one in come)
