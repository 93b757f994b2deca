"""The data of the engine that makes a trace: items (ops under way), marks (events), lanes and ranks.

These hold state alone; `sim.engine.run` changes it by the rules of CUDA's streams and events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sim.cost.price import Cost
from sim.engine.seats import Table
from sim.program import Call, Op

Resume = Callable[[float, "Item | None"], None]
"""Called with the time (seconds) from which the waiter may go on, and the item that made this possible (None: there is none)."""


class Item:
    """One op on its way: issued by a thread, queued on a lane, run once."""

    __slots__ = (
        "after",
        "bound",
        "call",
        "cost",
        "end",
        "flops",
        "index",
        "issued",
        "lane",
        "mark",
        "op",
        "rank",
        "start",
        "table",
        "thread",
        "turn",
        "wait",
        "waiters",
    )

    def __init__(self, rank: int, thread: str, call: Call, op: Op, cost: Cost, flops: float, issued: float) -> None:
        self.rank, self.thread, self.call, self.op, self.cost, self.flops, self.issued = rank, thread, call, op, cost, flops, issued
        self.lane = op.lane
        self.start = self.end = -1.0
        self.after: Item | None = None
        self.bound = ""
        self.wait = 0.0
        self.mark: Mark | None = None
        self.waiters: list[Resume] = []
        self.index = -1
        self.table: Table[tuple[Item, float]] | None = None
        self.turn = -1
        """`table`, `turn`: for a collective or message, where it meets the others, and its number there. A message gets them when it is
        issued."""

    @property
    def ready(self) -> float:
        """Earliest start that the launches allow: the k-th kernel of an op waits for the k-th launch (max-plus)."""
        cost = self.cost
        return self.issued + (cost.ready - cost.seconds if cost.ready else cost.host)


class Mark:
    """An event. `time`: when it happened (seconds); None: not yet. Waiters are called once, as soon as the time is known."""

    __slots__ = ("item", "time", "waiters")

    def __init__(self) -> None:
        self.time: float | None = None
        self.item: Item | None = None
        self.waiters: list[Resume] = []

    def fire(self, time: float, item: Item | None) -> None:
        """Sets the time (seconds) at which the event happened, and the item that recorded it, and resumes all who wait."""
        self.time, self.item = time, item
        waiters, self.waiters = self.waiters, []
        for resume in waiters:
            resume(time, item)


class Lane:
    """A stream, or a CPU thread's own lane: ops queue in order, one runs."""

    __slots__ = ("busy", "current", "free", "last", "last_done", "name", "queue", "rate", "since", "ticket", "work")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Item] = deque()
        self.free = 0.0
        """When the last op that ran here ended."""
        self.last_done: Item | None = None
        self.last: Item | None = None
        """The op that was queued last: whoever waits for the lane waits for it."""
        self.busy = False
        self.current: Item | None = None
        self.rate = 1.0
        self.work = 0.0
        self.since = 0.0
        self.ticket = 0


class RankState:
    """All lanes and events of one simulated rank."""

    __slots__ = ("comm", "lanes", "latest", "numbered", "rank", "slow", "threads")

    def __init__(self, rank: int, slow: float) -> None:
        self.rank = rank
        self.slow = slow
        """Factor on compute while a collective runs beside it."""
        self.comm = 0
        """Collectives and messages that run on this rank now, on lanes other than compute's own."""
        self.lanes: dict[str, Lane] = {}
        self.latest: dict[tuple[str, str], Mark] = {}
        self.numbered: dict[tuple[str, int], Mark] = {}
        self.threads: set[str] = set()
        """Names of its CPU threads: their own lanes are not the device's, and no synchronisation waits for them."""

    def lane(self, name: str) -> Lane:
        """The rank's lane of this name, made when first asked for."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name)
        return lane

    def mark(self, event: str, number: int) -> Mark:
        """Event number `number`, which all threads of the rank share. Events with negative numbers have happened."""
        mark = self.numbered.get((event, number))
        if mark is None:
            mark = self.numbered[event, number] = Mark()
            if number < 0:
                mark.time = 0.0
        return mark
