"""Input: loader processes read, preprocess and collate; the training thread takes a batch and copies it to the device.

Workers take batches in turn and keep `prefetch` each in stock, as torch's DataLoader does: batch b is begun when batch
b - prefetch x workers has been taken. Events `ready` and `taken` are numbered by batch. The copy stands on
`copy.h2d` (or on the compute lane); from pageable memory it holds the training thread.
"""

from __future__ import annotations

from sim.lower.job import Job
from sim.lower.ops import host, order, spent
from sim.program import COMPUTE, H2D, HOST, Call, Op
from sim.work import HostWork

CLS = "data"
_HOW = {"disk": "disk", "object-store": "store", "database": "store", "memory": ""}


def read_bytes(job: Job) -> int:
    """Bytes that one batch of one rank takes from its source."""
    return job.plan.batch.micro * (job.plan.data.sample or job.network.sample_bytes)


def device_bytes(job: Job) -> int:
    """Bytes of one batch on the device."""
    return job.plan.batch.micro * job.network.sample_bytes


def load(job: Job, lane: str) -> list[Op]:
    """What one CPU thread does to make one batch."""
    data, micro = job.plan.data, job.plan.batch.micro
    ops: list[Op] = []
    if _HOW[data.source]:
        ops.append(Op("data/read", "copy", lane, bytes=read_bytes(job), how=_HOW[data.source], cls=CLS))
    if data.preprocess:
        ops.append(host("data/preprocess", HostWork("preprocess", micro, data.preprocess), lane=lane, cls=CLS))
    return [*ops, host("data/collate", HostWork("collate", micro), lane=lane, cls=CLS)]


def take(job: Job) -> list[Op]:
    """The training thread's share for one micro-batch: wait for the batch, give its place free, copy it over."""
    data = job.plan.data
    if data.workers:
        ops = [
            Op("data/wait", "sync", HOST, event="data/ready", shift=0, cls=CLS),
            spent("data/take", "loader", cls=CLS),
            Op("data/taken", "record", HOST, event="data/taken", shift=0),
        ]
    else:
        ops = load(job, HOST)
    return ops if job.device == "cpu" else [*ops, *_to_device(job)]


def _to_device(job: Job) -> list[Op]:
    data, size = job.plan.data, device_bytes(job)
    if not size:
        return []
    lane = H2D if data.stream == "copy" else COMPUTE
    how = "pinned" if data.pinned else "pageable"
    copy = Op("data/h2d", "copy", lane, bytes=size, how=how, cls=CLS, blocking=not data.pinned)
    return [copy] if lane == COMPUTE else [copy, *order(job, "data/on-device", H2D, COMPUTE)]


def loaders(job: Job) -> dict[str, tuple[Op, ...]]:
    """One segment for each loader process."""
    data = job.plan.data
    found: dict[str, tuple[Op, ...]] = {}
    for worker in range(data.workers):
        lane = f"loader.{worker}"
        free = Op("data/free", "wait", lane, event="data/taken", shift=-data.prefetch * data.workers)
        found[lane] = (free, *load(job, lane), Op("data/ready", "record", lane, event="data/ready", shift=0))
    return found


def loader_calls(job: Job) -> dict[str, tuple[Call, ...]]:
    """Which batches each loader process makes, in order."""
    workers, each = job.plan.data.workers, job.microbatches
    batches = range(job.steps * each)
    return {
        f"loader.{worker}": tuple(Call(f"loader.{worker}", f"s{b // each}/mb{b % each}", b, b // each) for b in batches[worker::workers])
        for worker in range(workers)
    }
