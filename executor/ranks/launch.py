"""Starts the ranks of a run on this machine, watches them, and ends them all together.

If a rank dies, the run ends at once; if a rank makes no progress for `stall` seconds, it ends too. The message names the rank,
what it was doing and how it ended; what was measured until then stays in the run's folder. No process outlives the call:
each rank leads its own session, is killed with it, and dies with its parent. Ranks communicate over loopback.

Under torchrun, SLURM or MPI this process is a rank already, and `launch` runs the function in this process.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import executor
from executor.ranks.alone import alone_in
from executor.ranks.beat import Beat
from executor.ranks.environment import Process, compute_threads, place, refuse_dealt
from executor.ranks.spare import spare
from executor.ranks.worker import Failure, Task, keep_room, resolve
from topologies.errors import BadInput, Refused, RunFailed

STALL = 120.0
"""Seconds without progress after which a rank counts as hung."""
_POLL = 0.05
_GRACE = 3.0
"""Seconds in which the other ranks may report what they saw, once one has failed."""
_LEAVING = 15.0
"""Seconds in which ranks may exit, once all have written whole results: a profiler or NCCL that hangs during shutdown must not cost the
results."""
_GONE = 2.0
"""Seconds to wait for killed processes to disappear; where nothing reaps orphans, as in some containers, they stay as zombies."""

QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""Environment variables of the player, whose lanes and communicators use a dozen streams or more. With CUDA's default of 8 queues to the
device, some streams would share a queue. Work that is queued behind a stream that waits for another rank would wait too, although that rank
may be waiting for this work (CUDA C++ Programming Guide, environment variables). A rank that a launcher started probes and trains in the
process that plays, so these have the variables as well."""

T = TypeVar("T")


class Interrupted(RunFailed):
    """The user ended the run: code that continues after other failures must stop after this one."""


