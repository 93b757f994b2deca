"""Lanes of a CPU rank: `compute` runs inline, communication beside it, as gloo's own threads do it.

A lane whose waits are always over when it reaches them (all its events come from work that runs inline) hands its
collectives to gloo at once. One that carries messages, or waits for another communication lane, gets a thread that keeps its order.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from sim.program import MESSAGE, Program


class Flag:
    """An event that a lane has recorded: done, or a communication that is under way."""

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
    """Start and end of one op; the end may be written by another thread."""

    __slots__ = ("end", "issued", "start")

    def __init__(self, issued: float) -> None:
        self.issued, self.start, self.end = issued, issued, 0.0


class DirectLane:
    """Hands each collective to gloo as it comes; gloo's threads run them in order of issue."""

    def __init__(self) -> None:
        self._tail: dist.Work | None = None
        self._last: Mark | None = None

    def communicate(self, issue: Callable[[], dist.Work | None], mark: Mark) -> Flag:
        """Starts one collective; its mark ends when gloo says so."""
        before, self._last = self._last, mark
        mark.start = max(mark.issued, before.end) if before is not None else mark.issued
        work = self._tail = issue()
        assert work is not None

        def ended(_: object) -> None:
            mark.end = time.perf_counter()
            if before is not None:  # it could not really begin before the one ahead of it in this lane was through
                mark.start = min(max(mark.start, before.end), mark.end)

        work.get_future().add_done_callback(ended)
        return Flag(work)

    def record(self) -> Flag:
        return Flag(self._tail) if self._tail is not None else DONE

    def wait(self, flag: Flag) -> None:
        """Only flags of inline work or of this lane come here: over, or ahead in the same order."""

    def drain(self) -> None:
        """All of the lane's work has ended."""
        if self._tail is not None:
            self._tail.wait()
            self._tail = None
        while self._last is not None and self._last.end == 0.0:
            time.sleep(2e-5)  # the callback runs just after the wait returns


class ThreadLane:
    """Keeps its order on a thread of its own: messages, and waits for other lanes."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (action := self._queue.get()) is not None:
            try:
                action()
            except BaseException as error:  # told to the host thread when it drains the lane
                self._error = self._error or error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def communicate(self, issue: Callable[[], dist.Work | None], mark: Mark) -> Flag:
        flag = Flag()

        def action() -> None:
            mark.start = time.perf_counter()
            try:
                if self._error is None:  # else nothing more is sent, but who waits for it must not wait for ever
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
    """One object per communication lane of a rank."""
    threaded: set[str] = set()
    recorded: dict[str, set[str]] = {}
    every = [op for thread in program.threads(rank) for _, op in program.ops(rank, thread)]
    for op in every:
        if op.kind == "record":
            recorded.setdefault(op.event, set()).add(op.lane)
    for op in every:
        # gloo's messages and its reduce_scatter tell nobody when they end: somebody must wait for them.
        if op.kind in MESSAGE or op.name == "reduce_scatter":
            threaded.add(op.lane)
        if op.kind == "wait" and is_comm(op.lane) and any(is_comm(source) and source != op.lane for source in recorded.get(op.event, ())):
            threaded.add(op.lane)
    return {lane: ThreadLane(lane) if lane in threaded else DirectLane() for lane in {op.lane for op in every} if is_comm(lane)}
