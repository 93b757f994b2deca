"""The engine without a trace: finds when each step ends, by the rules of `sim.engine.run`, several times as fast.

Lanes, meetings and sharing follow `lanes`, `meeting` and `sharing` of `sim.engine`; `issue` runs the threads. Of a lane only the time at
which it is free is kept. A kernel's end is known as soon as it begins, because only its lane and its launch decide it (max-plus), unless
a collective may begin beside it. Only such kernels, and ops that share links, need an event in the agenda.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sim.engine.agenda import Agenda
from sim.engine.clocks.times import (
    FLOW,
    MEET,
    RECORD,
    WAIT,
    Arrival,
    Entry,
    Instruction,
    Lane,
    State,
)
from sim.engine.pricing import Pricing
from sim.engine.sharing import Sharing


class Clocks:
    """One run. `State.ends` of each rank tells when its steps end."""

    def __init__(self, prices: Pricing, beside: Clocks | None = None) -> None:
        """`beside`: another run whose agenda and resources this run shares; None: it has its own."""
        self.agenda: Agenda = beside.agenda if beside is not None else Agenda()
        self._sharing: Sharing = beside._sharing if beside is not None else Sharing(self.agenda, prices.pricer.capacity)

    def limit(self, left: Mapping[str, float]) -> None:
        """Lowers the capacity (per second) of some resources to what their permanent users leave. Call it before anything starts."""
        self._sharing.limit(left)

    # -- lanes (`sim.engine.lanes`)

    def push(self, entry: Entry) -> None:
        """Queues an op on its lane."""
        this = entry[0]
        lane = this.lane
        lane.queued += 1
        if this.beside:
            lane.state.pending += 1
        if this.message:
            seat = this.seat
            assert seat is not None
            entry = (*entry[:4], seat.next()[1], entry[5])
        if lane.busy or lane.queue:
            lane.queue.append(entry)
            if not lane.busy:
                self._next(lane)
        else:
            self._run(lane, entry)

    def _next(self, lane: Lane) -> None:
        queue = lane.queue
        while queue and not lane.busy:
            self._run(lane, queue.popleft())

    def _run(self, lane: Lane, entry: Entry) -> None:
        """Runs an op on a free lane, or starts it if its end is not known yet."""
        this, ready, mark = entry[:3]
        kind = this.kind
        start = lane.free if lane.free > ready else ready
        if kind == RECORD:
            self._ended(lane, entry, start)
            assert mark is not None
            mark.fire(start)
        elif kind == WAIT:
            assert mark is not None
            if mark.time is not None:
                self._ended(lane, entry, start if start > mark.time else mark.time)
                return
            lane.busy = True
            mark.waiters.append(lambda time: self._release(lane, entry, start if start > time else time))
        elif kind == MEET:
            lane.busy = True
            self._arrive(start, lane.state, this, entry)
        elif kind == FLOW:
            lane.busy = True
            self.agenda.at(start, self._flow, this, lambda: self._release(lane, entry, self.agenda.now))
        elif not this.slows or lane.state.settled or (this.eager and lane.state.ordered and not lane.state.pending):
            self._ended(lane, entry, start + this.seconds)
        else:
            lane.busy = True
            self.agenda.at(lane.free, self._begin, lane, entry, start)

    def _ended(self, lane: Lane, entry: Entry, time: float) -> None:
        """Frees the lane at `time` and wakes whoever waits for the op."""
        lane.free = time
        lane.busy, lane.current = False, None
        lane.ended += 1
        if entry[0].counts and time > lane.state.ends.get(entry[5], 0.0):
            lane.state.ends[entry[5]] = time
        if entry[3] is not None:
            entry[3].wake(time)
        if lane.watch:
            due = [waiter for count, waiter in lane.watch if count <= lane.ended]
            lane.watch = [pair for pair in lane.watch if pair[0] > lane.ended]
            for waiter in due:
                waiter(time)

    def _release(self, lane: Lane, entry: Entry, time: float) -> None:
        self._ended(lane, entry, time)
        if lane.queue and not lane.busy:
            self._next(lane)

    def _begin(self, lane: Lane, entry: Entry, start: float) -> None:
        """Starts a kernel whose speed may change while it runs."""
        state = lane.state
        lane.current = entry
        lane.work, lane.since, lane.begun = entry[0].seconds, start, start
        lane.rate = entry[0].slowed if state.comm else 1.0
        self._due_at(lane, entry)

    def _due_at(self, lane: Lane, entry: Entry) -> None:
        lane.ticket += 1
        self.agenda.after(max(0.0, lane.since + lane.work / lane.rate - self.agenda.now), self._due, lane, entry, lane.ticket)

    def _due(self, lane: Lane, entry: Entry, ticket: int) -> None:
        if lane.ticket == ticket:
            end = lane.since + lane.work / lane.rate
            lane.lost += end - lane.begun - entry[0].seconds
            self._release(lane, entry, end)

    def _comm_changed(self, state: State, delta: int) -> None:
        before = state.comm
        state.comm += delta
        if state.settled or (before > 0) == (state.comm > 0):
            return
        for lane in state.lanes.values():
            if lane.current is None:
                continue
            now = max(self.agenda.now, lane.since)
            lane.work = max(0.0, lane.work - (now - lane.since) * lane.rate)
            lane.since = now
            lane.rate = lane.current[0].slowed if state.comm else 1.0
            self._due_at(lane, lane.current)

    # -- meetings and flows (`sim.engine.meeting`, `sim.engine.run`)

    def _arrive(self, start: float, state: State, this: Instruction, entry: Entry) -> None:
        seat = this.seat
        assert seat is not None
        number = entry[4] if this.message else seat.next()[1]
        come = seat.table.come(number, (start, state, this, entry))
        if come:
            self.agenda.at(max(arrival[0] for arrival in come), self._transfer, come)

    def _transfer(self, come: list[Arrival]) -> None:
        """Runs the transfer, once for all members, when the last of them has come."""
        beside = [state for _, state, this, _ in come if this.beside]
        for state in beside:
            self._comm_changed(state, +1)
        first = come[0][2]
        teller = come[1][2] if first.message and not first.sends else first

        def end() -> None:
            for state in beside:
                state.pending -= 1
                self._comm_changed(state, -1)
            for _, _, this, entry in come:
                self._release(this.lane, entry, self.agenda.now)

        self._flow(teller, end)

    def _flow(self, this: Instruction, done: Callable[[], None]) -> None:
        """Runs the op's latency by itself, then the rest of its time as a flow on its links."""
        if not this.uses:
            self.agenda.after(this.seconds, done)
        elif this.seconds <= this.latency:
            self.agenda.after(this.latency, done)
        else:
            self.agenda.after(this.latency, self._sharing.start, this.seconds - this.latency, this.uses, done, this.share)
