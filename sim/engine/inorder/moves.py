"""The data of `sim.engine.inorder.run`: the moves of a thread, and lanes, each with the time at which it is free.

The counterpart of `sim.engine.clocks.times` for a run that looks at no op twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence

from sim.engine.seats import Seat, Table

# What a move does. Plain numbers: the innermost loop of `run` compares them, and members of an enum take several times as long.
TAKE = 0  # the compute lane waits for an event, then runs a kernel
KERNEL = 1  # a kernel on the compute lane, which collectives may slow
JOIN = 2  # an event is recorded on the compute lane, and another lane waits for it at once
WIRE = 3  # JOIN, then a message on a wire (`wires`), then an event when it has ended
WAIT = 4  # a device lane waits for an event
RECORD = 5  # an event is recorded on a device lane
MEET = 6  # an op that meets other ranks
ASIDE = 7  # a kernel on another lane than compute
BESIDE = 8  # a collective that slows kernels, then an event when it has ended
PLAIN = 9  # anything else on a device lane that only takes time
PASS = 10  # the thread's time passes
RECORDED = 11  # the thread records an event
AWAIT = 12  # the thread waits for an event
DRAIN = 13  # the thread waits for lanes
HOLD = 14  # the thread waits for the lane on which it has just put something


class Unordered(Exception):
    """The times of a program cannot be found in program order."""


class Mark:
    """An event. `time`: when it happened (seconds); None: not yet. `waiting`: threads and lanes that go on then."""

    __slots__ = ("time", "waiting")

    def __init__(self) -> None:
        self.time: float | None = None
        self.waiting: list[Body | Lane] = []

    def fire(self, time: float) -> list[Body | Lane]:
        """Sets the time at which the event happened. Returns the threads and lanes that go on."""
        self.time = time
        return self.waiting


Body = Generator[Mark, None, None]
"""A thread: a generator that yields the event which it must wait for."""
Event = float | Mark


class Lane:
    """A lane. `free`: seconds from which on it is free. `queue`: the ops behind one that waits for a peer; None: the lane does not
    wait."""

    __slots__ = ("free", "name", "queue")

    def __init__(self, name: str) -> None:
        self.name, self.free = name, 0.0
        self.queue: deque[Queued] | None = None

    def done(self) -> Event:
        """When the lane has run all that was put on it so far: seconds, or an event if that is not known yet."""
        return self.free if self.queue is None else self.when()

    def when(self) -> Mark:
        """A new event behind all ops in its queue."""
        assert self.queue is not None
        mark = Mark()
        self.queue.append((RECORD, 0.0, 0.0, mark, None, 0))
        return mark


class End(Lane):
    """One rank's lane of a wire (`wires`). `pending`: the messages that only this rank has come to, as (seconds at which it is ready,
    seconds that the message takes as far as this rank knows, step, the event of its end)."""

    __slots__ = ("other", "pending")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.other = self
        self.pending: deque[tuple[float, float, int, Mark]] = deque()

    def done(self) -> Event:
        """When its last message so far has ended."""
        return self.pending[-1][3] if self.pending else self.free


Arrival = tuple[float, float, Lane, int]
"""An op that has come to a meeting: (start, seconds that it takes as far as its rank knows, lane, step)."""
Meeting = tuple[Table[Arrival], int]
Queued = tuple[int, float, float, Event, Meeting | None, int]
"""An op that queues behind a meeting: (what it does, its earliest start, its seconds, its event, its meeting or None, step)."""
Move = tuple[int, str, float, float, str, int | None, float, Seat[Arrival] | None]
"""(what it does, lane, its earliest start in seconds after the thread's clock, its seconds, its event, the event's shift, `share`,
seat). `share`: the share of its speed that a kernel has beside a collective; of `JOIN` and `WIRE`: when compute's event is recorded, in
seconds after the thread's clock. Seat: its place among those it meets, or None."""

Code = tuple[list[Move], float]
"""(moves of one segment, or of several that are called one after the other; the thread's seconds after its last wait in them)."""
Line = tuple[int, int, list[Code], Sequence[tuple[int, int]]]
"""The turns (`sim.turns`) of one step: (step, index of turn number 0, the code of each sort of turn, each turn's sort and number)."""


