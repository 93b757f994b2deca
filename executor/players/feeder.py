"""The program's other CPU threads (`loader.0` ...) as real processes, and the events that cross between threads. Those of a parameter server, which
exchange with other ranks, are threads (`executor.players.servers`).

Event numbers travel through pipes: the thread that records an event writes its number, the thread that waits reads until that number comes.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import select
import struct
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

from executor.players.disk import copy_file
from executor.ranks.worker import die_with_parent
from sim.program import HOST, MEETING, SERVER, Call, Op, Program
from sim.work import HostWork
from topologies.errors import BadInput, RunFailed, SteptwinError

T = TypeVar("T")
Times = list[tuple[float, float]]
Body = Callable[[int], object]
"""Runs one op of a thread; the argument is the turn, the number of the pass."""
_NUMBER = struct.Struct("<q")
_PATIENCE = 1.0
"""Seconds between checks that the other threads are still alive."""


class Crossing:
    """The events of one rank that one thread records and another one waits for by number. `inner`: numbered events that the host thread
    both records and waits for, which need no pipe (receives that are posted ahead). `alive()`: which thread has failed; "" if none has."""

    def __init__(self, program: Program, rank: int) -> None:
        self.inner = inner_events(program, rank)
        self.turns: dict[str, int] = {}
        self._pipes: dict[tuple[str, str], tuple[int, int]] = {}
        self._seen: dict[tuple[str, str], set[int]] = {}
        self.alive: Callable[[], str] = lambda: ""
        for thread in program.threads(rank):
            for call, op in program.ops(rank, thread):
                self.turns[op.event] = max(self.turns.get(op.event, 0), call.index + 1) if op.event else 0
                crosses = op.kind in ("wait", "sync") and op.shift is not None and op.event not in self.inner
                if crosses and (op.event, thread) not in self._pipes:
                    self._pipes[op.event, thread] = os.pipe()
                    self._seen[op.event, thread] = set()
        self.names = {event for event, _ in self._pipes}

    def number(self, call: Call, op: Op, turn: int) -> int:
        """The number of this occurrence of the event; numbers continue from one pass through the program to the next."""
        return turn * self.turns[op.event] + call.index + (op.shift or 0)

    def record(self, call: Call, op: Op, turn: int) -> None:
        """Tells every thread that waits for this event by number."""
        for (event, _), (_, write) in self._pipes.items():
            if event == op.event:
                os.write(write, _NUMBER.pack(self.number(call, op, turn)))

    def wait(self, thread: str, call: Call, op: Op, turn: int) -> None:
        """Blocks until the event's number has been recorded; numbers below 0 have happened. Raises `RunFailed` if another thread fails."""
        wanted, key = self.number(call, op, turn), (op.event, thread)
        seen, (read, _) = self._seen[key], self._pipes[key]
        while wanted >= 0 and wanted not in seen:
            if not select.select([read], [], [], _PATIENCE)[0]:
                if dead := self.alive():
                    raise RunFailed(f"{dead} ended while {thread} waited for its event {op.event}")
                continue
            seen.add(_NUMBER.unpack(os.read(read, _NUMBER.size))[0])
        seen.discard(wanted)

    def body(self, thread: str, call: Call, op: Op) -> Body | None:
        """For threads other than the host's: the callable of an op that records an event or waits for one by number; None for other ops."""
        if op.kind == "record":
            return partial(self.record, call, op)
        if op.kind in ("wait", "sync") and op.shift is not None:
            return partial(self.wait, thread, call, op)
        return None


def inner_events(program: Program, rank: int) -> frozenset[str]:
    """Numbered events that only the host thread records and waits for."""
    threads: dict[str, set[str]] = {}
    numbered: set[str] = set()
    for thread in program.threads(rank):
        for _, op in program.ops(rank, thread):
            if op.event:
                threads.setdefault(op.event, set()).add(thread)
                if op.shift is not None:
                    numbered.add(op.event)
    return frozenset(event for event in numbered if threads[event] == {HOST})