_end_at: ContextVar[float] = ContextVar("_end_at", default=math.inf)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Runs that are launched inside end with `RunFailed` once so many seconds have passed since the body was entered."""
    before = _end_at.set(min(_end_at.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _end_at.reset(before)


def launch(
    function: str,
    argument: object,
    ranks: int,
    folder: Path,
    result: type[T],
    *,
    stall: float = STALL,
    variables: Mapping[str, str] | None = None,
) -> list[T]:
    """Runs `module:name` as `ranks` processes; each gets a `World` and `argument`. Returns their values by rank.

    Each has as many compute threads as OMP_NUM_THREADS says, or one if it is not set, as under torchrun. `variables`: environment variables
    for the ranks; those that are set already keep their values. `stall`: seconds without progress after which a rank counts as hung. Raises
    `RunFailed`; `BadInput` if another run uses `folder`; a `BadInput` that a rank raised is raised again as such.
    """
    at = place()
    if at is not None:
        for name, value in (QUEUES | dict(variables or {})).items():
            os.environ.setdefault(name, value)  # must be set before CUDA is initialised, in this process's first run
        return _in_place(at, function, argument, ranks, folder, result, stall)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        _run(function, argument, ranks, folder, stall, compute_threads(), variables or {})
        return [msgspec.msgpack.decode((folder / f"rank{rank}.result").read_bytes(), type=result) for rank in range(ranks)]


def _run(function: str, argument: object, ranks: int, folder: Path, stall: float, threads: int, variables: Mapping[str, str]) -> None:
    """Starts the ranks, and returns when all have written their results into `folder`."""
    beats = _prepared(folder, Task(function, msgspec.Raw(msgspec.json.encode(argument)), ranks, stall, threads, os.getpid()))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.extend(_start(folder, rank, threads, variables) for rank in range(ranks))
        _watch(processes, beats, folder, stall)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted. {_kept(beats)}", str(folder)) from None
    finally:
        _end(processes)


def _prepared(folder: Path, task: Task) -> list[Beat]:
    """Deletes the files of earlier ranks in the folder, writes the task and the beats, which it returns, and reserves room for failure
    reports. Raises `RunFailed` if this fails, as on a full disk."""
    try:
        for old in [*folder.glob("rank*.*"), folder / "port"]:
            old.unlink(missing_ok=True)
        (folder / "task.json").write_bytes(msgspec.json.encode(task))
        for rank in range(task.ranks):
            keep_room(folder, rank)
        return [Beat(folder / f"rank{rank}.beat", create=True) for rank in range(task.ranks)]
    except OSError as error:
        raise RunFailed(
            f"cannot write what {task.ranks} ranks begin with into {folder}: {error.strerror}. Free space there, or name another folder with --out"
        ) from None


KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(64 << 30), "MALLOC_TOP_PAD_": str(64 << 20)}
"""glibc keeps freed memory instead of giving it back and faulting it in again every step (mallopt(3)). PyTorch's performance
tuning guide advises a caching allocator for CPU training for the same reason; a page fault costs 0.1-10 us per 4 KiB."""

_HOUSE = Path(executor.__file__).resolve().parents[1]
"""The folder that ranks import StepTwin from: the one of this process, so that a checkout need not be installed."""


def _start(folder: Path, rank: int, threads: int, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(_HOUSE), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {
        **KEEP_MEMORY,
        **more,
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with (folder / f"rank{rank}.log").open("wb") as log:
        return spare(folder / "task.json", rank, folder / f"rank{rank}.log", variables) or subprocess.Popen(
            [sys.executable, "-m", "executor.ranks.worker", str(folder / "task.json"), str(rank)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )


def _watch(processes: list[subprocess.Popen[bytes]], beats: list[Beat], folder: Path, stall: float) -> None:
    last = [(-1, time.monotonic())] * len(beats)
    whole = math.inf
    while True:
        results = whole < math.inf or all((folder / f"rank{rank}.result").exists() for rank in range(len(processes)))
        codes = [process.poll() for process in processes]
        if all(code == 0 for code in codes):
            return
        if results:
            whole = min(whole, time.monotonic())
            if time.monotonic() - whole > _LEAVING or None not in codes:
                _warn_leaving(codes)
                return
            time.sleep(_POLL)
            continue
        if any(code not in (None, 0) for code in codes):
            _explain_death(processes, beats, folder)
        now = time.monotonic()
        last = [(count, now) if (count := beat.read()[0]) != seen[0] else seen for beat, seen in zip(beats, last, strict=True)]
        late = [rank for rank, (_, since) in enumerate(last) if codes[rank] is None and now - since > stall]
        if late:
            _explain_hang(late, [now - since for _, since in last], processes, beats, folder)
        if now > _end_at.get():
            slowest = min(range(len(beats)), key=lambda rank: beats[rank].read()[1])
            raise RunFailed(f"the time limit was reached. Rank {slowest} was at: {_doing(beats[slowest])}. {_kept(beats)}", str(folder))
        time.sleep(_POLL)


def _warn_leaving(codes: list[int | None]) -> None:
    """Warns, and does not raise, where ranks failed or hung after all results were written."""
    which = ", ".join(f"{rank} ({'hung' if code is None else _how_ended(code)})" for rank, code in enumerate(codes) if code != 0)
    warnings.warn(f"ranks that had written their results did not end in order: {which}; the results are kept", RuntimeWarning, stacklevel=2)


def _how_ended(code: int) -> str:
    return signal.Signals(-code).name if -code in signal.valid_signals() else f"exit code {code}"


def _explain_death(processes: list[subprocess.Popen[bytes]], beats: list[Beat], folder: Path) -> None:
    """Finds the rank that failed first and not as a consequence of another one's end, and raises `RunFailed` that names it. A `BadInput` or
    `Refused` that a rank raised is raised instead."""
    early = {rank for rank, process in enumerate(processes) if process.poll() not in (None, 0)}
    end = time.monotonic() + _GRACE
    while time.monotonic() < end and any(process.poll() is None for process in processes):
        time.sleep(_POLL)
    codes = {rank: code for rank, process in enumerate(processes) if (code := process.poll()) not in (None, 0)}
    failures = {rank: failure for rank in codes if (failure := _failure(folder, rank)) is not None}
    refused = [failure for failure in failures.values() if failure.refused]
    if refused:
        raise (Refused if refused[0].kind == "Refused" else BadInput)(refused[0].message)
    alive = [rank for rank, process in enumerate(processes) if process.poll() is None]
    if alive and failures.keys() == codes.keys() and all(failure.consequence for failure in failures.values()):
        _explain_hang(alive, [_GRACE] * len(processes), processes, beats, folder)  # they gave up waiting for one that hangs
    silent = [rank for rank in codes if rank not in failures]
    causes = [rank for rank, failure in failures.items() if not failure.consequence]
    blamed = min(silent or causes or codes, key=lambda rank: (rank not in early, rank))
    how = _how(codes[blamed] or 0, failures.get(blamed), folder, blamed)
    raise RunFailed(f"rank {blamed} of {len(processes)} {how}. It was at: {_doing(beats[blamed])}. {_kept(beats)}", str(folder))


def _how(code: int, failure: Failure | None, folder: Path, rank: int) -> str:
    if failure is not None:
        return f"stopped with {failure.kind} ({failure.place}): {failure.message.splitlines()[0][:300].rstrip('.')}"
    if code < 0:
        hint = " (out of memory? see `dmesg`)" if code == -signal.SIGKILL else ""
        return f"was killed by {_how_ended(code)}{hint}"
    lines = (folder / f"rank{rank}.log").read_text(errors="replace").strip().splitlines()
    return f"exited with code {code} ({lines[-1][:200] if lines else 'no message'})"


def _explain_hang(late: list[int], quiet: list[float], processes: list[subprocess.Popen[bytes]], beats: list[Beat], folder: Path) -> None:
    # All ranks soon wait for the one that hangs: it is the one with the fewest steps. If several have equally few, all are named.
    key = {rank: (not _stopped(processes[rank].pid), beats[rank].read()[1]) for rank in late}
    blamed = [rank for rank in late if key[rank] == min(key.values())]
    who = f"rank {blamed[0]}" if len(blamed) == 1 else f"ranks {', '.join(map(str, blamed))}"
    state = "stopped by a signal, no progress" if _stopped(processes[blamed[0]].pid) else "no progress"
    text = f"{who} of {len(processes)}: {state} for {quiet[blamed[0]]:.0f} s. It was at: {_doing(beats[blamed[0]])}"
    raise RunFailed(f"{text}. The run was ended; logs: {folder}/rank*.log. {_kept(beats)}", str(folder))


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "Tt"
    except OSError:
        return False


def _doing(beat: Beat) -> str:
    count, steps, phase = beat.read()
    return f"{phase or 'starting'} (after {steps} steps)" if count else "starting"


def _kept(beats: list[Beat]) -> str:
    return f"Step times kept: {min(beat.read()[1] for beat in beats)}."


def _failure(folder: Path, rank: int) -> Failure | None:
    path = folder / f"rank{rank}.failure"
    return msgspec.json.decode(path.read_bytes(), type=Failure) if path.exists() else None


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kills every rank's session (its loader workers too) and waits until the processes are gone."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()
    end = time.monotonic() + _GONE
    while any(_session(process.pid) for process in processes) and time.monotonic() < end:
        time.sleep(_POLL)


def _session(pid: int) -> bool:
    """True while a process of this session exists. A killed one takes a moment to disappear, and may have no parent left to reap it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, 0)
        return True
    return False


