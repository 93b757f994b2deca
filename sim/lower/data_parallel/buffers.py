"""Batch norms' running statistics, which DistributedDataParallel sends from rank 0 to all before each step (broadcast_buffers, on by default).

torch's reducer flattens them into one message for each dtype, and copies each tensor back, called from C++ (torch/csrc/distributed/c10d/comm.cpp,
broadcast_coalesced): a mean and a variance as wide as the parameters (module.to(dtype) takes them along), and a count in int64, of each norm.
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.lower.accumulate import COPY
from sim.lower.data_parallel.replicate import CLS, lane_of
from sim.lower.job import Job
from sim.lower.ops import collective, compute, order
from sim.lower.template import BlockOps
from sim.model.parts import Part
from sim.program import COMPUTE, Op
from sim.work import MemoryBound, Work


def broadcast(job: Job, blocks: Iterable[BlockOps]) -> list[Op]:
    """The broadcast of these statistics, with the copies before and after. Empty where no batch norm is trained, where no other rank
    has a copy of it, and with ZeRO."""
    if not job.framework.data_parallel.broadcasts_buffers or job.size(job.data_axis) == 1 or job.zero:
        return []
    widths = [part.part.tensors[0] for block in blocks for part in block.parts if _has_statistics(part.part)]
    if not widths:
        return []
    e, dtype = int(job.param_bytes), job.framework.precision.param_dtype
    sizes = (2 * e * sum(widths), 8 * len(widths))  # two numbers a channel; one int64 a norm
    lane = lane_of(job.data_axis)
    joined = tuple(MemoryBound("copy", size, size, "fp32") for size in sizes)
    back: list[Work] = [MemoryBound("copy", e * width, e * width, dtype, 1.0, 2) for width in widths]
    back.append(MemoryBound("copy", 8, 8, "fp32", 1.0, len(widths)))
    sent = [
        collective(job, f"buffers/{what}", lane, "broadcast", size, job.data_axis, CLS)
        for what, size in zip((dtype, "int64"), sizes, strict=True)
    ]
    return [
        compute(job, "buffers/join", joined, COPY),
        *order(job, "buffers/joined", COMPUTE, lane),
        *sent,
        *order(job, "buffers/sent", lane, COMPUTE),
        compute(job, "buffers/back", tuple(back), COPY),
    ]


def _has_statistics(part: Part) -> bool:
    return (
        bool(part.tensors)
        and not part.frozen
        and any(isinstance(work, MemoryBound) and work.what.startswith("batchnorm") for work in part.forward)
    )
