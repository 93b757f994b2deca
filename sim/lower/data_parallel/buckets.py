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


class Bucket(NamedTuple):
    """Gradients that travel together."""

    name: str
    axis: str
    """Mesh axis over which they are averaged."""
    tensors: tuple[int, ...]
    """Elements of each."""
    last: Where
    """The part whose backward completes it."""
    blocks: frozenset[str]
    number: int = 0
    """Place among those of its axis."""

    @property
    def elements(self) -> int:
        return sum(self.tensors)


def ready_order(part: Part, autocast: bool) -> tuple[int, ...]:
    """Elements of the part's gradients as autograd hands them over: a linear's bias before its weight, a norm's or convolution's after (what else
    a convolution's part has comes behind it in forward, and so before it in backward). Under autocast a linear's bias is cast before its
    weight, and so comes after it in backward."""
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


def limits(job: Job, step: int, first: bool) -> tuple[float, float]:
    """Bytes that close the first bucket and each later one. `first`: of the first stage, which backward ends with; Megatron cuts none of the others
    (distributed_data_parallel.py: they are not on the critical path)."""
    whole, said = float("inf"), named(job.plan, job.framework)
    torchs = rebuilds(job) and not job.framework.data_parallel.bucket
    if (not job.overlap_grad and not job.sums_at_end) or (step == 0 and torchs):
        return whole, whole
    if job.flat_gradients and not first and not job.framework.data_parallel.bucket:
        return whole, whole
    if said is None and job.flat_gradients:
        said = int(max(40_000_000, 1_000_000 * job.size(job.data_axis)) * job.reduce_bytes)
    return (said, said) if said is not None else (FIRST_BUCKET if torchs or job.zero == 0 else DEFAULT_BUCKET, DEFAULT_BUCKET)


def named(plan: Plan, framework: Framework) -> int | None:
    """Bytes of a message as the plan says them, or else the framework; None: by a rule of torch's or Megatron's own."""
    return (framework.data_parallel.bucket << 20 or None) if plan.comm.bucket is None else plan.comm.bucket


def rebuilds(job: Job) -> bool:
    """torch's DDP cuts its buckets after the first step, also below an optimizer that shares out its tensors."""
    return job.framework.data_parallel.sums_as_ddp(job.zero) and not job.flat_gradients


def buckets_of(job: Job, blocks: list[BlockOps], step: int, prefix: str = "", first: bool = True) -> list[Bucket]:
    """All buckets of one stage, in the order in which they become ready. Expert parameters have their own; groups of one rank
    have none."""
    dense = job.data_axis if job.zero == 0 else "fsdp"
    split = job.zero > 0 and job.size("efsdp") > 1  # else each rank updates all of its experts, and sums their gradients as DDP does
    experts = ("efsdp" if split else "edp") if job.mesh.apart else dense
    parts, found = trained(blocks), list[Bucket]()
    if job.size(dense) > 1:
        found += _cut(job, [p for p in parts if not (p.part.expert and experts != dense)], dense, step, f"{prefix}b", first)
    if experts != dense and job.size(experts) > 1:
        found += _cut(job, [p for p in parts if p.part.expert], experts, step, f"{prefix}e", first)
    return found


def _cut(job: Job, parts: list[PartOps], axis: str, step: int, prefix: str, first: bool) -> list[Bucket]:
    limit, rest = limits(job, step, first)
    width = BYTES[job.framework.precision.grad_dtype]
    found: list[Bucket] = []
    tensors: list[int] = []
    blocks: set[str] = set()
    size, last = 0.0, ("", "")
    for part in parts:
        last = (part.block, part.part.name)
        blocks.add(part.block)
        for elements in ready_order(part.part, job.framework.precision.autocast):
            tensors.append(elements)
            size += elements * width
            if size >= limit:
                found.append(Bucket(f"{prefix}{len(found)}", axis, tuple(tensors), last, frozenset(blocks), len(found)))
                tensors, blocks, size, limit = [], {part.block}, 0.0, rest
    if tensors:
        found.append(Bucket(f"{prefix}{len(found)}", axis, tuple(tensors), last, frozenset(blocks), len(found)))
    return found