class Kept(Generic[T]):
    """Events that the host thread records and also waits for: the latest of each name, and by number those that are awaited by number."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._latest: dict[str, T] = {}
        self._numbered: dict[tuple[str, int], T] = {}

    def add(self, call: Call, op: Op, turn: int, event: T) -> None:
        """Keeps the event that `op` has recorded."""
        self._latest[op.event] = event
        if op.event in self._crossing.inner:
            self._numbered[op.event, self._crossing.number(call, op, turn)] = event

    def awaited(self, call: Call, op: Op, turn: int) -> T | None:
        """The event that `op` waits for; None if it was never recorded, or its number is before the first one."""
        if op.shift is not None:
            return self._numbered.pop((op.event, self._crossing.number(call, op, turn)), None)
        return self._latest.get(op.event)


class Feeder:
    """One loader thread in its own process."""

    def __init__(self, thread: str, process: mp.process.BaseProcess, answer: Connection) -> None:
        self.thread, self.process, self._answer = thread, process, answer

    def times(self, patience: float) -> list[Times]:
        """Per turn, start and end of each op in the order of the thread's program, in seconds. Raises `RunFailed` as `Beside.times`."""
        if not self._answer.poll(patience):
            raise RunFailed(f"{self.thread} did not finish within {patience:.0f} s")
        found: list[Times] | str = self._said()
        self.process.join(patience)
        if isinstance(found, str):
            raise RunFailed(f"{self.thread} ended before it had finished: {found or f'exit code {self.process.exitcode}'}")
        return found

    @property
    def fault(self) -> str:
        """The thread's name and why its process has failed; "" if it has not."""
        code = self.process.exitcode
        return f"{self.thread} ({self._said() or f'exit code {code}'})" if code not in (None, 0) else ""

    def _said(self) -> Any:
        """What the process has sent: times, or a message why there are none; "" if it has sent nothing."""
        try:
            return self._answer.recv() if self._answer.poll(0) else ""
        except EOFError:
            return ""


def start_feeders(program: Program, rank: int, crossing: Crossing, turns: int, seconds: Callable[[Op], float], file: Path) -> list[Feeder]:
    """Forks one process for each thread of the rank except the host's and those of a parameter server."""
    context = mp.get_context("fork")
    feeders = []
    for thread in program.threads(rank):
        if thread != HOST and not thread.startswith(SERVER):
            ours, theirs = context.Pipe(duplex=False)
            passes = partial(_passes, program, rank, thread, crossing, turns, seconds, file)
            process = context.Process(target=_feed, args=(os.getpid(), passes, theirs), daemon=True)
            process.start()
            feeders.append(Feeder(thread, process, ours))
    crossing.alive = lambda: next(filter(None, (feeder.fault for feeder in feeders)), "")
    return feeders


def _feed(parent: int, passes: Callable[[], list[Times]], answer: Connection) -> None:
    die_with_parent(parent)
    try:
        answer.send(passes())
    except (OSError, SteptwinError) as error:
        answer.send(str(error))
        sys.exit(1)


def _passes(
    program: Program, rank: int, thread: str, crossing: Crossing, turns: int, seconds: Callable[[Op], float], file: Path
) -> list[Times]:
    bodies = [crossing.body(thread, call, op) or partial(_feed_op, op, seconds, file) for call, op in program.ops(rank, thread)]
    return timed(bodies, turns)


def timed(bodies: Sequence[Body], turns: int) -> list[Times]:
    """Runs a thread's ops `turns` times. Per turn, (start, end) of each op in seconds."""
    found: list[Times] = []
    for turn in range(turns):
        times: Times = []
        for run in bodies:
            start = time.perf_counter()
            run(turn)
            times.append((start, time.perf_counter()))
        found.append(times)
    return found


def _feed_op(op: Op, seconds: Callable[[Op], float], file: Path, _turn: int) -> None:
    """Runs an op of a loader, the same in every turn: a host op spends CPU time, a copy op moves its bytes. Raises `BadInput` for
    others."""
    if op.kind == "host":
        burn(seconds(op))
    elif op.kind == "copy":
        copy_file(op, file, os.getpid())
    elif op.kind in MEETING:
        raise BadInput(f"op {op.id}: a loader thread cannot communicate")


def burn(seconds: float) -> None:
    """Spends processor time, not wall time: a worker that shares its core takes longer, as real work does."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def host_seconds(op: Op, table: dict[str, float]) -> float:
    """Seconds of a host op: those that `table` has for its id, else those that its works state."""
    return table.get(op.id, sum(work.seconds * work.count * work.repeat for work in op.works if isinstance(work, HostWork)))
