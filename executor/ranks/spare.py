"""Processes that import torch before they are needed as ranks: a table of many short runs would spend a third of its time on importing.

Some are started together while nothing is measured. Each rank takes one; when all are taken, the next ones are started. None of
them has initialised CUDA. Each runs one task and ends, like a process that is started for that task.
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
"""Seconds that importing may take; processes that take longer are killed."""
READY = b"ready\n"


class Order(msgspec.Struct, frozen=True):
    """What a waiting process is sent: one line of JSON."""

    task: str
    rank: int
    log: str
    variables: dict[str, str]
    """All of the rank's environment variables."""


class Spares:
    """Processes that wait for an order."""

    def __init__(self, count: int) -> None:
        self._count, self._waiting = count, list[subprocess.Popen[bytes]]()

    def take(self, task: Path, rank: int, log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """A process that has been sent the task; None if none could be started."""
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
        """Kills the processes that are still waiting."""
        while self._waiting:
            _end(self._waiting.pop())


def _started(variables: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """A process that imports, and the read end of the pipe on which it says when it has. Imported modules may print on its standard
    output."""
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
    """Ranks that are launched inside use processes that have imported torch already. `count`: how many are started at a time."""
    own = Spares(count)
    before = _kept.set(own)
    try:
        yield
    finally:
        _kept.reset(before)
        own.close()


def spare(task: Path, rank: int, log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """A process that has been sent the task; None outside `spares`, or if it has none."""
    own = _kept.get()
    return own.take(task, rank, log, variables) if own is not None else None
