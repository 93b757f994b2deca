"""A parameter server's threads: threads of rank 0's process, since they exchange with other ranks through its process groups.

Each receives the gradients of one worker, updates the parameters and sends them back. The updates run the real kernels, which release
Python's lock to the training thread, as torch's optimizers do. As in the program, updates are not locked against each other (Hogwild,
Niu et al. 2011).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from executor.arena import Arena
from executor.kernels.updates import on_host
from executor.players.communication import Group, communication
from executor.players.feeder import Body, Crossing, Times, timed
from sim.program import MEETING, SERVER, Op, Program
from sim.work import HostWork
from topologies.errors import RunFailed


class Server:
    """One running thread of a parameter server."""

    def __init__(self, thread: str, passes: Callable[[], list[Times]]) -> None:
        self.thread, self._passes = thread, passes
        self._found: list[Times] = []
        self._error: BaseException | None = None
        self._running = threading.Thread(target=self._run, name=thread, daemon=True)
        self._running.start()

    def _run(self) -> None:
        try:
            self._found = self._passes()
        except BaseException as error:  # reported by `times`, and to threads that wait for this thread's events
            self._error = error

    def times(self, patience: float) -> list[Times]:
        """Per turn, start and end of each op in the order of the thread's program, in seconds. Raises `RunFailed` if the thread has failed,
        or has not ended within `patience` seconds."""
        self._running.join(patience)
        if self._running.is_alive():
            raise RunFailed(f"{self.thread} did not finish within {patience:.0f} s")
        if self._error is not None:
            raise RunFailed(f"{self.fault} ended before it had finished") from self._error
        return self._found

    @property
    def fault(self) -> str:
        """The thread's name and error if it has failed; else ""."""
        return f"{self.thread} ({self._error})" if self._error is not None else ""


def start_servers(
    program: Program, rank: int, crossing: Crossing, turns: int, groups: dict[tuple[str, str], Group], arena: Arena
) -> list[Server]:
    """Starts a thread for each of the rank's `server` threads, for `turns` passes. Their buffers are made before, by the calling thread."""
    prepared = []
    for thread in program.threads(rank):
        if thread.startswith(SERVER):
            tags: Counter[tuple[str, str, int]] = Counter()
            bodies = [crossing.body(thread, call, op) or _body(op, groups, rank, arena, tags) for call, op in program.ops(rank, thread)]
            prepared.append((thread, bodies))
    threads = torch.get_num_threads()
    servers = [Server(thread, partial(_passes, bodies, turns, threads)) for thread, bodies in prepared]
    others = crossing.alive
    crossing.alive = lambda: others() or next(filter(None, (server.fault for server in servers)), "")
    return servers


def _passes(bodies: list[Body], turns: int, threads: int) -> list[Times]:
    torch.set_num_threads(threads)  # a setting of each thread
    with torch.no_grad():
        return timed(bodies, turns)


def _body(op: Op, groups: dict[tuple[str, str], Group], rank: int, arena: Arena, tags: Counter[tuple[str, str, int]]) -> Body:
    if op.kind in MEETING:
        issue = communication(op, groups, rank, arena, tags)
        return lambda _: _ended(issue()())
    updates = [on_host(work, arena) for work in op.works if isinstance(work, HostWork)]
    return lambda _: [update() for update in updates]


def _ended(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()
