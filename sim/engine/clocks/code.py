"""Turns priced ops into instructions for `sim.engine.clocks.run`: all that a thread must know of an op, looked up once for each rank and
segment."""

from __future__ import annotations

from sim.cost.price import Cost
from sim.engine.clocks.times import (
    FLOW,
    HELD,
    MEET,
    PLAIN,
    QUEUED,
    RECORD,
    RECORDED,
    SYNC,
    WAIT,
    WORK,
    Arrival,
    Code,
    Instruction,
    State,
)
from sim.engine.fuse import Priced
from sim.engine.pricing import Pricing
from sim.engine.seats import Seats
from sim.engine.sharing import merged
from sim.program import COMPUTE, EVENTS, HOST, MEETING, MESSAGE, Op


class Assembler:
    """Makes the instructions of the ranks of one run. The lanes are those of each rank's `State`."""

    def __init__(self, prices: Pricing, idle: frozenset[str] = frozenset()) -> None:
        """`idle`: resources that never limit an op, so that instructions leave them out."""
        self._prices, self._idle = prices, idle
        self._seats = Seats[Arrival](prices.groups)

    def code(self, state: State, thread: str, ops: list[Priced]) -> Code:
        """The instructions of one segment, as `thread` of `state`'s rank runs them. Clears `state.settled` and `state.ordered` where a
        collective beside compute requires it."""
        eager = True
        if any(self._beside(op) for op, _ in ops):
            eager, state.settled = False, state.slow == 1.0
            state.ordered = state.ordered and thread == HOST and self._anchored(ops)
        return [self._one(state, thread, op, cost, eager) for op, cost in ops]

    def _anchored(self, ops: list[Priced]) -> bool:
        """Whether the lane of each collective beside compute first waits for an event that this same segment records on the compute lane.
        Then the collective begins after every kernel of the segments before."""
        recorded: set[str] = set()
        lanes: set[str] = set()
        for op, _ in ops:
            if op.kind == "record" and op.lane == COMPUTE and op.shift is None:
                recorded.add(op.event)
            elif op.kind == "wait" and op.event in recorded and op.shift is None:
                lanes.add(op.lane)
            elif self._beside(op) and op.lane not in lanes:
                return False
        return True

    def waiting(self) -> list[str]:
        """Texts that name ranks which still wait for a peer. Empty when a run has ended well."""
        return [f"rank {state.rank} on {this.lane.name}" for _, state, this, _ in self._seats.waiting()]

    def _beside(self, op: Op) -> bool:
        return op.kind == "collective" and op.lane != COMPUTE and self._prices.meets(op)

    def _one(self, state: State, thread: str, op: Op, cost: Cost, eager: bool) -> Instruction:
        own, meets = op.lane == thread, self._prices.meets(op)
        # The sender knows what a message costs, so a receive's own cost does not count.
        done = self._prices.meeting(op, state.rank) if meets and op.kind != "recv" else cost
        seconds, uses, share = done.seconds, done.uses, done.share
        if uses:
            share = share or merged(uses)[0][1]
            uses = tuple(use for use in uses if use[0] not in self._idle)
        shares = bool(uses) and seconds > 0
        kind = {"record": RECORD, "wait": WAIT}.get(op.kind, MEET if meets else FLOW if shares else PLAIN)
        does = QUEUED
        if own:
            sort = {"sync": SYNC, "wait": SYNC, "record": RECORDED}
            does = sort.get(op.kind, HELD if op.kind in MEETING or shares else WORK)
        lead = cost.ready - cost.seconds if cost.ready else cost.host
        return Instruction(
            does,
            kind,
            state.lane(op.lane),
            cost.host,
            lead,
            seconds,
            thread == HOST and op.kind not in EVENTS,
            op.blocking,
            op.event,
            op.shift,
            done.latency,
            uses,
            share,
            op.kind == "compute",
            cost.seconds / cost.slowed if cost.slowed else 1.0 / state.slow,
            self._seats.of(op, state.rank) if meets else None,
            self._beside(op),
            op.kind in MESSAGE,
            op.kind == "send",
            eager and op.lane == COMPUTE,
            op.name,
        )
