"""Where ranks meet: a collective or a message starts when its last member has arrived.

The k-th collective that a rank runs in a group on a lane meets the k-th of every other member; the k-th send
that a issues to b meets the k-th receive that b issues from a, whatever their lanes. Folded ranks are represented: a
member that is not simulated arrives with the rank that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.engine.groups import Groups
from sim.engine.seats import Seats
from sim.engine.state import Item
from topologies.errors import BadInput

Arrival = tuple[Item, float]
"""An op, and when it came (seconds)."""


class Meetings:
    """Matches items across ranks. `complete(arrivals)` is called when all needed have come."""

    def __init__(self, groups: Groups, complete: Callable[[list[Arrival]], None]) -> None:
        self._seats, self._complete = Seats[Arrival](groups), complete

    def arrive(self, item: Item, time: float) -> None:
        """An item has come to its meeting at `time` (seconds); when it is the last, the meeting is complete."""
        if item.op.kind == "collective":
            self.number(item)
        assert item.table is not None
        come = item.table.come(item.turn, (item, time))
        if come:
            self._complete(come)

    def number(self, item: Item) -> None:
        """Gives an item its meeting and its number there: a message when it is issued, a collective when it arrives."""
        item.table, item.turn = self._seats.of(item.op, item.rank).next()

    def check_empty(self) -> None:
        """Raises `BadInput` that names who waits for whom when a run has ended with ranks still waiting."""
        waiting = [item for item, _ in self._seats.waiting()]
        if waiting:
            lines = "; ".join(f"rank {i.rank} at {i.call.at}/{i.op.id} ({i.op.kind} in {i.op.group})" for i in waiting[:8])
            raise BadInput(f"the program deadlocks: {len(waiting)} ops wait for a peer that never comes: {lines}")
