"""Ranks forked from one process that has imported torch: a suite of some hundred short launches would spend most of its time on importing.

The mother imports what waiting ranks import (`executor.ranks.spare`), has one thread, and is asked for ranks one by one. Tests that use them
look at no times: a forked rank's first writes copy pages, and it touches no memory ahead of what is timed, which would take longer than the
plans. Measuring is left to ranks that are started for it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from executor.ranks import worker
from executor.ranks.spare import Order

_LOOK = 0.01
"""Seconds between looks at which ranks have ended."""


class Rank:
    """What `launch` asks of a process that it has started."""

    def __init__(self, mother: Mother, pid: int) -> None:
        self._mother, self.pid = mother, pid

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        return self._mother.ended(self.pid, 0.0)

    def wait(self) -> int:
        """How it ended, once it has."""
        while (code := self._mother.ended(self.pid, 1.0)) is None:
            pass
        return code


class Mother:
    """The process that ranks are forked from, as this one sees it. It starts with the first."""

    def __init__(self) -> None:
        self._orders, self._said, self._rest = -1, -1, b""
        self._process: subprocess.Popen[bytes] | None = None
        self._born: list[int] = []
        self._codes: dict[int, int] = {}

    def _start(self, variables: Mapping[str, str]) -> None:
        words = [sys.executable, "-m", "tests.gloo.forked"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(variables), start_new_session=True)
        assert self._process.stdin and self._process.stdout
        self._orders, self._said = self._process.stdin.fileno(), self._process.stdout.fileno()

    def fork(self, task: Path, rank: int, log: Path, variables: Mapping[str, str]) -> Rank:
        """A rank that has begun with the task (in the place of `executor.ranks.spare.spare`)."""
        if self._process is None:
            self._start(variables)
        order = Order(str(task.resolve()), rank, str(log.resolve()), dict(variables))
        os.write(self._orders, msgspec.json.encode(order) + b"\n")
        while not self._born:
            self._hear()
        return Rank(self, self._born.pop())

    def ended(self, pid: int, patience: float) -> int | None:
        """The exit code of a rank, or minus the signal; None where it has not ended within `patience` seconds."""
        while pid not in self._codes and select.select([self._said], [], [], patience)[0]:
            self._hear()
        return self._codes.get(pid)

    def _hear(self) -> None:
        part = os.read(self._said, 1 << 16)
        assert part, "the process that forks ranks has ended"
        *lines, self._rest = (self._rest + part).split(b"\n")
        for pid, *code in map(json.loads, lines):
            if code:
                self._codes[pid] = code[0]
            else:
                self._born.append(pid)

    def close(self) -> None:
        """Ends it; none of its ranks is left by then."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def forked_ranks(mother: Mother) -> Iterator[None]:
    """Ranks that are launched inside are forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("executor.ranks.launch.spare", mother.fork)
        yield


def _begin(order: Order) -> None:
    """The rank's whole life, in a session of its own; it ends with its mother, and she with the tests."""
    os.setsid()
    worker.die_with_parent(_MOTHER)
    path, rank = worker.begun(order)
    importlib.import_module("executor.ranks.world").World.touch_memory = lambda _: None
    worker.run_rank(msgspec.json.decode(path.read_bytes(), type=worker.Task), rank, path.parent)


def _serve() -> None:
    """Forks a rank for each line on standard input. Says its number on standard output once it leads its session, and how it ended once it has."""
    alive: set[int] = set()
    line = b""
    while True:
        if select.select([0], [], [], _LOOK if alive else None)[0]:
            part = os.read(0, 1 << 16)
            if not part:
                return
            line += part
            if line.endswith(b"\n"):
                order, line = msgspec.json.decode(line, type=Order), b""
                pid = os.fork()
                if pid == 0:
                    _begin(order)
                    return
                while os.getsid(pid) != pid:
                    time.sleep(0.001)
                alive.add(pid)
                print(json.dumps([pid]), flush=True)
        for pid in sorted(alive):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                alive.discard(pid)
                print(json.dumps([pid, os.waitstatus_to_exitcode(status)]), flush=True)


_MOTHER = os.getpid()

if __name__ == "__main__":
    worker.die_with_parent(os.getppid())
    worker.prepared()
    _serve()
