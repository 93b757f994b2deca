"""How a CPU thread of a rank works through its program.

The thread's clock runs ahead of the simulation while nothing blocks it: a launch costs host time and the thread goes
on. It stops at what blocks: a sync, a blocking op, work that shares CPU cores with others.
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.cost.price import Cost
from sim.engine.lanes import Lanes
from sim.engine.state import Item, Lane, Mark, RankState, Resume
from sim.program import MEETING, Call, Op


class Thread:
    """One CPU thread of one rank. `ops`: what it issues, with the cost and the FLOPs of each."""

    def __init__(self, name: str, state: RankState, ops: Iterator[tuple[Call, Op, Cost, float]], lanes: Lanes) -> None:
        self.name, self.rank, self._state, self._ops, self._lanes = name, state.rank, state, ops, lanes
        self.clock = 0.0
        self.done = False
        self._freed_by: Item | None = None
        self._issuing = self._freed = False
        """`_issuing`: it issues an op now. `_freed`: what this op waits for has come meanwhile."""
        state.threads.add(name)

    def run(self) -> None:
        """Issues ops until one blocks. What that op waits for calls this again, perhaps while the op is still being issued: then only
        `_freed` is set. Hundreds of ops in a row may wait for what has come long ago, so these calls must not nest."""
        if self._issuing:
            self._freed = True
            return
        self._issuing = True
        rank, name = self.rank, self.name
        for call, op, cost, flops in self._ops:
            item = Item(rank, name, call, op, cost, flops, self.clock)
            item.after, item.bound = self._freed_by, "host"
            kind = op.kind
            if kind == "record" or kind == "wait":
                item.mark = self._mark(call, op)
            if self._own(item) if item.lane == name else self._issue(item):
                if not self._freed:
                    self._issuing = False
                    return
                self._freed = False
        self._issuing, self.done = False, True

    def _mark(self, call: Call, op: Op) -> Mark:
        if op.shift is not None:
            return self._state.mark(op.event, call.index + op.shift)
        key = (self.name, op.event)
        if op.kind == "record":
            self._state.latest[key] = Mark()
        mark = self._state.latest.get(key)
        if mark is None:  # CUDA: waiting for an event that was never recorded does not wait
            mark = self._state.latest[key] = Mark()
            mark.time = 0.0
        return mark

    def _issue(self, item: Item) -> bool:
        """Queues an op on a device lane. True when the thread must wait for its end."""
        self.clock += item.cost.host
        if item.op.blocking:
            item.waiters.append(self._resume)
        self._lanes.push(self._state, item)
        return item.op.blocking

    def _resume(self, time: float, by: Item | None) -> None:
        if time > self.clock:
            self.clock, self._freed_by = time, by
        self.run()

    def _own(self, item: Item) -> bool:
        """Runs an op on the thread's own lane. True when the thread must wait."""
        kind = item.op.kind
        if kind == "sync" or kind == "wait":
            return self._sync(item)
        if kind == "record":
            mark = item.mark
            assert mark is not None
            self._finish(item, self.clock + item.cost.host)
            mark.fire(self.clock, item)
            return False
        if kind in MEETING or (item.cost.uses and item.cost.seconds > 0):
            item.waiters.append(self._resume)
            item.issued = self.clock
            self._lanes.push(self._state, item)
            return True
        self._finish(item, self.clock + item.cost.seconds)
        return False

    def _finish(self, item: Item, end: float) -> None:
        lane = self._state.lane(self.name)
        item.start = self.clock
        item.after, item.bound = self._before(lane)
        self.clock = end
        lane.last = item
        self._lanes.ended(lane, item, end)
        self._freed_by = item

    def _before(self, lane: Lane) -> tuple[Item | None, str]:
        """What lets an op of the thread's own begin that need not wait: (item or None, "event" or "lane")."""
        if self._freed_by is not None and self._freed_by is not lane.last_done:  # the thread has waited since, then perhaps launched
            return self._freed_by, "event"
        return lane.last_done, "lane"

    def _sync(self, item: Item) -> bool:
        """Waits for an event, one lane or all lanes; the time spent is the op's span."""
        begin = self.clock
        op = item.op

        def reached(time: float, by: Item | None) -> None:
            item.start = begin
            self.clock = max(begin + item.cost.host, time)
            lane = self._state.lane(self.name)
            item.after, item.bound = (by, "event") if time > begin else self._before(lane)
            lane.last = item
            self._lanes.ended(lane, item, self.clock)
            self._freed_by = item

        if op.event:
            mark = item.mark or self._mark(item.call, op)
            if mark.time is not None:
                reached(mark.time, mark.item)
                return False

            def go_on(time: float, by: Item | None) -> None:
                reached(time, by)
                self.run()

            mark.waiters.append(go_on)
            return True
        return self._drain(op.name, reached)

    def _drain(self, name: str, reached: Resume) -> bool:
        """Waits until the lane, or all of the device's, have run what was queued on them so far."""
        state = self._state
        lanes = [state.lane(name)] if name else [lane for lane in state.lanes.values() if lane.name not in state.threads]
        last = [lane.last for lane in lanes if lane.last is not None]
        waiting = [item for item in last if item.end < 0]
        latest: list[tuple[float, Item | None]] = [(item.end, item) for item in last if item.end >= 0]
        if not waiting:
            reached(*max(latest, key=lambda pair: pair[0], default=(0.0, None)))
            return False
        left = len(waiting)

        def one(time: float, by: Item | None) -> None:
            nonlocal left
            latest.append((time, by))
            left -= 1
            if left == 0:
                reached(*max(latest, key=lambda pair: pair[0]))
                self.run()

        for item in waiting:
            item.waiters.append(one)
        return True
