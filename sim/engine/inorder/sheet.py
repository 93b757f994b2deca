"""Segments' ops as moves of no rank in particular, priced once, and put into an order in which each can be timed at once.

A kernel's end is known when all collectives are that may run beside it. So the ops of the compute lane are put off until something on
another lane, or the thread, waits for them; the order on each lane, and when the thread issues each op, stay what they were.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from sim.cost.price import Cost
from sim.engine.fuse import Priced
from sim.engine.inorder.moves import (
    ASIDE,
    AWAIT,
    DRAIN,
    HOLD,
    JOIN,
    KERNEL,
    MEET,
    PASS,
    PLAIN,
    RECORD,
    RECORDED,
    TAKE,
    WAIT,
    WIRE,
    Unordered,
)
from sim.program import COMPUTE, MEETING, MESSAGE, Op

Unbound = tuple[int, str, float, float, str, int | None, float, Op | None]
"""A `Move` with the op that meets others in place of its seat."""


class Sheet:
    """The moves of some segments that `thread` calls one after the other; kernels beside a collective are as slow as `slow` times."""

    def __init__(self, thread: str, slow: float, ops: Iterable[Priced], wires: Container[str] = ()) -> None:
        """`wires`: lanes that are wires. Raises `Unordered` for ops that meet others on the thread's own lane."""
        self._thread, self._slow, self._wires = thread, slow, wires
        self.moves: list[Unbound] = []
        self.lanes: dict[str, Op | None] = {thread: None}
        """Those it uses; of a wire, a message on it."""
        self.clock = 0.0
        """The thread's seconds since its last wait."""
        self.common = True
        """No op takes what is its rank's own (links, disks)."""
        self._held: list[Unbound] = []
        """Of the compute lane, held back ..."""
        self._named: set[str] = set()
        """... with these events."""
        for op, cost in ops:
            self.common = self.common and not cost.uses
            if op.lane == thread:
                self._does(op, cost)
            else:
                self._queues(op, cost)
        self.moves = _joined(self.moves + self._held, slow)
        self.meets = [at for at, move in enumerate(self.moves) if move[7] is not None]
        """Which of the moves are a rank's own."""

    def _does(self, op: Op, cost: Cost) -> None:
        """What the thread does itself."""
        own = self._thread
        if op.kind == "record":
            self.clock += cost.host
            self.moves.append((RECORDED, own, self.clock, 0.0, op.event, op.shift, 0.0, None))
        elif op.kind in ("wait", "sync"):
            self._stop((AWAIT if op.event else DRAIN, own, cost.host, 0.0, op.event or op.name, op.shift, 0.0, None))
        elif op.kind in MEETING:
            raise Unordered
        else:
            self.clock += cost.seconds

    def _queues(self, op: Op, cost: Cost) -> None:
        """What the thread puts on a device lane."""
        name, kind = op.lane, op.kind
        if name not in self.lanes and (name not in self._wires or kind in MESSAGE):
            self.lanes[name] = op if name in self._wires else None
        at = self.clock + (cost.ready - cost.seconds if cost.ready else cost.host)
        self.clock += cost.host
        if kind == "record" or kind == "wait":
            self._orders((RECORD if kind == "record" else WAIT, name, at, 0.0, op.event, op.shift, 0.0, None))
        elif kind in MEETING:
            self._put((MEET, name, at, 0.0, "", None, 0.0, op))
        elif kind == "compute" and self._slow != 1.0:
            share = cost.seconds / cost.beside if cost.beside else 1.0 / self._slow
            self._put((KERNEL if name == COMPUTE else ASIDE, name, at, cost.seconds, "", None, share, None))
        else:
            self._put((PLAIN, name, at, cost.seconds, "", None, 0.0, None))
        if op.blocking:
            self._stop((HOLD, name, 0.0, 0.0, "", None, 0.0, None))

    def _put(self, move: Unbound) -> None:
        """What takes time on a device lane."""
        if move[1] in self._wires:
            last = self.moves[-1]
            # A message takes the place of the wait before it, and the record of its end is part of it.
            if move[0] == RECORD:
                self.moves[-1] = (*last[:4], move[4], move[5], *last[6:])
            else:
                sent = move[7] if move[7] and move[7].kind == "send" else None  # what is received costs its rank nothing
                self.moves[-1] = (WIRE, *move[1:4], "", None, last[6], sent)
        else:
            (self._held if move[1] == COMPUTE else self.moves).append(move)

    def _orders(self, move: Unbound) -> None:
        """A record or a wait."""
        event = move[4]
        if move[1] == COMPUTE:
            self._named.add(event)
        elif event in self._named:
            self._let(event, move[0] == RECORD)
        last = self.moves[-1] if self.moves else None
        if (
            move[0] == WAIT
            and move[1] != COMPUTE
            and last
            and last[:2] == (RECORD, COMPUTE)
            and (last[4], last[5], move[5]) == (event, None, None)
        ):
            # The commonest pair: the lane goes on where the compute lane is now.
            self.moves[-1] = (JOIN, *move[1:6], last[2], None)
        else:
            self._put(move)

    def _let(self, event: str, waits: bool) -> None:
        """What is held back goes on, up to where it records the event, or (where that is recorded anew) also `waits` for it."""
        held = self._held
        for at in range(len(held) - 1, -1, -1):
            if held[at][4] == event and (waits or held[at][0] == RECORD):
                self.moves += held[: at + 1]
                del held[: at + 1]
                return

    def _stop(self, move: Unbound) -> None:
        """The thread waits: everything before is timed first."""
        self.moves += self._held
        self._held.clear()
        if self.clock:
            self.moves.append((PASS, self._thread, self.clock, 0.0, "", None, 0.0, None))
        self.moves.append(move)
        self.clock = 0.0


def _joined(moves: list[Unbound], slow: float) -> list[Unbound]:
    """A kernel and the event that it waits for as one move, and a collective that slows kernels with the event of its end. When the thread
    has put the event on its lane does not matter: the kernel, and whatever waits for the end, is put there later."""
    found: list[Unbound] = []
    last: Unbound | None = None
    for move in moves:
        does = move[0]
        if last and does == KERNEL and last[0] == WAIT and last[1] == COMPUTE:
            found[-1] = last = (TAKE, COMPUTE, max(last[2], move[2]), move[3], last[4], last[5], move[6], None)
        elif last and does == RECORD and slow != 1.0 and last[1] == move[1] != COMPUTE and last[7] and last[7].kind == "collective":
            found[-1] = last = (*last[:4], move[4], move[5], *last[6:])
        else:
            found.append(move)
            last = move
    return found


def free_of(ops: tuple[Op, ...]) -> bool:
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
