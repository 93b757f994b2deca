"""Gradients in the order in which backward makes them, cut into buckets as the framework cuts them.

torch's reducer: in the first step one bucket holds all (DistributedDataParallel passes sys.maxsize as limit unless unused
parameters are looked for); from the second on they follow the order of readiness, 1 MiB for the first bucket and 25 MiB for
the others (`DEFAULT_BUCKET`), or `bucket_cap_mb` for all where it is said (torch 2.13, nn/parallel/distributed.py, reducer.cpp). A bucket
closes with the parameter that reaches its limit. Megatron: max(40e6, 1e6 x dp) elements, no rebuilding
(megatron/core/distributed/distributed_data_parallel.py). Horovod and OneFlow: so many bytes of what is ready (`DataParallel.bucket`).
"""

from __future__ import annotations

from typing import NamedTuple

from sim.framework.framework import Framework
from sim.lower.job import Job
from sim.lower.template import BlockOps, PartOps
from sim.model.parts import Part
from sim.plan import Plan
from sim.work import BYTES

DEFAULT_BUCKET = 25 << 20
FIRST_BUCKET = 1 << 20
Where = tuple[str, str]
"""(block, part)."""


class Limits(NamedTuple):
    """Bytes at which a bucket is closed: the first one, and all later ones."""

    first: float
    later: float


UNLIMITED = Limits(float("inf"), float("inf"))


class Bucket(NamedTuple):
    """Gradients that travel together.

    One element has up to three widths: the bucket is cut by bytes of `grad_dtype` (what backward makes), travels in `Job.reduce_bytes`, and is copied
    in and out as `sim.lower.data_parallel.replicate.packed` says.
    """

    name: str
    """`b0`, or `e0` of experts' own; of a later stage on the rank `stage1.b0`. Its ops are `grad/b0.all_reduce` and the like."""
    axis: str
    """Mesh axis over which they are averaged."""
    tensors: tuple[int, ...]
    """Elements of each gradient tensor."""
    last: Where
    """The part whose backward completes it."""
    blocks: frozenset[str]
    number: int = 0
    """Its index among the buckets of its axis."""
    narrow: int = 0
    """How many of its elements belong to linears that run in 8 or 4 bits."""

    @property
    def elements(self) -> int:
        return sum(self.tensors)


def ready_order(part: Part, autocast: bool) -> tuple[int, ...]:
    """Elements of the part's gradients, in the order in which autograd hands them over. A linear's bias comes before its weight, a
    norm's or convolution's after it. Other tensors of a convolution's part come behind it in forward, and so before it in backward.
    Under autocast a linear's bias is cast before its weight, and so comes after it in backward."""
    tensors = part.tensors
    if part.cls == "norm":
        return tensors
    if part.cls == "conv":
        return (*tensors[:1:-1], *tensors[:2])
    if autocast and part.cls == "gemm" and len(tensors) % 2 == 0 and tensors[1] < tensors[0]:
        return tuple(size for at in range(len(tensors) - 2, -1, -2) for size in tensors[at : at + 2])
    return tensors[::-1]


def trained(blocks: list[BlockOps]) -> list[PartOps]:
    """Parts with gradients, in backward order."""
    return [part for block in reversed(blocks) for part in reversed(block.parts) if part.part.tensors and not part.part.frozen]


def limits(job: Job, step: int, first_stage: bool) -> Limits:
    """The sizes at which buckets are cut in step number `step`. `first_stage`: the stage is the pipeline's first, with which backward
    ends."""
    own_rule = not job.framework.data_parallel.bucket  # torch's or Megatron's, not so many bytes of what is ready
    torch_rule = own_rule and rebuilds(job)
    if not job.overlap_grad and not job.sums_at_end:
        return UNLIMITED  # nothing to overlap: one message
    if torch_rule and step == 0:
        return UNLIMITED  # in the first step all are in one
    if own_rule and job.flat_gradients and not first_stage:
        return UNLIMITED  # Megatron cuts none of a later stage, as it is not on the critical path (distributed_data_parallel.py)
    size = asked_bucket(job.plan, job.framework)
    if size is None and job.flat_gradients:
        size = int(max(40_000_000, 1_000_000 * job.size(job.data_axis)) * job.reduce_bytes)
    if size is not None:
        return Limits(size, size)
    return Limits(FIRST_BUCKET if torch_rule or job.zero == 0 else DEFAULT_BUCKET, DEFAULT_BUCKET)


def asked_bucket(plan: Plan, framework: Framework) -> int | None:
    """Bytes at which a bucket is closed, as the plan sets them, or else the framework. None: torch's or Megatron's own rule holds."""
    return (framework.data_parallel.bucket << 20 or None) if plan.comm.bucket is None else plan.comm.bucket


def rebuilds(job: Job) -> bool:
    """Whether torch's DDP sums the gradients, which cuts its buckets anew after the first step. It may do so under ZeRO-1, too, where
    an optimizer shares out whole tensors."""
    return job.framework.data_parallel.sums_as_ddp(job.zero) and not job.flat_gradients


def buckets_of(job: Job, blocks: list[BlockOps], step: int, prefix: str = "", first_stage: bool = True) -> list[Bucket]:
    """All buckets of one stage in step number `step` (torch cuts them differently in the first step), in the order in which they become
    ready. Expert parameters have their own; groups of one rank have none."""
    dense = job.data_axis if job.zero == 0 else "fsdp"
    split = job.zero > 0 and job.size("efsdp") > 1  # else each rank updates all of its experts, and sums their gradients as DDP does
    experts = ("efsdp" if split else "edp") if job.mesh.apart else dense
    parts, found = trained(blocks), list[Bucket]()
    if job.size(dense) > 1:
        found += _cut(job, [p for p in parts if not (p.part.expert and experts != dense)], dense, step, f"{prefix}b", first_stage)
    if experts != dense and job.size(experts) > 1:
        found += _cut(job, [p for p in parts if p.part.expert], experts, step, f"{prefix}e", first_stage)
    return found


def _cut(job: Job, parts: list[PartOps], axis: str, step: int, prefix: str, first_stage: bool) -> list[Bucket]:
    limit, later = limits(job, step, first_stage)
    width = BYTES[job.framework.precision.grad_dtype]
    found: list[Bucket] = []
    tensors: list[int] = []
    blocks: set[str] = set()
    size, narrow, last = 0.0, 0, ("", "")

    def close() -> None:
        found.append(Bucket(f"{prefix}{len(found)}", axis, tuple(tensors), last, frozenset(blocks), len(found), narrow))

    for part in parts:
        last = (part.block, part.part.name)
        blocks.add(part.block)
        for elements in ready_order(part.part, job.framework.precision.autocast):
            tensors.append(elements)
            size += elements * width
            narrow += elements if part.part.narrow else 0
            if size >= limit:
                close()
                tensors, blocks, size, narrow, limit = [], {part.block}, 0.0, 0, later
    if tensors:
        close()
    return found
