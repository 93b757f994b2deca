"""The state of a dry run: ops in flight, and the events, lanes and message counts of each rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sim.program import Call, Op

Go = Callable[[], None]
"""A call that lets a thread or lane go on."""


class Mark:
    """One recording of an event, and who waits for it."""

    __slots__ = ("fired", "waiters")

    def __init__(self) -> None:
        self.fired = False
        self.waiters: list[Go] = []

    def fire(self) -> list[Go]:
        """The event has happened. Returns the calls that let the waiting threads and lanes go on."""
        self.fired = True
        waiters, self.waiters = self.waiters, []
        return waiters


class Item:
    """An op in flight. `turn` numbers messages of a pair as they are issued."""

    __slots__ = ("call", "done", "mark", "op", "turn", "waiters")

    def __init__(self, call: Call, op: Op) -> None:
        self.call, self.op = call, op
        self.done = False
        self.mark: Mark | None = None
        self.turn = 0
        self.waiters: list[Go] = []


class Lane:
    """A lane: the ops in its queue, the op at which it waits (None: it does not wait), and the op that came last."""

    __slots__ = ("busy", "last", "queue")

    def __init__(self) -> None:
        self.queue: deque[Item] = deque()
        self.busy: Item | None = None
        self.last: Item | None = None


class Rank:
    """Lanes and events of one rank."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lanes: dict[str, Lane] = {}
        self.latest: dict[tuple[str, str], Mark] = {}
        self.numbered: dict[tuple[str, int], Mark] = {}
        self.turns: dict[tuple[object, ...], int] = {}

    def lane(self, name: str) -> Lane:
        """The lane of this name, empty at first."""
        found = self.lanes.get(name)
        if found is None:
            found = self.lanes[name] = Lane()
        return found

    def mark(self, thread: str, call: Call, op: Op) -> Mark:
        """The event that a record, wait or sync names: the numbered one, or else the thread's latest record (a new one for a record)."""
        if op.shift is not None:
            return self.mark_number(op.event, call.index + op.shift)
        key = (thread, op.event)
        if op.kind == "record" or key not in self.latest:
            mark = self.latest[key] = Mark()
            mark.fired = op.kind != "record"  # a wait for what was never recorded does not wait
        return self.latest[key]

    def mark_number(self, event: str, number: int) -> Mark:
        """The recording number `number` of a numbered event. Negative numbers have fired."""
        mark = self.numbered.get((event, number))
        if mark is None:
            mark = self.numbered[event, number] = Mark()
            mark.fired = number < 0
        return mark
