"""Lanes of a CPU rank: `compute` runs inline on the host thread, communication runs beside it on gloo's threads.

A lane that waits only for inline work passes its collectives to gloo at once: those waits are over when the host thread reaches
them. A lane that carries messages or a reduce_scatter, or waits for another communication lane, has its own thread, which keeps the order.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from sim.program import MESSAGE, Program


class Flag:
    """An event that a lane has recorded. It is complete when `work` is, or, without `work`, once `set` has been called."""

    def __init__(self, work: dist.Work | None = None) -> None:
        self._work, self._set = work, threading.Event()

    def set(self) -> None:
        self._set.set()

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
        else:
            self._set.wait()


DONE = Flag()
DONE.set()


class Mark:
    """Times of one op in seconds: issued, start, end. The end is 0.0 until the op has ended; another thread may write it."""

    __slots__ = ("end", "issued", "start")

    def __init__(self, issued: float) -> None:
        self.issued, self.start, self.end = issued, issued, 0.0


class DirectLane:
    """A lane without a thread: passes each collective to gloo when it is issued; gloo's threads run them in that order."""

    def __init__(self) -> None:
        self._tail: dist.Work | None = None
        self._last: Mark | None = None

    def communicate(self, issue: Callable[[], dist.Work | None], mark: Mark) -> Flag:
        """Starts one collective; `mark.end` is set when gloo reports its end."""
        before, self._last = self._last, mark
        mark.start = max(mark.issued, before.end) if before is not None else mark.issued
        work = self._tail = issue()
        assert work is not None

        def ended(_: object) -> None:
            mark.end = time.perf_counter()
            if before is not None:  # it cannot have started before the previous collective of this lane ended
                mark.start = min(max(mark.start, before.end), mark.end)

        work.get_future().add_done_callback(ended)
        return Flag(work)

    def record(self) -> Flag:
        return Flag(self._tail) if self._tail is not None else DONE

    def wait(self, flag: Flag) -> None:
        """Nothing to do: the flag is of inline work, which is over, or of this lane, whose collectives run in order."""

    def drain(self) -> None:
        """Waits until all of the lane's work has ended."""
        if self._tail is not None:
            self._tail.wait()
            self._tail = None
        while self._last is not None and self._last.end == 0.0:
            time.sleep(2e-5)  # the callback runs just after the wait returns


class ThreadLane:
    """A lane with its own thread, which runs communication and waits for other lanes in the order of issue."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (action := self._queue.get()) is not None:
            try:
                action()
            except BaseException as error:  # raised in the host thread when it drains the lane
                self._error = self._error or error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def communicate(self, issue: Callable[[], dist.Work | None], mark: Mark) -> Flag:
        flag = Flag()

        def action() -> None:
            mark.start = time.perf_counter()
            try:
                if self._error is None:  # after an error nothing is sent, but the flag is set, so that no thread waits forever
                    work = issue()
                    assert work is not None
                    work.wait()
            finally:
                mark.end = time.perf_counter()
                flag.set()

        self._queue.put(action)
        return flag

    def record(self) -> Flag:
        flag = Flag()
        self._queue.put(flag.set)
        return flag

    def wait(self, flag: Flag) -> None:
        if flag is not DONE:
            self._queue.put(flag.wait)

    def drain(self) -> None:
        self.record().wait()
        self._check()


Lane = DirectLane | ThreadLane


def is_comm(lane: str) -> bool:
    """Lanes that carry communication are named `comm.<group>`."""
    return lane.startswith("comm")


def make_lanes(program: Program, rank: int) -> dict[str, Lane]:
    """Lane name -> its object, for each communication lane of a rank."""
    threaded: set[str] = set()
    recorded: dict[str, set[str]] = {}
    every = [op for thread in program.threads(rank) for _, op in program.ops(rank, thread)]
    for op in every:
        if op.kind == "record":
            recorded.setdefault(op.event, set()).add(op.lane)
    for op in every:
        # gloo calls nobody back at the end of a message or a reduce_scatter: a thread must wait for them.
        if op.kind in MESSAGE or op.name == "reduce_scatter":
            threaded.add(op.lane)
        if op.kind == "wait" and is_comm(op.lane) and any(is_comm(source) and source != op.lane for source in recorded.get(op.event, ())):
            threaded.add(op.lane)
    return {lane: ThreadLane(lane) if lane in threaded else DirectLane() for lane in {op.lane for op in every} if is_comm(lane)}
