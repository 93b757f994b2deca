"""ZeRO-1 and -2: optimizer state, and with ZeRO-2 gradients, sharded over `fsdp`.

They send DDP's buckets by reduce_scatter (or all_reduce, where a framework keeps its part of that), and all_gather the
updated parameters: after the optimizer, or beside the next forward, one bucket ahead of use (Megatron's
overlap-param-gather). Hybrid sharding adds an all_reduce of the shards over `dp_replicate`. InternEvo's ZeRO-1 gives each rank whole tensors: buckets are all-reduced, owners broadcast.
"""

from __future__ import annotations

from sim.framework.chosen import summing_axis
from sim.lower.data_parallel.buckets import Bucket
from sim.lower.data_parallel.replicate import lane_of
from sim.lower.job import Job
from sim.lower.ops import collective, order, record, wait
from sim.lower.template import BlockOps, Ops
from sim.program import COMPUTE, Op

CLS = "comm.fsdp"


def messages(job: Job, bucket: Bucket) -> list[Op]:
    """reduce_scatter of one bucket; with replicas, then the all_reduce of this rank's shard. Where ranks own whole tensors: one
    all_reduce over all data-parallel ranks."""
    size = bucket.elements * job.reduce_bytes
    lane, name = lane_of(bucket.axis), f"grad/{bucket.name}"
    if bucket.axis == "edp":  # these experts are not sharded; there are only replicas of them
        return [collective(job, f"{name}.all_reduce", lane, "all_reduce", size, bucket.axis, CLS)]
    if job.owns_tensors:
        everyone = summing_axis(job.mesh, job.framework, bucket.axis == "efsdp")
        return [collective(job, f"{name}.all_reduce", lane, "all_reduce", size, everyone, CLS)]
    kind = "all_reduce" if job.framework.data_parallel.reduces == "whole" else "reduce_scatter"
    ops = [collective(job, f"{name}.{kind}", lane, kind, size, bucket.axis, CLS)]
    return ops + replicas(job, name, size / job.size(bucket.axis), lane)


def replicas(job: Job, name: str, shard: float, after: str) -> list[Op]:
    """Hybrid sharding: averages this rank's shard (`shard` bytes) with those of the other replicas, after lane `after`. Empty without
    replicas."""
    if job.size("dp_replicate") == 1:
        return []
    lane = lane_of("dp_replicate")
    return [
        *order(job, f"{name}.shard", after, lane),
        collective(job, f"{name}.all_reduce", lane, "all_reduce", shard, "dp_replicate", CLS),
    ]


def gather(job: Job, bucket: Bucket) -> Op:
    """all_gather of one bucket's updated parameters."""
    size = job.gathered_bytes(bucket.elements, bucket.narrow)
    return collective(job, f"param/{bucket.name}.all_gather", lane_of(bucket.axis), "all_gather", size, bucket.axis, CLS)


def broadcasts(job: Job, buckets: list[Bucket], axis: str) -> list[Op]:
    """The broadcasts of updated parameters: one from each owner, all taken as equally large. There are no more owners than tensors.
    ZeroRedundancyOptimizer sends one tensor after the other (_broadcast_params_from_rank, without parameters_as_bucket_view)."""
    tensors: list[float] = [elements for bucket in buckets for elements in bucket.tensors]
    if job.framework.data_parallel.zero1 != "ddp":
        owners = min(job.size(axis), len(tensors))
        tensors = [sum(tensors) / owners] * owners
    sizes = [elements * job.param_bytes for elements in tensors]
    return [collective(job, f"param/{axis}{at}.broadcast", lane_of(axis), "broadcast", size, axis, CLS) for at, size in enumerate(sizes)]


def gather_ahead(job: Job, blocks: list[BlockOps], lines: list[Ops], buckets: list[Bucket], later: list[Bucket] | None) -> list[Op]:
    """Forward (`lines`: each block's ops) with the parameters' all_gather beside it: a bucket is asked for when the one before is needed.

    `later`: the buckets of the rank's further model chunks; its first chunk asks for them too, so that they arrive while it
    still computes (Megatron's overlap_param_gather with interleaved stages). None: this is such a further chunk.
    """
    place = {block.name: index for index, block in enumerate(blocks)}
    line = sorted(split(buckets), key=lambda bucket: min(place[name] for name in bucket.blocks))
    firsts = {lane_of(bucket.axis): bucket.name for bucket in reversed(line)}
    ops = [] if later is None else [op for lane, name in firsts.items() for op in order(job, f"param/{name}.updated", COMPUTE, lane)]
    asked = len(line) if later is None else 0
    needed = 0
    for index, work in enumerate(lines):
        while needed < len(line) and min(place[name] for name in line[needed].blocks) <= index:
            needed += 1
            while asked < min(needed + 1, len(line)):
                ops += _asked(job, line[asked])
                asked += 1
            ops.append(wait(job, f"param/{line[needed - 1].name}.ready", COMPUTE))
        ops += work
    return ops + [op for bucket in split(later or []) for op in _asked(job, bucket)]


def split(buckets: list[Bucket]) -> list[Bucket]:
    """The buckets whose parameters are sharded for the update: all but those of experts of which there are only replicas."""
    return [bucket for bucket in buckets if bucket.axis != "edp"]


def _asked(job: Job, bucket: Bucket) -> tuple[Op, Op]:
    return gather(job, bucket), record(f"param/{bucket.name}.ready", lane_of(bucket.axis))


def gather_all(job: Job, buckets: list[Bucket]) -> list[Op]:
    """Gathers all parameters at once, after the update; compute waits for them."""
    buckets = split(buckets)
    lanes = list(dict.fromkeys(lane_of(bucket.axis) for bucket in buckets))
    ops = [op for lane in lanes for op in order(job, f"param/{lane}.updated", COMPUTE, lane)]
    if job.owns_tensors:
        for axis in dict.fromkeys(bucket.axis for bucket in buckets):
            ops += broadcasts(job, [bucket for bucket in buckets if bucket.axis == axis], axis)
    else:
        ops += [gather(job, bucket) for bucket in buckets]
    return ops + [op for lane in lanes for op in order(job, f"param/{lane}.ready", lane, COMPUTE)]
