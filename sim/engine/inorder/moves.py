"""What `run` goes through: the moves of a thread, and lanes as the times at which they are free.

The counterpart of `sim.engine.clocks.times`, for a run in which no op is looked at twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence

from sim.engine.seats import Seat, Table

# What a move does. Plain numbers: the innermost loop of `run` compares them, and members of an enum take several times as long.
TAKE = 0  # the compute lane waits for an event, then runs a kernel
KERNEL = 1  # a kernel on the compute lane, which collectives may slow
JOIN = 2  # an event recorded on the compute lane, and waited for on another at once
WIRE = 3  # JOIN, then a message on a wire (`wires`), then an event when it has ended
WAIT = 4  # a device lane waits for an event
RECORD = 5  # an event is recorded on a device lane
MEET = 6  # what needs other ranks
ASIDE = 7  # a kernel on another lane than compute
BESIDE = 8  # a collective that slows kernels, then an event when it has ended
PLAIN = 9  # anything else on a device lane that only takes time
PASS = 10  # the thread's time passes
RECORDED = 11  # the thread records an event
AWAIT = 12  # the thread waits for an event
DRAIN = 13  # the thread waits for lanes
HOLD = 14  # the thread waits for the lane on which it has just put something


class Unordered(Exception):
    """The program's times cannot be told in program order."""


class Mark:
    """An event: not yet, or happened at `time` (seconds); `waiting`: threads and lanes that go on then."""

    __slots__ = ("time", "waiting")

    def __init__(self) -> None:
        self.time: float | None = None
        self.waiting: list[Body | Lane] = []

    def fire(self, time: float) -> list[Body | Lane]:
        """It happened at `time`: who goes on."""
        self.time = time
        return self.waiting


Body = Generator[Mark, None, None]
"""A thread, which yields what it cannot go on without."""
Event = float | Mark


class Lane:
    """Free from `free` on; while it waits for a peer, `queue` holds what comes after."""

    __slots__ = ("free", "name", "queue")

    def __init__(self, name: str) -> None:
        self.name, self.free = name, 0.0
        self.queue: deque[Queued] | None = None

    def done(self) -> Event:
        """When it has run what was put on it so far."""
        return self.free if self.queue is None else self.when()

    def when(self) -> Mark:
        """An event behind what has queued on it."""
        assert self.queue is not None
        mark = Mark()
        self.queue.append((RECORD, 0.0, 0.0, mark, None, 0))
        return mark


class End(Lane):
    """One rank's lane of a wire (`wires`). `pending`: of the messages that only this rank has come to, when they are ready, their seconds (as far as
    it knows), their step, and when they end."""

    __slots__ = ("other", "pending")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.other = self
        self.pending: deque[tuple[float, float, int, Mark]] = deque()

    def done(self) -> Event:
        """When its last message so far has ended."""
        return self.pending[-1][3] if self.pending else self.free


Arrival = tuple[float, float, Lane, int]
"""Its start, the seconds that it knows of, its lane, its step."""
Meeting = tuple[Table[Arrival], int]
Queued = tuple[int, float, float, Event, Meeting | None, int]
"""Behind a meeting: what, its earliest start, its seconds, its event, its meeting, its step."""
Move = tuple[int, str, float, float, str, int | None, float, Seat[Arrival] | None]
"""What, on which lane, its earliest start after the thread's clock, its seconds, its event, the event's shift, a kernel's share of its speed
beside a collective (of `JOIN` and `WIRE`: when compute's event is recorded, after the thread's clock), and its place among those it meets."""

Code = tuple[list[Move], float]
"""The moves of one segment, or of some that are called one after the other; the thread's seconds after its last wait in them."""
Line = tuple[int, int, list[Code], Sequence[tuple[int, int]]]
"""Turns of one step: the step, the index of turn number 0, the code of each sort, and each turn's sort and number."""


class Rank:
    """One simulated rank. `busy`: spans, apart and in order, in which collectives run beside kernels."""

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
        """Event number `number`, across threads; what lies before the beginning has happened."""
        found = self.numbered.get((event, number))
        if found is None:
            found = self.numbered[event, number] = 0.0 if number < 0 else Mark()
        return found

    def aside(self, start: float, seconds: float, share: float) -> float:
        """When a kernel on another lane than compute's ends, that would take `seconds` alone and has a `share` of its speed beside
        collectives. What another lane's collective that is timed later takes from it (microseconds: such kernels copy what is gathered) is
        left out."""
        return self.slowed(start, seconds, share) if self.busy and self.busy[-1][1] > start else start + seconds

    def occupy(self, begin: float, end: float) -> None:
        """A collective beside kernels. Raises `Unordered` when a kernel that it would have slowed is over."""
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
        """When a kernel on the compute lane ends; what it loses is counted."""
        end = self.slowed(start, seconds, share)
        self.lost += end - start - seconds
        return end

    def slowed(self, start: float, seconds: float, share: float) -> float:
        """When a kernel ends that would take `seconds` alone and has `share` of its speed beside collectives."""
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
    """What one thread records and waits for; `index` is its call's."""

    __slots__ = ("index", "latest", "rank")

    def __init__(self, rank: Rank) -> None:
        self.rank, self.index = rank, 0
        self.latest: dict[str, Event] = {}

    def of(self, event: str, shift: int | None) -> Event:
        """The event of its number, else the latest (CUDA: one never recorded does not wait)."""
        return self.latest.get(event, 0.0) if shift is None else self.rank.event(event, self.index + shift)

    def new(self, event: str, shift: int | None) -> Mark:
        """An event that is recorded now, and happens when it is known."""
        if shift is None:
            mark = self.latest[event] = Mark()
            return mark
        found = self.rank.event(event, self.index + shift)
        assert isinstance(found, Mark)
        return found
