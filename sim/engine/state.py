"""What the engine keeps while it runs: items on lanes, marks (events), lanes, ranks.

Nothing here knows time's order: `sim.engine.run` moves these by the rules of CUDA's streams and events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sim.cost.price import Cost
from sim.engine.seats import Table
from sim.program import Call, Op

Resume = Callable[[float, "Item | None"], None]
"""Called with the time from which the waiter may go on, and the item that let it."""


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
        """What needs others: where it meets them, and its number there (a message's as it was issued)."""

    @property
    def ready(self) -> float:
        """Earliest start that the launches allow: the k-th kernel of an op waits for the k-th launch (max-plus)."""
        cost = self.cost
        return self.issued + (cost.ready - cost.seconds if cost.ready else cost.host)


class Mark:
    """An event: not yet, or happened at `time`. Waiters are called once, at the moment when the time is known."""

    __slots__ = ("item", "time", "waiters")

    def __init__(self) -> None:
        self.time: float | None = None
        self.item: Item | None = None
        self.waiters: list[Resume] = []

    def fire(self, time: float, item: Item | None) -> None:
        """It happened at `time` (seconds), by `item`: everybody who waits goes on."""
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
        """Event number `number` (across threads); what lies before the beginning has happened."""
        mark = self.numbered.get((event, number))
        if mark is None:
            mark = self.numbered[event, number] = Mark()
            if number < 0:
                mark.time = 0.0
        return mark
