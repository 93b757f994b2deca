"""Functions that make ops. On a CPU every op on the compute lane is `blocking`: the training thread runs it itself."""

from __future__ import annotations

from sim.lower.job import Job
from sim.program import COMPUTE, D2H, HOST, Op
from sim.work import HostWork, Work

_FORCED = {
    "ring": ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    "tree": ("all_reduce",),
    "hierarchical": ("all_reduce",),
    "nvls": ("all_reduce", "all_gather", "reduce_scatter"),
    "pat": ("all_gather", "reduce_scatter"),
    "collnet": ("all_reduce",),
}
"""Collectives that an algorithm exists for (NCCL 2.30: tree and SHARP all_reduce only, NVLS without broadcast, PAT gathers and scatters)."""


def blocks(job: Job, lane: str) -> bool:
    return job.device == "cpu" and lane == COMPUTE


def holds(job: Job, lane: str) -> bool:
    """Whether the training thread waits for what runs on `lane`. On a CPU it runs this itself; with CUDA_LAUNCH_BLOCKING each launch
    waits."""
    return blocks(job, lane) or job.framework.launch_blocking


def compute(job: Job, id: str, works: tuple[Work, ...], cls: str, alloc: int = 0, free: int = 0) -> Op:
    """Kernels one after the other on the compute lane."""
    return Op(id, "compute", COMPUTE, works, cls=cls, blocking=holds(job, COMPUTE), alloc=alloc, free=free)


def host(id: str, *works: Work, lane: str = HOST, cls: str = "host") -> Op:
    return Op(id, "host", lane, works, cls=cls)


def spent(id: str, what: str, count: float = 1.0, cls: str = "host") -> Op:
    """`count` units of one kind of host work on the training thread."""
    return Op(id, "host", HOST, (HostWork(what, count),), cls=cls)


def collective(job: Job, id: str, lane: str, name: str, size: float, group: str, cls: str) -> Op:
    """A collective over the mesh axis `group`; `size` counts the whole array in bytes (all_to_all: one rank's buffer)."""
    algorithm = job.plan.comm.algorithm
    how = algorithm if name in _FORCED.get(algorithm, ()) else ""
    return Op(id, "collective", lane, name=name, bytes=round(size), group=group, cls=cls, how=how, blocking=holds(job, lane))


def record(event: str, lane: str) -> Op:
    return Op(f"{event}.record", "record", lane, event=event)


def wait(job: Job, event: str, lane: str) -> Op:
    """Lane waits for the latest record of `event`."""
    return Op(f"{event}.wait", "wait", lane, event=event, blocking=blocks(job, lane))


def order(job: Job, event: str, first: str, then: str) -> tuple[Op, Op]:
    """Lane `then` goes on when lane `first` has run what was queued on it so far."""
    return record(event, first), wait(job, event, then)


def read_back(job: Job, id: str, cls: str, size: int = 4) -> list[Op]:
    """`.item()`: `size` bytes to pageable memory; the host waits for all that was queued on the compute lane."""
    if job.device == "cpu":
        return []
    return [*order(job, f"{id}.made", COMPUTE, D2H), Op(id, "copy", D2H, bytes=size, how="pageable", cls=cls, blocking=True)]
