"""The engine in program order: when each step ends, with every op looked at once and no agenda.

A lane is the time at which it is free, and an op's end follows at once from its lane, its launch and what it waits for (max-plus). A
thread that comes to something unknown (a message whose other end is still to be reached) stands aside until it is known. Ranks need not
be visited in the order of time, because nothing that is timed later changes what is known already:

* transfers that share links do not slow each other here: the steps are those of `clocks` where none ever do;
* a collective slows the kernels beside it if it is timed before they are, which `sheet` sees to. Where it cannot: `Unordered`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from sim.engine.arrange import Arranger
from sim.engine.moves import (
    BESIDE,
    DRAIN,
    HOLD,
    JOIN,
    KERNEL,
    PASS,
    PLAIN,
    RECORD,
    RECORDED,
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
from sim.engine.pricing import Pricing
from sim.engine.seats import Seat
from sim.engine.waiting import Waiting
from sim.engine.wires import End
from sim.program import COMPUTE, HOST


class InOrder:
    """One run. `ends[step]`: when the last op of a training thread or device lane has ended; `spent[step]`: seconds that the busiest
    training thread spends in it when it never waits."""

    def __init__(self, prices: Pricing, ranks: Iterable[int]) -> None:
        """Raises `Unordered` where program order does not tell when things happen, or for ever waits."""
        self.ends: dict[int, float] = {}
        self.spent: dict[int, float] = {}
        self._ready = list[Body | Lane]()
        self._waiting = Waiting(self.ends, self._ready)
        bodies = list[Body]()
        arranger = Arranger(prices)
        for number in ranks:
            threads = prices.program.threads(number)
            rank = Rank(number, prices.pricer.slowdown(number)[0], frozenset(threads))
            for thread, calls in threads.items():
                bodies.append(self._body(rank, thread, arranger.lines(rank, thread, calls)))
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
        if self._left or arranger.waiting:
            raise Unordered

    def _body(self, rank: Rank, thread: str, lines: list[Line]) -> Body:
        """One thread, from its first op to its last."""
        clock = high = spent = 0.0
        step = lines[0][0] if lines else 0
        events, lanes, compute, busy = Events(rank), rank.lanes, rank.lane(COMPUTE), rank.busy
        latest, numbered, meets, comes = events.latest, rank.numbered, self._waiting.meets, self._waiting.comes
        for its, index, (moves, passed) in lines:
            if its != step:
                self._note(thread, step, high, spent)
                step, high, spent = its, 0.0, 0.0
            events.index = index
            for does, name, at, seconds, event, shift, share, seat in moves:
                ready = clock + at
                if does >= PASS:
                    if does == RECORDED:
                        self._record(events, event, shift, ready)
                        continue
                    spent += at
                    clock = yield from self._until(ready, self._awaited(rank, does, name, events, event, shift))
                    high = max(high, clock)
                    continue
                lane = lanes[name]
                if does >= JOIN:
                    made = clock + share
                    compute.free = made = compute.free if compute.free > made else made
                    if does == WIRE:
                        assert isinstance(lane, End)
                        events.comes(event, shift, comes(lane, made if made > ready else ready, seconds, step))
                        continue
                    latest[event], does = made, WAIT
                if lane.queue is not None:
                    self._queues(lane, does, ready, seconds, self._event(does, events, event, shift), seat, step)
                    continue
                start = lane.free if lane.free > ready else ready
                if does <= PLAIN:
                    if does == KERNEL and lane is compute and (not busy or busy[-1][1] <= start):
                        lane.free = rank.kernel = end = start + seconds
                    else:
                        lane.free = end = start + seconds if does == PLAIN else rank.timed(does, lane, start, seconds, share)
                    if end > high:
                        high = end
                elif does == WAIT:
                    known = latest.get(event, 0.0) if shift is None else numbered.get((event, index + shift))
                    if not isinstance(known, float):
                        known = yield from self._until(start, [events.of(event, shift)])
                    lane.free = start if start > known else known
                elif does == RECORD:
                    lane.free = start
                    self._record(events, event, shift, start)
                elif seat is not None and not meets(lane, start, seconds, seat.next(), step) and lane is compute:
                    yield lane.when()
            clock += passed
            spent += passed
            if clock > high:
                high = clock
        self._note(thread, step, high, spent)
        self._left -= 1

    def _note(self, thread: str, step: int, high: float, spent: float) -> None:
        """What a thread has done in a step."""
        if thread == HOST:
            self.ends[step] = max(high, self.ends.get(step, 0.0))
            self.spent[step] = max(spent, self.spent.get(step, 0.0))

    def _record(self, events: Events, event: str, shift: int | None, time: float) -> None:
        if shift is None:
            events.latest[event] = time
        else:
            self._ready += events.new(event, shift).fire(time)

    def _event(self, does: int, events: Events, event: str, shift: int | None) -> Event:
        """What an op that queues records or waits for."""
        if does in (KERNEL, BESIDE):
            raise Unordered  # beside which kernels it runs is not known yet
        return events.new(event, shift) if does == RECORD else events.of(event, shift) if does == WAIT else 0.0

    def _queues(self, lane: Lane, does: int, ready: float, seconds: float, event: Event, seat: Seat[Arrival] | None, step: int) -> None:
        """An op behind others that wait."""
        assert lane.queue is not None
        lane.queue.append((does, ready, seconds, event, seat.next() if seat is not None else None, step))

    def _awaited(self, rank: Rank, does: int, name: str, events: Events, event: str, shift: int | None) -> list[Event]:
        """What a thread waits for."""
        if does == PASS:
            return []
        if does == HOLD:
            return [rank.lane(name).done()]
        if does == DRAIN:
            lanes = [rank.lane(event)] if event else [lane for name, lane in rank.lanes.items() if name not in rank.threads]
            return [lane.done() for lane in lanes]
        return [events.of(event, shift)]

    def _until(self, ready: float, awaited: list[Event]) -> Generator[Mark, None, float]:
        """When all that a thread waits for has happened, but not before `ready`."""
        for known in awaited:
            if isinstance(known, Mark):
                if known.time is None:
                    yield known
                known = known.time or 0.0
            if known > ready:
                ready = known
        return ready
