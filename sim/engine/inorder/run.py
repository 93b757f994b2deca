"""The engine in program order: finds when each step ends, looks at every op once and needs no agenda.

Of a lane it keeps the time at which it is free. An op's end follows at once from its lane, its launch and what it waits for (max-plus).
A thread that needs a time which is still unknown (of a message that its peer has not come to) stands aside until it is known. Ranks
need not be visited in the order of time, because nothing that is timed later changes what is known already:

* transfers that share links do not slow each other here, so the steps equal those of `sim.engine.clocks` only where they never would;
* a collective slows the kernels beside it only if it is timed before them. `sheet` sees to that order; where it cannot, `Unordered` is
raised.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator

from sim.engine.condense import Alone
from sim.engine.fuse import Priced
from sim.engine.inorder.arrange import Arranger
from sim.engine.inorder.moves import (
    ASIDE,
    AWAIT,
    BESIDE,
    HOLD,
    JOIN,
    KERNEL,
    MEET,
    PASS,
    RECORD,
    RECORDED,
    TAKE,
    WAIT,
    WIRE,
    Arrival,
    Body,
    Event,
    Events,
    Lane,
    Line,
    Mark,
    Rank,
    Unordered,
)
from sim.engine.inorder.sheet import Sheet
from sim.engine.inorder.waiting import Waiting
from sim.engine.pricing import Pricing
from sim.engine.seats import Seat
from sim.program import COMPUTE, HOST


def in_order(prices: Pricing, ranks: Iterable[int]) -> InOrder:
    """Runs these ranks' threads. Raises `Unordered` as `InOrder` does, and where a rank waits for a peer that never comes."""
    arranger = Arranger(prices)

    def threads() -> Iterator[tuple[Rank, str, list[Line]]]:
        for number in ranks:
            named = prices.program.threads(number)
            rank = Rank(number, prices.pricer.slowdown(number), frozenset(named))
            for thread, calls in named.items():
                yield rank, thread, arranger.lines(rank, thread, calls)

    run = InOrder(threads())
    if arranger.waiting:
        raise Unordered
    return run


def alone_in_order(prices: Pricing, ops: list[Priced], number: int, beside: bool) -> Alone:
    """As `sim.engine.steps.alone`, but in program order: what transfers lose to each other is left out. Raises `Unordered` as
    `in_order` does."""
    rank = Rank(number, prices.pricer.slowdown(number), frozenset({HOST}))
    if beside:
        rank.occupy(0.0, math.inf)
    arranger = Arranger(prices)
    InOrder([(rank, HOST, [(0, 0, [arranger.bound(rank, HOST, Sheet(HOST, rank.slow, ops))], [(0, 0)])])])
    if arranger.waiting:
        raise Unordered
    return Alone(rank.lane(COMPUTE).free, max(lane.free for name, lane in rank.lanes.items() if name != HOST), rank.lost)


