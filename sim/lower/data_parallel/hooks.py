"""Casts a full bucket to the dtype of its message, and back: DDP's compress hooks (torch 2.13,
distributed/algorithms/ddp_comm_hooks/default_hooks.py, _compress_hook).

The hook runs when the bucket is full: a cast, a division by the ranks, the message. What follows it (`then`) copies the sum back into the
bucket: on a GPU on a stream of its own beside what computes, on a CPU in a thread that takes its core from the one that trains. DeepSpeed's
communication_data_type does the same (runtime/engine.py, allreduce_bucket; of a shard runtime/zero/stage_1_and_2.py, average_tensor).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.accumulate import COPY
from sim.lower.data_parallel.buckets import Bucket
from sim.lower.job import Job
from sim.lower.ops import compute, order
from sim.program import COMPUTE, Op
from sim.work import MemoryBound


def narrowed(job: Job, bucket: Bucket) -> list[Op]:
    """The cast before the message, `buffer.to(dtype).div_(world_size)`. Empty where buckets are not cast."""
    if not job.casts_buckets:
        return []
    dtype, sent = job.framework.precision.reduce_dtype, int(bucket.elements * job.reduce_bytes)
    cast = MemoryBound("cast", int(bucket.elements * job.grad_bytes), sent, dtype)
    return [compute(job, f"grad/{bucket.name}.cast", (cast, MemoryBound("scale", sent, sent, dtype)), COPY)]


def widened(job: Job, bucket: Bucket, lane: str) -> list[Op]:
    """The copy back after the message, `buffer.copy_(value)`, on `lane`: of this rank's shard alone where gradients are scattered."""
    scattered = job.zero and not job.owns_tensors and bucket.axis != "edp" and job.framework.data_parallel.reduces == "shards"
    count = bucket.elements / (job.size(bucket.axis) if scattered else 1)
    work = MemoryBound("cast", int(count * job.reduce_bytes), int(count * job.grad_bytes), job.framework.precision.grad_dtype)
    return [replace(compute(job, f"grad/{bucket.name}.widen", (work,), COPY), lane=lane)]


def follows(job: Job, bucket: Bucket, lane: str) -> tuple[list[Op], str]:
    """On a GPU: the copy back after a message on `lane`, which runs beside the next message; and the lane on which the bucket is ready
    then."""
    if not job.casts_buckets or job.device == "cpu":
        return [], lane
    beside = f"{lane}.back"
    return [*order(job, f"grad/{bucket.name}.summed", lane, beside), *widened(job, bucket, beside)], beside


def received(job: Job, bucket: Bucket) -> list[Op]:
    """On a CPU: the copy back, on the compute lane, since the training thread and gloo's share a core."""
    return widened(job, bucket, COMPUTE) if job.casts_buckets and job.device == "cpu" else []
