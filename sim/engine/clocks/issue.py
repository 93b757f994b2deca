"""How a CPU thread handles the ops of its calls: it runs an op itself or queues it on a device lane. As `sim.engine.threads`, but without
a trace."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from sim.engine.clocks.run import Clocks
from sim.engine.clocks.times import HELD, QUEUED, RECORDED, WORK, Instruction, Line, Mark, State, Thread, mark_of


def issue(clocks: Clocks, state: State, name: str, lines: Iterable[Line]) -> Thread:
    """Makes a thread that will run these calls; `Thread.begin` starts it."""
    thread = Thread(name, state.rank)
    state.threads.add(name)
    thread.body = _body(clocks, thread, state, lines)
    return thread


def _body(clocks: Clocks, thread: Thread, state: State, lines: Iterable[Line]) -> Generator[None, float, None]:
    clock = 0.0
    latest: dict[str, Mark] = {}
    own = state.lane(thread.name)
    push = clocks.push
    for step, index, code in lines:
        for this in code:
            does = this.does
            if does == QUEUED:
                mark = mark_of(this, index, state, latest) if this.event else None
                ready = clock + this.lead
                clock += this.host
                if not this.blocking:
                    push((this, ready, mark, None, -1, step))
                    continue
                push((this, ready, mark, thread, -1, step))
            elif does in (WORK, RECORDED):
                clock += this.seconds if does == WORK else this.host
                own.free = clock
                if this.counts:
                    state.note(step, clock)
                if does == RECORDED:
                    mark_of(this, index, state, latest).fire(clock)
                continue
            elif does == HELD:
                push((this, clock + this.lead, None, thread, -1, step))
            else:
                begin = clock
                reached = _reached(this, mark_of(this, index, state, latest) if this.event else None, thread)
                if reached is None:
                    reached = thread.woken if thread.woken is not None else (yield)
                    thread.woken = None
                clock = max(begin + this.host, reached)
                own.free = clock
                if this.counts:
                    state.note(step, clock)
                continue
            woken, thread.woken = thread.woken, None
            time = woken if woken is not None else (yield)
            if time > clock:
                clock = time


def _reached(this: Instruction, mark: Mark | None, thread: Thread) -> float | None:
    """When the event or lanes that a sync waits for were done (seconds). None: they are not done yet, and the thread will be woken."""
    if mark is not None:
        if mark.time is None:
            mark.waiters.append(thread.wake)
        return mark.time
    state = this.lane.state
    lanes = [state.lane(this.drained)] if this.drained else [lane for lane in state.lanes.values() if lane.name not in state.threads]
    latest = [max((lane.free for lane in lanes if lane.ended == lane.queued), default=0.0)]
    waiting = [lane for lane in lanes if lane.ended < lane.queued]

    def one(time: float) -> None:
        latest.append(time)
        if len(latest) > len(waiting):
            thread.wake(max(latest))

    for lane in waiting:
        lane.watch.append((lane.queued, one))
    return None if waiting else latest[0]