def partial_steps(folder: Path) -> dict[int, list[float]]:
    """Rank -> seconds of each step that a run, finished or not, has left in its folder."""
    return {int(path.stem[4:]): Beat(path).step_times() for path in sorted(folder.glob("rank*.beat"))}


def _in_place(at: Process, function: str, argument: object, ranks: int, folder: Path, result: type[T], stall: float) -> list[T]:
    import torch
    import torch.distributed as dist

    from executor.ranks.world import joined

    if at.world != ranks:
        raise BadInput(f"{at.launcher} started {at.world} ranks, the plan needs {ranks}: start as many, or change the plan")
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(compute_threads())  # torchrun sets a number, srun and mpirun give each rank all of the host's cores
    call, kind = resolve(function)
    argument = msgspec.json.decode(msgspec.json.encode(argument), type=kind)
    values, tasks = list[Any]([None] * ranks), list[Any]([None] * ranks)
    with joined(at, folder, stall, Beat(folder / f"rank{at.rank}.beat", create=True)) as world:
        dist.all_gather_object(tasks, (function, (at.local_rank, at.local_world)))
        refuse_dealt(at.launcher, [where for _, where in tasks])
        if other := next((rank for rank in range(ranks) if tasks[rank][0] != tasks[0][0]), 0):
            raise BadInput(
                f"rank 0 is to run {tasks[0][0]}, rank {other} {tasks[other][0]}: their hosts found different calibrations. Put the same file where each "
                "host looks for it, or remove it from all"
            )
        dist.all_gather_object(values, msgspec.msgpack.encode(call(world, argument)))
    return [msgspec.msgpack.decode(value, type=result) for value in values]
