"""A segment's ops as moves for `inorder`: priced once, and put into an order in which each can be timed at once.

A kernel's end is known when all collectives are that may run beside it. So the ops of the compute lane are put off until something on
another lane, or the thread, waits for them; the order on each lane, and when the thread issues each op, stay what they were.

A segment whose first collectives wait for none of its own kernels (a backward pass that gathers parameters) may begin beside the kernels of
the call before. The two are then arranged as one.
"""

from __future__ import annotations

from sim.cost.price import Cost
from sim.engine.moves import (
    AWAIT,
    BESIDE,
    DRAIN,
    HAND,
    HOLD,
    JOIN,
    KERNEL,
    MEET,
    PASS,
    PLAIN,
    RECORD,
    RECORDED,
    WAIT,
    Arrival,
    Code,
    Lane,
    Line,
    Move,
    Rank,
    Unordered,
)
from sim.engine.pricing import Pricing
from sim.engine.seats import Seats
from sim.program import COMPUTE, MEETING, MESSAGE, Call, Op


class Arranger:
    """Makes code for the ranks of one run."""

    def __init__(self, prices: Pricing) -> None:
        self._prices = prices
        self._seats = Seats[Arrival](prices.groups)
        self._sheets: dict[tuple[str, tuple[str, ...]], Sheet] = {}
        """By thread and segments: moves that are the same for all ranks."""
        self._free: dict[str, bool] = {}

    @property
    def waiting(self) -> bool:
        """Somebody has come to a meeting, and the others never did."""
        return next(self._seats.waiting(), None) is not None

    def lines(self, rank: Rank, thread: str, calls: tuple[Call, ...]) -> list[Line]:
        """A thread's calls with their code. Raises `Unordered` as `code` does."""
        names = dict.fromkeys([call.segment for call in calls])
        free = {name for name in names if self._begins(name)} if rank.slow != 1.0 else set[str]()
        if free:
            return self._joined(rank, thread, calls, free)
        code = {name: self.code(rank, thread, (name,)) for name in names}
        return [(call.step, call.index, code[call.segment]) for call in calls]

    def _begins(self, name: str) -> bool:
        """`_free` of a segment, found once for all ranks."""
        found = self._free.get(name)
        if found is None:
            found = self._free[name] = _free(self._prices.program.segments[name])
        return found

    def _joined(self, rank: Rank, thread: str, calls: tuple[Call, ...], free: set[str]) -> list[Line]:
        """Each call that begins beside the kernels of the one before together with that one."""
        alone = {call.segment: (call.segment,) for call in calls}
        runs: list[tuple[int, int, tuple[str, ...]]] = []
        for call in calls:
            names: tuple[str, ...] = alone[call.segment]
            if call.segment in free and runs and runs[-1][:2] == (call.step, call.index):
                names = runs.pop()[2] + names
            runs.append((call.step, call.index, names))
        code = {names: self.code(rank, thread, names) for names in dict.fromkeys(names for _, _, names in runs)}
        return [(step, index, code[names]) for step, index, names in runs]

    def code(self, rank: Rank, thread: str, names: tuple[str, ...]) -> Code:
        """The moves of segments that are called one after the other, as `thread` of the rank makes them. Raises `Unordered` for ops that
        meet others on the thread's own lane, and for a device lane that two threads put ops on."""
        sheet = self._sheets.get((thread, names))
        if sheet is None:
            sheet = self._sheet(rank, thread, names)
            if self._prices.alike and sheet.common:
                self._sheets[thread, names] = sheet
        lanes: dict[str, Lane] = {}
        for name in sheet.lanes:
            if name != thread and rank.users.setdefault(name, thread) != thread:
                raise Unordered
            lanes[name] = rank.lane(name)
        moves = [
            (does, lanes[name], at, seconds, event, shift, share, None)
            if meets is None
            else self._meeting(rank, does, lanes[name], at, event, share, meets)
            for does, name, at, seconds, event, shift, share, meets in sheet.moves
        ]
        return moves, sheet.clock

    def _sheet(self, rank: Rank, thread: str, names: tuple[str, ...]) -> Sheet:
        made = Sheet(thread)
        for op, cost in (priced for name in names for priced in self._prices.unshared(rank.rank, thread, name)):
            name, kind, host, clock = op.lane, op.kind, cost.host, made.clock
            made.common = made.common and not cost.uses
            if name == thread:
                self._thread(made, op, cost)
                continue
            made.lanes[name] = None
            at = clock + (cost.ready - cost.seconds if cost.ready else host)
            made.clock = clock + host
            if kind == "record" or kind == "wait":
                made.orders((RECORD if kind == "record" else WAIT, name, at, 0.0, op.event, op.shift, 0.0, None))
            else:
                made.put(_device(rank, op, cost, at))
            if op.blocking:
                made.stop((HOLD, name, 0.0, 0.0, "", None, 0.0, None))
        made.moves += made.held
        return made

    def _thread(self, made: Sheet, op: Op, cost: Cost) -> None:
        """What the thread does itself."""
        own = made.thread
        if op.kind == "record":
            made.clock += cost.host
            made.moves.append((RECORDED, own, made.clock, 0.0, op.event, op.shift, 0.0, None))
        elif op.kind in ("wait", "sync"):
            made.stop((AWAIT if op.event else DRAIN, own, cost.host, 0.0, op.event or op.name, op.shift, 0.0, None))
        elif op.kind in MEETING:
            raise Unordered
        else:
            made.clock += cost.seconds

    def _meeting(self, rank: Rank, does: int, lane: Lane, at: float, event: str, joined: float, op: Op) -> Move:
        """A message or a collective, which costs each rank its own."""
        if op.kind in MESSAGE:
            seconds = self._prices.message(op, rank.rank).seconds if op.kind == "send" else 0.0
            return does, lane, at, seconds, event, None, joined, self._seats.of(op, rank.rank)
        seconds = self._prices.collective(op, rank.rank).seconds
        if len(self._prices.groups.represented(op.group, rank.rank)) > 1:
            if op.lane != COMPUTE and rank.slow != 1.0:
                raise Unordered  # when it slows this rank's kernels is known only once the others have come
            return MEET, lane, at, seconds, "", None, 0.0, self._seats.of(op, rank.rank)
        return PLAIN if op.lane == COMPUTE or rank.slow == 1.0 else BESIDE, lane, at, seconds, "", None, 0.0, None


