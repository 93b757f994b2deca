"""Ranks that have imported torch before they are needed: a table of many short runs would spend a third of its time on importing.

Some are started at once while nothing is measured, as many runs take one each, then the next ones are started. None has begun with CUDA, and
each runs one task and ends, as a process that is started for it does.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import msgspec

PATIENCE = 90.0
"""Seconds that importing may take; what has not come by then is left out."""
READY = b"ready\n"


class Order(msgspec.Struct, frozen=True):
    """What a waiting process is told, in one line."""

    task: str
    rank: int
    log: str
    variables: dict[str, str]
    """The whole environment."""


class Spares:
    """Processes that wait for an order."""

    def __init__(self, count: int) -> None:
        self._count, self._waiting = count, list[subprocess.Popen[bytes]]()

    def take(self, task: Path, rank: int, log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """A process that has begun with the task; None where none could be had."""
        if not self._waiting:
            self._fill(variables)
        line = msgspec.json.encode(Order(str(task.resolve()), rank, str(log.resolve()), dict(variables))) + b"\n"
        while self._waiting:
            process = self._waiting.pop()
            assert process.stdin is not None
            with suppress(OSError):  # it has ended meanwhile
                process.stdin.write(line)
                process.stdin.close()
                return process
            _end(process)
        return None

    def _fill(self, variables: Mapping[str, str]) -> None:
        started = [_started(variables) for _ in range(self._count)]
        end = time.monotonic() + PATIENCE
        for process, said in started:
            came = select.select([said], [], [], max(0.0, end - time.monotonic()))[0]
            ready = bool(came) and os.read(said, len(READY)) == READY
            os.close(said)
            if ready:
                self._waiting.append(process)
            else:
                _end(process)

    def close(self) -> None:
        """Ends those that nobody has needed."""
        while self._waiting:
            _end(self._waiting.pop())


def _started(variables: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """A process that imports, and the end of a pipe of its own on which it says that it has: on standard output speaks what is imported, too."""
    said, says = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "executor.ranks.worker", "--wait", str(says)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(variables),
        start_new_session=True,
        pass_fds=(says,),
    )
    os.close(says)
    return process, said


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    process.wait()


_kept: ContextVar[Spares | None] = ContextVar("_kept", default=None)


@contextmanager
def spares(count: int) -> Iterator[None]:
    """Ranks that are launched inside, by themselves, find a process that has imported torch. `count`: how many wait at a time."""
    own = Spares(count)
    before = _kept.set(own)
    try:
        yield
    finally:
        _kept.reset(before)
        own.close()


def spare(task: Path, rank: int, log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """A process that has begun with the task, where `spares` is open and has one."""
    own = _kept.get()
    return own.take(task, rank, log, variables) if own is not None else None
