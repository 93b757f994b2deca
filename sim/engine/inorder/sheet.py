"""The ops of segments as moves that belong to no rank yet: priced once, in an order in which each can be timed when it is reached.

A kernel's end is known once all collectives that may run beside it are timed. So ops of the compute lane are held back until something
on another lane, or the thread, waits for them. The order on each lane, and the time at which the thread issues each op, do not change.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

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
    Move,
    Unordered,
)
from sim.program import COMPUTE, MEETING, MESSAGE, Op


class Unbound(NamedTuple):
    """A `Move` that belongs to no rank yet. In place of the seat it has the op that meets others, or None."""

    does: int
    lane: str
    at: float = 0.0
    """Its earliest start, seconds after the thread's clock."""
    seconds: float = 0.0
    event: str = ""
    shift: int | None = None
    share: float = 0.0
    """The share of its speed that a kernel has beside a collective. Of JOIN and WIRE: when compute's event is recorded, in seconds
    after the thread's clock."""
    op: Op | None = None


class Sheet:
    """The moves of segments that `thread` calls one after the other. `slow`: how many times as long kernels take beside a collective."""

    def __init__(self, thread: str, slow: float, ops: Iterable[Priced], wires: Container[str] = ()) -> None:
        """`wires`: lanes that are wires. Raises `Unordered` for ops that meet others on the thread's own lane."""
        self._thread, self._slow, self._wires = thread, slow, wires
        self.moves: list[Unbound] = []
        self.lanes: dict[str, Op | None] = {thread: None}
        """The lanes that it uses. Value: of a wire a message on it, else None."""
        self.clock = 0.0
        """The thread's seconds since its last wait."""
        self.common = True
        """No op uses resources of its own rank (links, disks), so that ranks can share the sheet."""
        self._held: list[Unbound] = []
        """Moves of the compute lane that are held back."""
        self._named: set[str] = set()
        """Events that moves of the compute lane record or wait for."""
        for op, cost in ops:
            self.common = self.common and not cost.uses
            if op.lane == thread:
                self._run_on_thread(op, cost)
            else:
                self._put_on_lane(op, cost)
        self.moves = _joined(self.moves + self._held, slow)
        self.meets = [at for at, move in enumerate(self.moves) if move.op is not None]
        """Indices of the moves that differ by rank: messages and collectives."""
        self.plain: list[Move] = [(*move[:7], None) for move in self.moves]
        """As `run` takes them: plain tuples, which unpack faster. Those of `meets` are filled in rank by rank."""

    def _run_on_thread(self, op: Op, cost: Cost) -> None:
        """Adds an op that the thread runs itself. Raises `Unordered` for one that meets other ranks."""
        own = self._thread
        if op.kind == "record":
            self.clock += cost.host
            self.moves.append(Unbound(RECORDED, own, self.clock, event=op.event, shift=op.shift))
        elif op.kind in ("wait", "sync"):
            self._flush_and_wait(Unbound(AWAIT if op.event else DRAIN, own, cost.host, event=op.event or op.name, shift=op.shift))
        elif op.kind in MEETING:
            raise Unordered
        else:
            self.clock += cost.seconds

    def _put_on_lane(self, op: Op, cost: Cost) -> None:
        """Adds an op that the thread puts on a device lane."""
        name, kind = op.lane, op.kind
        if name not in self.lanes and (name not in self._wires or kind in MESSAGE):
            self.lanes[name] = op if name in self._wires else None
        at = self.clock + (cost.ready - cost.seconds if cost.ready else cost.host)
        self.clock += cost.host
        if kind == "record" or kind == "wait":
            self._record_or_wait(Unbound(RECORD if kind == "record" else WAIT, name, at, event=op.event, shift=op.shift))
        elif kind in MEETING:
            self._append(Unbound(MEET, name, at, op=op))
        elif kind == "compute" and self._slow != 1.0:
            share = cost.seconds / cost.slowed if cost.slowed else 1.0 / self._slow
            self._append(Unbound(KERNEL if name == COMPUTE else ASIDE, name, at, cost.seconds, share=share))
        else:
            self._append(Unbound(PLAIN, name, at, cost.seconds))
        if op.blocking:
            self._flush_and_wait(Unbound(HOLD, name))

    def _append(self, move: Unbound) -> None:
        """Adds a move of a device lane. Those of the compute lane are held back."""
        if move.lane in self._wires:
            last = self.moves[-1]
            # A message takes the place of the wait before it, and the record of its end is part of it.
            if move.does == RECORD:
                self.moves[-1] = last._replace(event=move.event, shift=move.shift)
            else:
                sent = move.op if move.op and move.op.kind == "send" else None  # what is received costs its rank nothing
                self.moves[-1] = move._replace(does=WIRE, share=last.share, op=sent)
        else:
            (self._held if move.lane == COMPUTE else self.moves).append(move)

    def _record_or_wait(self, move: Unbound) -> None:
        event, elsewhere = move.event, move.lane != COMPUTE
        if not elsewhere:
            self._named.add(event)
        elif event in self._named:
            self._release(event, move.does == RECORD)
        last = self.moves[-1] if self.moves else None
        follows = last and (last.does, last.lane, last.event) == (RECORD, COMPUTE, event) and last.shift is move.shift is None
        if last and follows and elsewhere and move.does == WAIT:
            # The commonest pair: the lane goes on where the compute lane is now.
            self.moves[-1] = move._replace(does=JOIN, share=last.at)
        else:
            self._append(move)

    def _release(self, event: str, waits: bool) -> None:
        """Stops holding moves back, up to the last one that records `event`; with `waits` (another lane records it anew) up to the last
        one that records it or waits for it."""
        held = self._held
        for at in range(len(held) - 1, -1, -1):
            if held[at].event == event and (waits or held[at].does == RECORD):
                self.moves += held[: at + 1]
                del held[: at + 1]
                return

    def _flush_and_wait(self, move: Unbound) -> None:
        """Adds a wait of the thread. All that comes before must be timed first, so nothing is held back any longer."""
        self.moves += self._held
        self._held.clear()
        if self.clock:
            self.moves.append(Unbound(PASS, self._thread, self.clock))
        self.moves.append(move)
        self.clock = 0.0


def _joined(moves: list[Unbound], slow: float) -> list[Unbound]:
    """Joins a kernel with the wait before it into one move, and a collective that slows kernels with the record of its end. When the
    thread put the wait or the record on its lane does not matter: the kernel, and whatever waits for the end, is put there later."""
    found: list[Unbound] = []
    last: Unbound | None = None
    for move in moves:
        waits = last and (last.does, last.lane) == (WAIT, COMPUTE)
        slows = last and slow != 1.0 and last.lane != COMPUTE and last.op and last.op.kind == "collective"
        if last and waits and move.does == KERNEL:
            found[-1] = last = move._replace(does=TAKE, at=max(last.at, move.at), event=last.event, shift=last.shift)
        elif last and slows and move.does == RECORD and move.lane == last.lane:
            found[-1] = last = last._replace(event=move.event, shift=move.shift)
        else:
            found.append(move)
            last = move
    return found


def free_of(ops: tuple[Op, ...]) -> bool:
    """Whether a collective of the segment may begin before the kernels of the call before have ended. It may not if its lane first
    waits for an event that this same segment records on the compute lane, or on another lane that has waited for such an event."""
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
