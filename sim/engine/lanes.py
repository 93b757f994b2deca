"""How a lane runs its queue: in order, one op at a time, as a CUDA stream does.

A plain op needs one SimPy event, its end. A compute op that runs beside a collective on the same rank, on whatever lane, is slowed by
the rank's factor, and speeds up when the collective ends. Ops that use shared resources run as flows (`sharing`).
"""

from __future__ import annotations

from collections.abc import Callable

from sim.engine.agenda import Clock
from sim.engine.meeting import Meetings
from sim.engine.sharing import Sharing
from sim.engine.state import Item, Lane, RankState
from sim.program import EVENTS, MESSAGE, Op


class Lanes:
    """Runs the items of all lanes. `meets(op)`: whether the op needs other ranks, which it meets in `meetings`. `finished(item)` is
    called when an item has ended."""

    def __init__(
        self, clock: Clock, sharing: Sharing, meetings: Meetings, meets: Callable[[Op], bool], finished: Callable[[Item], None]
    ) -> None:
        self._clock, self._sharing, self._meetings, self._meets, self._finished = clock, sharing, meetings, meets, finished

    def push(self, state: RankState, item: Item) -> None:
        """Queues an op on its lane."""
        if item.op.kind in MESSAGE:
            self._meetings.number(item)
        lane = state.lane(item.lane)
        lane.last = item
        lane.queue.append(item)
        if not lane.busy:
            self._next(state, lane)

    def _next(self, state: RankState, lane: Lane) -> None:
        """Takes ops from the queue until one occupies the lane."""
        while lane.queue and not lane.busy:
            item = lane.queue.popleft()
            kind = item.op.kind
            if kind == "record":
                mark = item.mark
                assert mark is not None
                self.ended(lane, item, self._settle(lane, item))
                mark.fire(item.end, item)  # who waited for the lane may have put more on it
            elif kind == "wait":
                self._wait(state, lane, item)
            else:
                self._begin(state, lane, item)

    def _settle(self, lane: Lane, item: Item) -> float:
        """When the op may start (seconds). Where that is its lane's last op, and not the launch, notes this in the item."""
        free, ready = lane.free, item.ready
        if ready > free:
            return ready
        if lane.last_done is not None:
            item.bound, item.after = "lane", lane.last_done
        return free

    def _wait(self, state: RankState, lane: Lane, item: Item) -> None:
        mark = item.mark
        assert mark is not None
        item.start = self._settle(lane, item)

        def resume(time: float, by: Item | None) -> None:
            if time > item.start:
                item.bound, item.after = "event", by
            self.ended(lane, item, max(item.start, time))
            self._next(state, lane)

        if mark.time is None:
            lane.busy, lane.current = True, item
            mark.waiters.append(resume)
        else:
            if mark.time > item.start:
                item.bound, item.after = "event", mark.item
            self.ended(lane, item, max(item.start, mark.time))

    def ended(self, lane: Lane, item: Item, time: float) -> None:
        """Frees the lane at `time` and tells whoever waits for the op."""
        if item.start < 0:
            item.start = time
        item.end = lane.free = time
        if item.op.kind not in EVENTS or item.bound != "lane":
            lane.last_done = item
        lane.busy, lane.current = False, None
        self._finished(item)
        waiters, item.waiters = item.waiters, []
        for resume in waiters:
            resume(time, item)

    def _begin(self, state: RankState, lane: Lane, item: Item) -> None:
        start = self._settle(lane, item)
        lane.busy, lane.current = True, item
        item.start = start
        if self._meets(item.op):
            self._meetings.arrive(item, start)
        elif item.cost.uses and item.cost.seconds > 0:
            self.at(start, lambda: self.flow(item, lambda: self.release(state, lane, item, self._clock.now)))
        else:
            lane.work, lane.since = item.cost.seconds, start
            lane.rate = _beside(state, item) if state.comm and item.op.kind == "compute" else 1.0
            self._schedule_end(state, lane, item)

    def _schedule_end(self, state: RankState, lane: Lane, item: Item) -> None:
        lane.ticket += 1
        self._clock.after(max(0.0, lane.since + lane.work / lane.rate - self._clock.now), self._due, state, lane, item, lane.ticket)

    def _due(self, state: RankState, lane: Lane, item: Item, ticket: int) -> None:
        """The op ends, unless its speed has changed since."""
        if lane.ticket == ticket:
            self.release(state, lane, item, lane.since + lane.work / lane.rate)

    def flow(self, item: Item, done: Callable[[], None]) -> None:
        """Runs an op that shares resources: first its latency, alone, then the rest as a flow."""
        cost = item.cost
        if not cost.uses:
            self.at(self._clock.now + cost.seconds, done)
        elif cost.seconds <= cost.latency:
            self.at(self._clock.now + cost.latency, done)
        elif cost.latency > 0:
            work = cost.seconds - cost.latency
            self.at(self._clock.now + cost.latency, lambda: self._sharing.start(work, cost.uses, done, cost.share))
        else:
            self._sharing.start(cost.seconds, cost.uses, done, cost.share)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Calls `action` at `time` (seconds); at once if `time` is not later than now."""
        if time <= self._clock.now:
            action()
        else:
            self._clock.after(time - self._clock.now, action)

    def release(self, state: RankState, lane: Lane, item: Item, time: float) -> None:
        """Ends an op, and lets its lane go on."""
        self.ended(lane, item, time)
        if lane.queue:
            self._next(state, lane)

    def comm_changed(self, state: RankState, delta: int) -> None:
        """A collective began (+1) or ended (-1) beside compute: the compute ops that run change their speed."""
        before = state.comm
        state.comm += delta
        if state.slow == 1.0 or (before > 0) == (state.comm > 0):
            return
        for lane in state.lanes.values():
            item = lane.current
            if item is None or item.op.kind != "compute" or item.cost.uses:
                continue
            now = max(self._clock.now, lane.since)
            lane.work = max(0.0, lane.work - (now - lane.since) * lane.rate)
            lane.since = now
            lane.rate = _beside(state, item) if state.comm else 1.0
            self._schedule_end(state, lane, item)


def _beside(state: RankState, item: Item) -> float:
    """Share of its speed, 0 to 1, that a kernel (or an op fused of several) has beside a collective."""
    return item.cost.seconds / item.cost.slowed if item.cost.slowed else 1.0 / state.slow