class Rank:
    """One simulated rank. `busy`: the spans (begin, end) in which collectives run beside kernels; they are in order and do not overlap."""

    __slots__ = ("busy", "kernel", "lanes", "lost", "numbered", "rank", "slow", "threads", "users", "wires")

    def __init__(self, rank: int, slow: float, threads: frozenset[str]) -> None:
        self.rank, self.slow, self.threads = rank, slow, threads
        self.lanes: dict[str, Lane] = {}
        self.wires: dict[str, End] = {}
        """Those of its lanes that are ends of wires."""
        self.numbered: dict[tuple[str, int], Event] = {}
        self.users: dict[str, str] = {}
        """By device lane, the thread that puts ops on it."""
        self.busy: list[tuple[float, float]] = []
        self.kernel = 0.0
        """When the last kernel on the compute lane ends."""
        self.lost = 0.0
        """Seconds that its kernels have taken longer because of collectives beside them."""

    def lane(self, name: str) -> Lane:
        """The rank's lane of this name, made when first asked for."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name)
        return lane

    def event(self, event: str, number: int) -> Event:
        """Event number `number`, which all threads of the rank share. Events with negative numbers have happened."""
        found = self.numbered.get((event, number))
        if found is None:
            found = self.numbered[event, number] = 0.0 if number < 0 else Mark()
        return found

    def aside(self, start: float, seconds: float, share: float) -> float:
        """When a kernel on another lane than compute's ends (seconds). Alone it takes `seconds`; beside collectives it has a `share` of
        its speed. If a collective is timed later, its effect on the kernel is left out: microseconds, as such kernels copy what is
        gathered."""
        return self.slowed(start, seconds, share) if self.busy and self.busy[-1][1] > start else start + seconds

    def occupy(self, begin: float, end: float) -> None:
        """Adds the span of a collective beside kernels. Raises `Unordered` when a kernel that it would have slowed is timed already."""
        if begin < self.kernel:
            raise Unordered
        spans = self.busy
        if not spans or begin > spans[-1][1]:
            spans.append((begin, end))
            return
        at = len(spans)
        while at and spans[at - 1][0] > begin:
            at -= 1
        last = at
        if at and spans[at - 1][1] >= begin:
            at -= 1
            begin, end = spans[at][0], max(end, spans[at][1])
        while last < len(spans) and spans[last][0] <= end:
            end = max(end, spans[last][1])
            last += 1
        spans[at:last] = [(begin, end)]

    def held(self, start: float, seconds: float, share: float) -> float:
        """When a kernel on the compute lane ends (`slowed`); the time that it loses is added to `lost`."""
        end = self.slowed(start, seconds, share)
        self.lost += end - start - seconds
        return end

    def slowed(self, start: float, seconds: float, share: float) -> float:
        """When a kernel ends (seconds) that begins at `start`, takes `seconds` alone and has `share` of its speed beside collectives."""
        spans = self.busy
        at = len(spans)
        while at and spans[at - 1][1] > start:
            at -= 1
        for begin, end in spans[at:]:
            if start + seconds <= begin:
                break
            if start < begin:
                seconds -= begin - start
                start = begin
            if start + seconds / share <= end:
                seconds /= share
                break
            seconds -= (end - start) * share
            start = end
        return start + seconds


class Events:
    """The events that one thread records and waits for. `index`: the index of its present call."""

    __slots__ = ("index", "latest", "rank")

    def __init__(self, rank: Rank) -> None:
        self.rank, self.index = rank, 0
        self.latest: dict[str, Event] = {}

    def of(self, event: str, shift: int | None) -> Event:
        """The event of its number, else the latest (CUDA: one never recorded does not wait)."""
        return self.latest.get(event, 0.0) if shift is None else self.rank.event(event, self.index + shift)

    def new(self, event: str, shift: int | None) -> Mark:
        """A new event, which the thread records now. Its time is set when that is known."""
        if shift is None:
            mark = self.latest[event] = Mark()
            return mark
        found = self.rank.event(event, self.index + shift)
        assert isinstance(found, Mark)
        return found