def _device(rank: Rank, op: Op, cost: Cost, at: float) -> Unbound:
    """An op on a device lane, no record and no wait, that may start `at` seconds after the thread's last wait."""
    if op.kind in MEETING:
        return MEET, op.lane, at, 0.0, "", None, 0.0, op
    if op.kind == "compute" and rank.slow != 1.0:
        return KERNEL, op.lane, at, cost.seconds, "", None, cost.seconds / cost.beside if cost.beside else 1.0 / rank.slow, None
    return PLAIN, op.lane, at, cost.seconds, "", None, 0.0, None


Unbound = tuple[int, str, float, float, str, int | None, float, Op | None]
"""A move of no rank in particular: its lane by name, and the op that meets others in place of its seat."""


class Sheet:
    """The moves of some segments so far, those of the compute lane that are held back, and the thread's seconds since its last wait."""

    def __init__(self, thread: str) -> None:
        self.thread = thread
        self.moves: list[Unbound] = []
        self.held: list[Unbound] = []
        self.named: set[str] = set()
        """Events that have been held back."""
        self.lanes: dict[str, None] = {thread: None}
        self.clock = 0.0
        self.common = True
        """No op takes what is its rank's own (links, disks)."""

    def put(self, move: Unbound) -> None:
        """What takes time on a device lane."""
        last, op = self.moves[-1] if self.moves else None, move[7]
        if op is not None and op.kind in MESSAGE and last and last[:2] == (JOIN, op.lane):
            self.moves[-1] = (HAND, *move[1:4], *last[4:7], op)
        else:
            (self.held if move[1] == COMPUTE else self.moves).append(move)

    def orders(self, move: Unbound) -> None:
        """A record or a wait."""
        event = move[4]
        if move[1] == COMPUTE:
            self.named.add(event)
        elif event in self.named:
            self._let(event, move[0] == RECORD)
        last = self.moves[-1] if self.moves else None
        if move[0] == WAIT and last and last[:2] == (RECORD, COMPUTE) and (last[4], last[5], move[5]) == (event, None, None):
            # The commonest pair: the lane goes on where the compute lane is now.
            self.moves[-1] = (JOIN, *move[1:6], last[2], None)
        else:
            self.put(move)

    def _let(self, event: str, waits: bool) -> None:
        """What is held back goes on, up to where it records the event, or (where that is recorded anew) also `waits` for it."""
        held = self.held
        for at in range(len(held) - 1, -1, -1):
            if held[at][4] == event and (waits or held[at][0] == RECORD):
                self.moves += held[: at + 1]
                del held[: at + 1]
                return

    def stop(self, move: Unbound) -> None:
        """The thread waits: everything before is timed first."""
        self.moves += self.held
        self.held.clear()
        if self.clock:
            self.moves.append((PASS, self.thread, self.clock, 0.0, "", None, 0.0, None))
        self.moves.append(move)
        self.clock = 0.0


def _free(ops: tuple[Op, ...]) -> bool:
    """May a collective of the segment begin before the kernels of the call before have ended? Not where its lane waits for what the compute
    lane has run up to a record of this very segment, or for what did."""
    recorded: set[str] = set()
    after = {COMPUTE}
    for op in ops:
        kind = op.kind
        if kind == "compute":
            continue
        if kind == "record":
            if op.lane in after:
                recorded.add(op.event)
        elif kind == "wait":
            if op.event in recorded:
                after.add(op.lane)
        elif kind == "collective" and op.lane not in after:
            return True
    return False