class InOrder:
    """One run. `ends[step]`: when the last op of a training thread or device lane has ended; `spent[step]`: seconds that the busiest
    training thread spends in it when it never waits."""

    def __init__(self, threads: Iterable[tuple[Rank, str, list[Line]]]) -> None:
        """Raises `Unordered` where program order does not tell the times, or where a thread waits for ever."""
        self.ends: dict[int, float] = {}
        self.spent: dict[int, float] = {}
        self._ready = list[Body | Lane]()
        self._waiting = Waiting(self.ends, self._ready)
        bodies = [self._body(*thread) for thread in threads]
        self._left = len(bodies)
        self._ready += reversed(bodies)
        while self._ready:
            goes_on = self._ready.pop()
            if isinstance(goes_on, Lane):
                self._waiting.goes_on(goes_on)
                continue
            for mark in goes_on:
                mark.waiting.append(goes_on)
                break
        if self._left:
            raise Unordered

    def _body(self, rank: Rank, thread: str, lines: list[Line]) -> Body:
        """One thread, from its first op to its last."""
        clock = high = spent = 0.0
        step = lines[0][0] if lines else 0
        events, lanes, wires, compute, busy = Events(rank), rank.lanes, rank.wires, rank.lane(COMPUTE), rank.busy
        latest, numbered, comes = events.latest, rank.numbered, self._waiting.comes
        for its, before, codes, turns in lines:
            if its != step:
                self._note(thread, step, high, spent)
                step, high, spent = its, 0.0, 0.0
            for sort, number in turns:
                events.index = index = before + number
                moves, passed = codes[sort]
                for does, name, at, seconds, event, shift, share, seat in moves:
                    ready = clock + at
                    if does <= KERNEL:
                        if does == TAKE:
                            known = latest.get(event, 0.0) if shift is None else numbered.get((event, index + shift))
                            if not isinstance(known, float):
                                known = yield from self._until(ready, [events.of(event, shift)])
                            if known > ready:
                                ready = known
                        start = compute.free if compute.free > ready else ready
                        end = start + seconds if not busy or busy[-1][1] <= start else rank.held(start, seconds, share)
                        compute.free = rank.kernel = end
                        if end > high:
                            high = end
                    elif does <= WIRE:
                        made = clock + share
                        compute.free = made = compute.free if compute.free > made else made
                        if does == JOIN:
                            latest[event], lane = made, lanes[name]
                            if lane.queue is not None:
                                lane.queue.append((WAIT, ready, 0.0, made, None, step))
                            else:
                                lane.free = max(lane.free, ready, made)
                        elif shift is None:
                            latest[event] = comes(wires[name], made if made > ready else ready, seconds, step)
                        else:
                            numbered[event, index + shift] = comes(wires[name], made if made > ready else ready, seconds, step)
                    elif does >= PASS:
                        spent += at if does != RECORDED else 0.0
                        clock = yield from self._stops(rank, does, name, clock, ready, events, event, shift)
                    elif does == WAIT and lanes[name].queue is None:
                        known = latest.get(event, 0.0) if shift is None else numbered.get((event, index + shift))
                        if not isinstance(known, float):
                            known = yield from self._until(ready, [events.of(event, shift)])
                        lane = lanes[name]
                        lane.free = max(lane.free, ready, known)
                    else:
                        high = max(high, self._runs(rank, lanes[name], does, ready, seconds, events, event, shift, share, seat, step))
                        if does == MEET and compute.queue is not None:
                            yield compute.when()
                clock += passed
                spent += passed
                if clock > high:
                    high = clock
        self._note(thread, step, high, spent)
        self._left -= 1

    def _runs(self, rank: Rank, lane: Lane, does: int, ready: float, seconds: float, events: Events, event: str, shift: int | None,
              share: float, seat: Seat[Arrival] | None, step: int) -> float:  # fmt: skip
        """Runs a device lane's move that `_body` does not handle itself. Returns its end (seconds); 0 if it takes no time, or if its
        end is not known yet."""
        if lane.queue is not None:
            its = seat.next() if seat is not None else None
            lane.queue.append((does, ready, seconds, self._event(does, events, event, shift), its, step))
            return 0.0
        start = max(lane.free, ready)
        if does == MEET:
            assert seat is not None
            self._waiting.meets(lane, start, seconds, seat.next(), step)
            return 0.0
        end = start + seconds
        if does == BESIDE:
            rank.occupy(start, end)
        elif does == ASIDE:
            end = rank.aside(start, seconds, share)
        lane.free = end
        if event:
            self._record(events, event, shift, end)
        return 0.0 if does == RECORD else end

    def _note(self, thread: str, step: int, high: float, spent: float) -> None:
        """Notes the end of a training thread's step, and how long the thread was busy in it. Other threads do not count."""
        if thread == HOST:
            self.ends[step] = max(high, self.ends.get(step, 0.0))
            self.spent[step] = max(spent, self.spent.get(step, 0.0))

    def _record(self, events: Events, event: str, shift: int | None, time: float) -> None:
        if shift is None:
            events.latest[event] = time
        else:
            self._ready += events.new(event, shift).fire(time)

    def _event(self, does: int, events: Events, event: str, shift: int | None) -> Event:
        """The event that an op which queues records or waits for; 0.0 if it does neither."""
        if does in (ASIDE, BESIDE):
            raise Unordered  # beside which kernels it runs is not known yet
        return events.new(event, shift) if does == RECORD else events.of(event, shift) if does == WAIT else 0.0

    def _stops(self, rank: Rank, does: int, name: str, clock: float, ready: float, events: Events, event: str,
               shift: int | None) -> Generator[Mark, None, float]:  # fmt: skip
        """Does what a thread does itself: records, waits, or lets time pass. Returns its clock then (seconds)."""
        if does == RECORDED:
            self._record(events, event, shift, ready)
            return clock
        if does == PASS:
            return ready
        if does == AWAIT:
            awaited = [events.of(event, shift)]
        elif does == HOLD:
            awaited = [rank.lane(name).done()]
        else:
            lanes = [rank.lane(event)] if event else [lane for name, lane in rank.lanes.items() if name not in rank.threads]
            awaited = [lane.done() for lane in lanes]
        return (yield from self._until(ready, awaited))

    def _until(self, ready: float, awaited: list[Event]) -> Generator[Mark, None, float]:
        """The time (seconds) at which all that a thread waits for has happened, but not before `ready`."""
        for known in awaited:
            if isinstance(known, Mark):
                if known.time is None:
                    yield known
                known = known.time or 0.0
            if known > ready:
                ready = known
        return ready
