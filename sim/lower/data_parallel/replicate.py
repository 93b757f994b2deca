"""Averages the gradients of replicas: buckets are sent on `comm.dp` as soon as backward has filled them.

With torch's DDP each gradient is copied into its bucket and back (gradient_as_bucket_view is off by default), and a hook may cast a full
bucket for its message (`hooks`); Megatron's flat buffer needs one scaling pass. Nothing is sent before the last micro-batch (no_sync).
Without overlap, all messages wait for the end of backward. ZeRO-1 and -2 send the same buckets by reduce_scatter (`sharded.messages`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sim.lower.accumulate import COPY
from sim.lower.data_parallel import hooks
from sim.lower.data_parallel.buckets import Bucket, rebuilds
from sim.lower.job import Job
from sim.lower.ops import collective, compute, host, order, record, spent, wait
from sim.lower.template import PartOps
from sim.program import COMPUTE, Op
from sim.work import HostWork, MemoryBound, Work

Messages = Callable[[Job, Bucket], list[Op]]
CLS = "comm.dp"


def lane_of(axis: str) -> str:
    return "comm.dp" if axis in ("dp", "grad") else f"comm.{axis}"


GLOO_THREADS = 2
"""Collectives of one group that gloo runs at a time, each on a thread of its own (torch 2.13, ProcessGroupGloo.hpp, Options.threads)."""


def lane_for(job: Job, bucket: Bucket) -> str:
    """The lane of a bucket's message. NCCL runs a group's collectives one after the other; gloo runs `GLOO_THREADS` of DDP's at a time."""
    lane = lane_of(bucket.axis)
    turn = bucket.number % GLOO_THREADS if job.device == "cpu" and rebuilds(job) else 0
    return f"{lane}.{turn}" if turn else lane


def all_reduce(job: Job, bucket: Bucket) -> list[Op]:
    """DDP's message for one bucket."""
    size = bucket.elements * job.reduce_bytes
    return [collective(job, f"grad/{bucket.name}.all_reduce", lane_for(job, bucket), "all_reduce", size, bucket.axis, CLS)]


def reduce_gradients(job: Job, pieces: Iterable[tuple[PartOps, tuple[Op, ...]]], buckets: list[Bucket], messages: Messages) -> list[Op]:
    """Backward's `pieces` with each bucket sent when its last gradient is there, and all of them awaited at the end."""
    due: dict[tuple[str, str], list[Bucket]] = {}
    for bucket in buckets:
        due.setdefault(bucket.last, []).append(bucket)
    ops: list[Op] = []
    held: list[Bucket] = []
    for part, work in pieces:
        ops += work
        for bucket in due.get((part.block, part.part.name), ()):
            if job.overlap_grad:
                ops += send(job, bucket, messages, last=bucket is buckets[-1])
            else:
                held.append(bucket)
    for bucket in held:
        ops += send(job, bucket, messages, last=bucket is buckets[-1])
    if _hooks(job) and buckets:
        ops.append(spent(f"grad/{buckets[-1].name}.step", "ddp_step"))
    for bucket in buckets:
        ops += _receive(job, bucket)
    return ops


def _hooks(job: Job) -> bool:
    """Whether autograd hands each gradient to DDP as it comes, which costs the thread time."""
    return rebuilds(job) and job.eager and not job.sums_at_end


def send(job: Job, bucket: Bucket, messages: Messages, last: bool = False) -> list[Op]:
    """Fills the bucket, and sends it beside compute. Where a background thread sends messages in cycles, the last one waits half a
    cycle for it."""
    name = f"grad/{bucket.name}"
    ops: list[Op] = []
    if _hooks(job):
        ops += [spent(f"{name}.hooks", "ddp_parameter", len(bucket.tensors)), spent(f"{name}.bucket", "ddp_bucket")]
    if job.framework.data_parallel.packs_gradients:
        ops.append(compute(job, f"{name}.copy", copies(job, bucket, job.grad_bytes, packed(job)), COPY))
    ops += _prepared(job, bucket)
    ops += hooks.narrowed(job, bucket)
    sent = messages(job, bucket)
    lane, cycle = sent[0].lane, job.framework.data_parallel.cycle
    turn = [host(f"{name}.turn", HostWork("cycle", 0.5, cycle), lane=lane, cls=CLS)] if last and cycle else []
    follows, end = hooks.follows(job, bucket, sent[-1].lane)
    return [*ops, *order(job, f"{name}.full", COMPUTE, lane), *turn, *sent, *follows, record(f"{name}.done", end)]


def _prepared(job: Job, bucket: Bucket) -> list[Op]:
    """Passes over a full bucket before it is sent: Megatron's check for NaNs, and the division by the number of ranks."""
    name, habits, dtype = f"grad/{bucket.name}", job.framework.data_parallel, job.framework.precision.reduce_dtype
    size, ops = int(bucket.elements * job.reduce_bytes), list[Op]()
    if habits.checks_gradients and job.flat_gradients:
        ops.append(compute(job, f"{name}.check", (MemoryBound("norm", size, 4, dtype),), COPY))
    if habits.prescales and (rebuilds(job) or job.flat_gradients):
        ops.append(compute(job, f"{name}.mean", (MemoryBound("scale_", size, size, dtype),), COPY))
    return ops


def _receive(job: Job, bucket: Bucket) -> list[Op]:
    """The step waits for the bucket; DDP copies its gradients back."""
    name = f"grad/{bucket.name}"
    ops = [wait(job, f"{name}.done", COMPUTE), *hooks.received(job, bucket)]
    if rebuilds(job) and job.framework.data_parallel.packs_gradients:
        ops.append(compute(job, f"{name}.back", copies(job, bucket, packed(job), job.grad_bytes), COPY))
    return ops


def packed(job: Job) -> float:
    """Bytes of one gradient in its bucket. It has the width of the message, unless a hook casts the bucket for it."""
    return job.grad_bytes if job.casts_buckets else job.reduce_bytes


def copies(job: Job, bucket: Bucket, read: float, written: float) -> tuple[Work, ...]:
    """One kernel for each gradient of DDP on a GPU; one pass over the whole bucket otherwise.

    On a CPU the calibration's seconds for each parameter hold the calls, so that only the bytes are left.
    """
    many = len(bucket.tensors) if rebuilds(job) and job.device == "cuda" else 1
    each = bucket.elements / many
    return (MemoryBound("scale", int(each * read), int(each * written), job.framework.precision.reduce_dtype, float(int(each)), many),)
