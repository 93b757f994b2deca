"""What `run` keeps: instructions, events, lanes by when they are free, ranks, threads.

The counterpart of `state`, without the ops' own beginnings and ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

from sim.engine.seats import Seat
from sim.engine.sharing import Uses

WORK, RECORDED, SYNC, HELD, QUEUED = range(5)
"""What a thread does with an op: runs it itself, records an event, waits for one, waits for an op of its own lane that meets or
shares, or queues it on a device lane."""
RECORD, WAIT, MEET, FLOW, PLAIN = range(5)
"""What a lane does with it."""


class Instruction(NamedTuple):
    """One op of one rank."""

    does: int
    kind: int
    lane: Lane
    host: float
    lead: float
    """Seconds from its issue to its earliest start."""
    seconds: float
    counts: bool
    """Its end is part of the step (not a record's or a wait's)."""
    blocking: bool
    event: str
    shift: int | None
    latency: float
    uses: Uses
    """Of resources that others use too: amounts per second at full speed."""
    share: float
    """What one of the ops that it stands for takes of the resource named first (`Cost.share`)."""
    slows: bool
    """A kernel, slowed by a collective beside it ..."""
    slowed: float
    """... to this share of its speed."""
    seat: Seat[Arrival] | None
    beside: bool
    """A collective beside compute."""
    message: bool
    sends: bool
    eager: bool
    """No collective can begin before this kernel ends, unless one is queued already."""
    drained: str
    """sync: the lane waited for, "" = all."""


Arrival = tuple[float, "State", Instruction, "Entry"]
Code = list[Instruction]
Line = tuple[int, int, Code]
"""A call: its step, its index and its code."""
Entry = tuple[Instruction, float, "Mark | None", "Thread | None", int, int]
"""On a lane: what, its earliest start, its event, who waits for its end, its number among messages, its step."""
Waiter = Callable[[float], None]


class Mark:
    """An event: not yet, or happened at `time`."""

    __slots__ = ("time", "waiters")

    def __init__(self) -> None:
        self.time: float | None = None
        self.waiters: list[Waiter] = []

    def fire(self, time: float) -> None:
        """It happened at `time`: everybody who waits goes on."""
        self.time = time
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for resume in waiters:
                resume(time)


class Lane:
    """Ops queue in order, one runs; `queued` and `ended` count them."""

    __slots__ = (
        "begun",
        "busy",
        "current",
        "ended",
        "free",
        "lost",
        "name",
        "queue",
        "queued",
        "rate",
        "since",
        "state",
        "ticket",
        "watch",
        "work",
    )

    def __init__(self, name: str, state: State) -> None:
        self.name, self.state = name, state
        self.queue: deque[Entry] = deque()
        self.free = 0.0
        self.busy = False
        self.queued = self.ended = 0
        self.watch: list[tuple[int, Waiter]] = []
        self.current: Entry | None = None
        """A kernel whose speed may still change."""
        self.rate, self.work, self.since, self.ticket = 1.0, 0.0, 0.0, 0
        self.begun = self.lost = 0.0
        """When that one began; seconds that those before it took longer because of collectives beside them."""


class State:
    """One simulated rank."""

    __slots__ = ("comm", "ends", "lanes", "numbered", "ordered", "pending", "rank", "settled", "slow", "threads")

    def __init__(self, rank: int, slow: float) -> None:
        self.rank, self.slow = rank, slow
        self.comm = self.pending = 0
        """Collectives beside compute that run, and that are queued or run."""
        self.settled = True
        """Nothing ever changes the speed of a kernel here: no collective runs beside one, or none slows it."""
        self.ordered = True
        """Collectives beside compute begin after the kernels of all segments before their own."""
        self.ends: dict[int, float] = {}
        """By step: when the last op of its training thread or a device lane has ended."""
        self.lanes: dict[str, Lane] = {}
        self.numbered: dict[tuple[str, int], Mark] = {}
        self.threads: set[str] = set()

    def note(self, step: int, time: float) -> None:
        """An op of a step has ended."""
        if time > self.ends.get(step, 0.0):
            self.ends[step] = time

    def lane(self, name: str) -> Lane:
        """The rank's lane of this name, made when first asked for."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name, self)
        return lane

    def mark(self, event: str, number: int) -> Mark:
        """Event number `number`, across threads; what lies before the beginning has happened."""
        mark = self.numbered.get((event, number))
        if mark is None:
            mark = self.numbered[event, number] = Mark()
            if number < 0:
                mark.time = 0.0
        return mark


def ends_of(states: Iterable[State]) -> dict[int, float]:
    """By step: when the last of the ranks has ended it."""
    found: dict[int, float] = {}
    for state in states:
        for step, time in state.ends.items():
            found[step] = max(found.get(step, 0.0), time)
    return found


class Thread:
    """One CPU thread of one rank: a generator that yields where it must wait and is sent the time from which it goes on."""

    __slots__ = ("body", "done", "name", "rank", "running", "woken")

    def __init__(self, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        self.body: Generator[None, float, None]
        self.done = self.running = False
        self.woken: float | None = None

    def wake(self, time: float) -> None:
        """What it waited for has happened at `time`; while it runs itself it is told when it comes to wait."""
        if self.running:
            self.woken = time
            return
        self.running = True
        try:
            self.body.send(time)
        except StopIteration:
            self.done = True
        self.running = False

    def begin(self) -> None:
        """Runs to where it first waits."""
        self.running = True
        self.done = next(self.body, self) is self
        self.running = False


def mark_of(this: Instruction, index: int, state: State, latest: dict[str, Mark]) -> Mark:
    """The op's event: the one of its number, a new one for a record, else the latest (CUDA: one never recorded does not wait)."""
    if this.shift is not None:
        return state.mark(this.event, index + this.shift)
    mark = None if this.kind == RECORD else latest.get(this.event)
    if mark is None:
        mark = latest[this.event] = Mark()
        if this.kind != RECORD:
            mark.time = 0.0
    return mark
