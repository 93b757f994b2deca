"""The data of `sim.engine.clocks.run`: instructions, events, lanes, ranks and threads.

The counterpart of `sim.engine.state`, but a lane keeps only when it is free, not when each op begins and ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

from sim.engine.seats import Seat
from sim.engine.sharing import Uses

WORK, RECORDED, SYNC, HELD, QUEUED = range(5)
"""What a thread does with an op. WORK: runs it itself. RECORDED: records an event. SYNC: waits for an event or for lanes. HELD: waits for
an op of its own lane that meets other ranks or shares resources. QUEUED: queues it on a device lane."""
RECORD, WAIT, MEET, FLOW, PLAIN = range(5)
"""What a lane does with an op. RECORD, WAIT: records an event, waits for one. MEET: meets other ranks. FLOW: shares resources. PLAIN:
only takes time."""


class Instruction(NamedTuple):
    """One op of one rank."""

    does: int
    """What the issuing thread does with it: WORK, RECORDED, SYNC, HELD or QUEUED."""
    kind: int
    """What the lane does with it: RECORD, WAIT, MEET, FLOW or PLAIN."""
    lane: Lane
    host: float
    """Seconds for which the thread is busy before it goes on (`Cost.host`)."""
    lead: float
    """Seconds from its issue to its earliest start."""
    seconds: float
    """From its start to its end, alone; includes `latency`."""
    counts: bool
    """Its end is part of the step (not a record's or a wait's)."""
    blocking: bool
    event: str
    shift: int | None
    latency: float
    uses: Uses
    """(resource, amount per second at full speed), of resources that other ops use too."""
    share: float
    """The amount per second that one rank's op takes of the first resource named. Less than `uses` says where the op stands for several
    ranks' (`Cost.share`)."""
    slows: bool
    """Whether it is a kernel, which runs more slowly while a collective runs beside it."""
    slowed: float
    """The share of its speed, 0 to 1, that it has then."""
    seat: Seat[Arrival] | None
    beside: bool
    """A collective on another lane than compute, which slows kernels while it runs."""
    message: bool
    """Whether it is a send or a receive."""
    sends: bool
    """Whether it is a send."""
    eager: bool
    """No further collective can begin before this kernel ends, so its end is known at its start unless one is queued already."""
    drained: str
    """sync: the lane that the thread waits for, "" = all lanes."""


Arrival = tuple[float, "State", Instruction, "Entry"]
Code = list[Instruction]
Line = tuple[int, int, Code]
"""One call: (step, index, code)."""
Entry = tuple[Instruction, float, "Mark | None", "Thread | None", int, int]
"""One op queued on a lane: (instruction, earliest start in seconds, its event or None, the thread that waits for its end or None, the
number of its meeting (messages; -1 for other ops), step)."""
Waiter = Callable[[float], None]


class Mark:
    """An event. `time`: when it happened (seconds); None: not yet."""

    __slots__ = ("time", "waiters")

    def __init__(self) -> None:
        self.time: float | None = None
        self.waiters: list[Waiter] = []

    def fire(self, time: float) -> None:
        """Sets the time at which the event happened and resumes all who wait for it."""
        self.time = time
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for resume in waiters:
                resume(time)


class Lane:
    """A stream, or a thread's own lane. Ops queue in order and one runs at a time; `queued` and `ended` count them."""

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
        """The kernel that runs now and whose speed may still change. None: there is none."""
        self.rate, self.work, self.since, self.ticket = 1.0, 0.0, 0.0, 0
        self.begun = self.lost = 0.0
        """begun: when `current` began; lost: seconds by which collectives have lengthened the kernels before it."""


class State:
    """One simulated rank."""

    __slots__ = ("comm", "ends", "lanes", "numbered", "ordered", "pending", "rank", "settled", "slow", "threads")

    def __init__(self, rank: int, slow: float) -> None:
        self.rank, self.slow = rank, slow
        self.comm = self.pending = 0
        """comm: collectives beside compute that run now; pending: those that run or are queued."""
        self.settled = True
        """Nothing ever changes the speed of a kernel here: no collective runs beside one, or none slows it."""
        self.ordered = True
        """Collectives beside compute begin after the kernels of all segments before their own."""
        self.ends: dict[int, float] = {}
        """By step: seconds at which its last op on the training thread or a device lane has ended."""
        self.lanes: dict[str, Lane] = {}
        self.numbered: dict[tuple[str, int], Mark] = {}
        self.threads: set[str] = set()

    def note(self, step: int, time: float) -> None:
        """Notes that an op of `step` has ended at `time` (seconds)."""
        if time > self.ends.get(step, 0.0):
            self.ends[step] = time

    def lane(self, name: str) -> Lane:
        """The rank's lane of this name, made when first asked for."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name, self)
        return lane

    def mark(self, event: str, number: int) -> Mark:
        """Event number `number`, which all threads of the rank share. Events with negative numbers have happened."""
        mark = self.numbered.get((event, number))
        if mark is None:
            mark = self.numbered[event, number] = Mark()
            if number < 0:
                mark.time = 0.0
        return mark


def ends_of(states: Iterable[State]) -> dict[int, float]:
    """Step -> seconds at which the last of the ranks has ended it."""
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
        """Resumes the thread: what it waited for happened at `time` (seconds). If the thread runs right now, it takes this time from
        `woken` when it comes to its wait."""
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
        """Runs the thread to its first wait, or to its end."""
        self.running = True
        self.done = next(self.body, self) is self
        self.running = False


def mark_of(this: Instruction, index: int, state: State, latest: dict[str, Mark]) -> Mark:
    """The op's event: with a `shift`, the event of that number; else a new one for a record, and the latest one for a wait (as in CUDA, a
    wait for an event that was never recorded does not wait)."""
    if this.shift is not None:
        return state.mark(this.event, index + this.shift)
    mark = None if this.kind == RECORD else latest.get(this.event)
    if mark is None:
        mark = latest[this.event] = Mark()
        if this.kind != RECORD:
            mark.time = 0.0
    return mark
