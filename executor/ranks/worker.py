"""A rank as a process of its own: `python -m executor.ranks.worker TASK.json RANK`, started by `executor.ranks.launch`.

It ends with its parent: the kernel is asked to kill it when the parent dies. With `--wait FD` in place of a task and rank it imports torch, says
so on that descriptor, and waits for an order on its standard input (`executor.ranks.spare`).
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os
import signal
import sys
import threading
import time
import traceback
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from executor.ranks.beat import Beat
from executor.ranks.environment import Process
from executor.ranks.spare import READY, Order
from executor.sampling import beside
from topologies.errors import BadInput

_PR_SET_PDEATHSIG = 1


class Task(msgspec.Struct, frozen=True):
    """What every rank of a run is told. `stall`: seconds without progress after which a rank counts as hung; `threads`: compute threads of
    a rank; `parent`: process id of the launcher."""

    function: str
    """`module:name` of a function (world, argument) -> value."""
    argument: msgspec.Raw
    ranks: int
    stall: float
    threads: int
    parent: int


class Failure(msgspec.Struct, frozen=True):
    """A rank's report of what went wrong. `kind`: the exception's class; `consequence`: another rank's death caused it; `place`: file and
    line, "" if unknown; `refused`: it is a `BadInput`."""

    kind: str
    message: str
    consequence: bool
    place: str = ""
    refused: bool = False


def die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the parent ends (Linux prctl(2)); exits at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def resolve(name: str) -> tuple[Callable[..., Any], Any]:
    """The function named `module:name`, and the type of its second argument."""
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    parameters = list(inspect.signature(function).parameters)
    return function, typing.get_type_hints(function)[parameters[1]]


_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "timed out waiting",
    "connection refused",
    "socket timeout",
    "communicator was aborted",
    "recvvalue failed",
    "connection was likely closed",
)


def failure_of(error: BaseException) -> Failure:
    """The report of a rank's exception."""
    text = str(error).strip() or type(error).__name__
    if "Original Traceback" in text:  # a loader worker's error, wrapped by torch: its own words are the last line
        text = text.splitlines()[-1].rpartition("RunFailed: ")[2]
    frames = traceback.extract_tb(error.__traceback__)
    at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    lost = any(words in text.lower() for words in _LOST)
    return Failure(type(error).__name__, text[:2000], lost, at, isinstance(error, BadInput))


def run_rank(task: Task, rank: int, folder: Path) -> None:
    """Runs the task's function as one rank and writes `rankN.result` whole, or `rankN.failure`."""
    beat = Beat(folder / f"rank{rank}.beat")
    beat.phase("importing torch")
    failure = folder / f"rank{rank}.failure"
    try:
        with beside(partial(_beat, beat), _BEAT):
            import torch

            from executor.ranks.world import joined

            function, kind = resolve(task.function)
        torch.set_num_threads(task.threads)
        argument = msgspec.json.decode(task.argument, type=kind)
        place = Process(rank, task.ranks, rank, task.ranks, "127.0.0.1", 0, "steptwin")
        with joined(place, folder, task.stall, beat, folder / "port") as world, _told(failure):
            value = msgspec.msgpack.encode(function(world, argument))
            beat.phase("writing results")
            _write(folder / f"rank{rank}.result", value)
        failure.with_suffix(_PART).unlink()
    except Exception as error:
        _tell(failure, error)
        traceback.print_exc()  # after the report: on a full disk the log cannot be written
        os._exit(1)  # no orderly exit: gloo's and the loaders' threads may hang in a broken group


_BEAT = 0.5
"""Seconds between beats while a rank imports."""
_IMPORTING = 900.0
"""Seconds for which importing counts as progress: from a file system that many ranks read, it takes minutes without any message."""


def _beat(beat: Beat, stop: threading.Event) -> None:
    end = time.monotonic() + _IMPORTING
    while not stop.wait(_BEAT) and time.monotonic() < end:
        beat.touch()


@contextmanager
def _told(failure: Path) -> Iterator[None]:
    """Reports an exception of the body in the file `failure` before the process group is destroyed, which may hang."""
    try:
        yield
    except Exception as error:
        _tell(failure, error)
        raise


_PART = ".failure.part"
_ROOM = 1 << 14
"""Bytes on the disk that are reserved for a rank's failure report from its start: it may fail because the disk is full."""


def keep_room(folder: Path, rank: int) -> None:
    """Reserves these bytes before the rank starts. Raises `OSError` if the disk does not have them."""
    (folder / f"rank{rank}.failure").with_suffix(_PART).write_bytes(bytes(_ROOM))


def _tell(path: Path, error: Exception) -> None:
    """Writes the report of `error` to `path`, unless a report is there already."""
    if path.exists():
        return
    part = path.with_suffix(_PART)
    with part.open("r+b") as file:  # overwrites the reserved bytes, which needs no more space on the disk
        file.write(msgspec.json.encode(failure_of(error)))
        file.truncate()
    part.replace(path)


def _write(path: Path, data: bytes) -> None:
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(data)
    part.replace(path)


def prepared() -> None:
    """Imports the modules that ranks need, without initialising a device."""
    for name in _BEFORE:
        importlib.import_module(name)


def ordered(says: int) -> tuple[Path, int]:
    """Imports, writes `READY` to the descriptor `says`, and waits for an order. Returns the task's file and the rank; exits if no order
    comes."""
    prepared()
    if importlib.import_module("torch").cuda.is_initialized():
        os._exit(1)  # it would hold GPU memory, and the order's environment would come too late for CUDA
    os.write(says, READY)
    os.close(says)
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(0)
    return begun(msgspec.json.decode(line, type=Order))


def begun(order: Order) -> tuple[Path, int]:
    """Turns this process into the rank of the order: takes over its environment and log. Returns the task's file and the rank."""
    os.environ.clear()
    os.environ.update(order.variables)
    log, nothing = os.open(order.log, os.O_WRONLY | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
    for here, there in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(here, there)
    return Path(order.task), order.rank


_BEFORE = (
    "torch", "torch._dynamo", "torch.distributed.fsdp", "executor.play", "executor.players.streams", "executor.probe", "executor.stock",
    "executor.training.trainer", "executor.profiles.collect",
)  # fmt: skip
"""Modules that a waiting process imports. torch._dynamo is among them as torch.optim would import it at its first step."""


if __name__ == "__main__":
    parent = os.getppid()
    waiting = sys.argv[1] == "--wait"
    if waiting:
        die_with_parent(parent)
    spec, rank = ordered(int(sys.argv[2])) if waiting else (Path(sys.argv[1]), int(sys.argv[2]))
    task = msgspec.json.decode(spec.read_bytes(), type=Task)
    die_with_parent(task.parent)
    run_rank(task, rank, spec.parent)
