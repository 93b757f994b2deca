"""A segment's ops as moves for `inorder`: priced once, and put into an order in which each can be timed at once.

A kernel's end is known when all collectives are that may run beside it. So the ops of the compute lane are put off until something on
another lane, or the thread, waits for them; the order on each lane, and when the thread issues each op, stay what they were.
"""

from __future__ import annotations

from sim.cost.price import Cost
from sim.engine.moves import (
    AWAIT,
    BESIDE,
    DRAIN,
    HOLD,
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
    Move,
    Rank,
    Unordered,
)
from sim.engine.pricing import Pricing
from sim.engine.seats import Seats
from sim.program import COMPUTE, MEETING, MESSAGE, Op


class Arranger:
    """Makes code for the ranks of one run."""

    def __init__(self, prices: Pricing) -> None:
        self._prices = prices
        self._seats = Seats[Arrival](prices.groups)

    @property
    def waiting(self) -> bool:
        """Somebody has come to a meeting, and the others never did."""
        return next(self._seats.waiting(), None) is not None

    def code(self, rank: Rank, thread: str, name: str) -> Code:
        """The moves of one segment, as `thread` of the rank makes them. Raises `Unordered` for ops that meet others on the thread's
        own lane, and for a device lane that two threads put ops on."""
        made = _Line(rank.lane(thread))
        for op, cost in self._prices.segment(rank.rank, thread, name):
            if op.lane == thread:
                self._thread(made, op, cost)
                continue
            if rank.users.setdefault(op.lane, thread) != thread:
                raise Unordered
            lane = rank.lane(op.lane)
            made.put(self._device(rank, lane, op, cost, made.clock + (cost.ready - cost.seconds if cost.ready else cost.host)))
            made.clock += cost.host
            if op.blocking:
                made.stop((HOLD, lane, 0.0, 0.0, "", None, 0.0, None))
        made.stop(None)
        return made.moves

    def _thread(self, made: _Line, op: Op, cost: Cost) -> None:
        """What the thread does itself."""
        if op.kind == "record":
            made.clock += cost.host
            made.moves.append((RECORDED, made.own, made.clock, 0.0, op.event, op.shift, 0.0, None))
        elif op.kind in ("wait", "sync"):
            made.stop((AWAIT if op.event else DRAIN, made.own, cost.host, 0.0, op.event or op.name, op.shift, 0.0, None))
        elif op.kind in MEETING:
            raise Unordered
        else:
            made.clock += cost.seconds

    def _device(self, rank: Rank, lane: Lane, op: Op, cost: Cost, at: float) -> Move:
        """An op on a device lane that may start `at` seconds after the thread's last wait."""
        if op.kind == "record":
            return RECORD, lane, at, 0.0, op.event, op.shift, 0.0, None
        if op.kind == "wait":
            return WAIT, lane, at, 0.0, op.event, op.shift, 0.0, None
        if op.kind in MESSAGE:
            seconds = self._prices.message(op, rank.rank).seconds if op.kind == "send" else 0.0
            return MEET, lane, at, seconds, "", None, 0.0, self._seats.of(op, rank.rank)
        if op.kind == "collective":
            seconds = self._prices.collective(op, rank.rank).seconds
            if len(self._prices.groups.represented(op.group, rank.rank)) > 1:
                if op.lane != COMPUTE and rank.slow != 1.0:
                    raise Unordered  # when it slows this rank's kernels is known only once the others have come
                return MEET, lane, at, seconds, "", None, 0.0, self._seats.of(op, rank.rank)
            return PLAIN if op.lane == COMPUTE or rank.slow == 1.0 else BESIDE, lane, at, seconds, "", None, 0.0, None
        if op.kind == "compute" and rank.slow != 1.0:
            return KERNEL, lane, at, cost.seconds, "", None, cost.seconds / cost.beside if cost.beside else 1.0 / rank.slow, None
        return PLAIN, lane, at, cost.seconds, "", None, 0.0, None


class _Line:
    """Moves so far, those of the compute lane that are held back, and the thread's seconds since its last wait."""

    def __init__(self, own: Lane) -> None:
        self.own = own
        self.moves: list[Move] = []
        self.held: list[Move] = []
        self.clock = 0.0

    def put(self, move: Move) -> None:
        if move[1].name == COMPUTE:
            self.held.append(move)
            return
        if move[0] == WAIT:
            self._let(move[4])
        self.moves.append(move)

    def _let(self, event: str) -> None:
        """What is held back goes on, up to where it records the event."""
        for at in range(len(self.held) - 1, -1, -1):
            if self.held[at][0] == RECORD and self.held[at][4] == event:
                self.moves += self.held[: at + 1]
                del self.held[: at + 1]
                return

    def stop(self, move: Move | None) -> None:
        """The thread waits, or (None) the segment ends: everything before is timed first."""
        self.moves += self.held
        self.held.clear()
        if self.clock:
            self.moves.append((PASS, self.own, self.clock, 0.0, "", None, 0.0, None))
        self.moves += [move] if move is not None else []
        self.clock = 0.0
