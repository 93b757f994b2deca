"""What FSDP2 does to a unit's gradients beside their messages (torch 2.13, fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce).

NCCL divides while it sums, but not in fp16, whose range is small: there kernels divide by about the root of the number of ranks before the
message, and by the rest after it (_get_gradient_divide_factors). The reduced shard is cast to the parameters' dtype where that is another.
All of it runs on the stream of the message.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.accumulate import COPY
from sim.lower.job import Job
from sim.lower.ops import compute, spent
from sim.program import Op
from sim.work import MemoryBound, Work


def before_message(job: Job, name: str, lane: str, elements: int, ranks: int) -> list[Op]:
    """The first division, of the whole unit's gradients; empty where there is none."""
    size = round(elements * job.reduce_bytes)
    divided = MemoryBound("scale_", size, size, job.framework.precision.reduce_dtype)
    return _on(job, lane, f"{name}.divide", [divided] if factors(job, ranks)[0] != 1 else [])


def in_place_of_message(job: Job, name: str, lane: str, elements: int) -> list[Op]:
    """What a rank does that is alone along the axis, in place of a reduce_scatter: it copies the unit into what the optimizer reads.
    Before that it divides into a new tensor where several ranks' rows have come to its experts (`gradient_divide_factor`)."""
    size, dtype = round(elements * job.reduce_bytes), job.framework.precision.reduce_dtype
    divided = job.size("grad") > 1
    works: list[Work] = [*([MemoryBound("scale", size, size, dtype)] * divided), MemoryBound("copy", size, size, dtype)]
    return _on(job, lane, f"{name}.alone", works if job.fsdp2 else [])


def after_message(job: Job, name: str, lane: str, shard: float, ranks: int) -> list[Op]:
    """The second division and the cast, of `shard` elements."""
    works, size, how = list[Work](), round(shard * job.reduce_bytes), job.framework
    if factors(job, ranks)[1] != 1:
        works.append(MemoryBound("scale_", size, size, how.precision.reduce_dtype))
    if job.fsdp2 and how.precision.reduce_dtype != how.precision.grad_dtype:
        works.append(MemoryBound("cast", size, round(shard * job.grad_bytes), how.precision.grad_dtype))
    return _on(job, lane, f"{name}.cast", works)


def joined(job: Job, name: str, lane: str, shard: float, tensors: int) -> list[Op]:
    """Adds a later micro-batch's shard to the sum of the earlier ones: tensor by tensor (FSDP1 has one tensor of them all:
    _runtime_utils.py,
    _accumulate_sharded_grad)."""
    size = round(shard * job.grad_bytes)
    calls = [spent(f"{name}.add.host", "kernel", tensors - 1)] if job.fsdp2 and job.eager and tensors > 1 and job.device != "cpu" else []
    return [*calls, *_on(job, lane, f"{name}.add", [MemoryBound("add_", 2 * size, size, job.framework.precision.grad_dtype)])]


def factors(job: Job, ranks: int) -> tuple[float, float]:
    """What gradients are divided by before and after their message; their product is `ranks`."""
    if not job.fsdp2 or job.framework.precision.reduce_dtype != "fp16":
        return 1.0, 1.0
    first = 1
    while ranks % first == 0 and ranks / first > first:
        first *= 2
    return float(first), ranks / first


def _on(job: Job, lane: str, name: str, works: list[Work]) -> list[Op]:
    """The kernels on the message's lane. On a CPU the training thread waits for each message and runs what follows itself."""
    if not works:
        return []
    op = compute(job, name, tuple(works), COPY)
    return [op if job.device == "cpu" else replace(op, lane=lane, blocking=job.framework.launch_blocking)]
