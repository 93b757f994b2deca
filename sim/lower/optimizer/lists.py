"""How passes over tensors are launched: lists of tensors in multi-tensor kernels, or each tensor by itself.

A multi-tensor kernel takes a limited number of tensors and of their pieces (ATen/native/cuda/MultiTensorApply.cuh). On a CPU foreach is
a loop.
"""

from __future__ import annotations

import math
from collections import Counter

from sim.lower.job import Job
from sim.lower.optimizer.owned import Share
from sim.lower.optimizer.passes import kernel, over_one
from sim.optimizers import OPTIMIZERS, Passes
from sim.work import BLOCK, LISTED, MemoryBound, Work

BLOCKS = 320
"""Blocks of one multi-tensor launch, each over a piece of one tensor (ATen/native/cuda/MultiTensorApply.cuh, apex)."""
TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors of one multi-tensor launch, by lists of tensors that it walks (the same header)."""


def launches(sizes: Counter[int], lists: int) -> int:
    """Number of kernels of one multi-tensor pass over `lists` lists of tensors. `sizes`: elements of a tensor -> how many tensors have
    them."""
    blocks = sum(-(-size // BLOCK) * count for size, count in sizes.items())
    return max(math.ceil(sizes.total() / TENSORS.get(lists, 30)), math.ceil(blocks / BLOCKS), 1)


def over_all(job: Job, share: Share, what: str, read: float, written: float, dtype: str, lists: int = 2) -> Work:
    """One pass over all tensors; `read` and `written` are bytes per element."""
    return over_lists(job, share.sizes, what, read, written, dtype, lists)


def over_lists(job: Job, sizes: Counter[int], what: str, read: float, written: float, dtype: str, lists: int) -> Work:
    """One pass over some tensors; `read` and `written` are bytes per element. `sizes`: elements of a tensor -> how many tensors have
    them. On a CPU foreach is a loop, but the pass is one kernel here: the calibration's seconds for each tensor include its calls."""
    elements = sum(size * count for size, count in sizes.items())
    if job.device == "cpu":
        return MemoryBound(what, int(elements * read), int(elements * written), dtype, float(elements))
    count = launches(sizes, lists)
    each, rows = elements / count, 0
    if what not in OPTIMIZERS:
        what, rows = LISTED + what, max(1, round(sizes.total() / count))
    return MemoryBound(what, int(each * read), int(each * written), dtype, float(int(each)), count, rows)


def passed(job: Job, share: Share, passes: Passes, width: float, dtype: str) -> list[Work]:
    """`passes` over all tensors by multi-tensor kernels, or over one after the other: called by Python, as nodes of a graph, or by a loop.
    A list has no kernel of signs: each tensor has its own (timm's lion.py)."""
    how = job.framework.optimizer.implementation
    if how in ("foreach", "fused") or job.device == "cpu":
        found: list[Work] = []
        for what, r, w in passes:
            if what == "sign" and job.device != "cpu":
                found += called(share, ((what, r, w),), width, dtype)
            else:
                found.append(over_all(job, share, kernel(what), r * width, w * width, dtype, r + (0 if what.endswith("_") else w)))
        return found
    if how == "scripted" or (how == "for-loop" and job.framework.host == "python") or (how == "graph" and not job.framework.compile):
        return called(share, passes, width, dtype)
    return [work for size, count in share.sizes.items() for work in over_one(size, passes, width, dtype, count)]


def called(share: Share, passes: Passes, width: float, dtype: str, small: int = 0) -> list[Work]:
    """`passes` over each tensor, where every kernel is called by itself. `small`: for each tensor, so many kernels over single numbers,
    as a compiled function calls them."""
    numbers: list[Work] = [MemoryBound("scale", 8, 4, dtype, 1.0, small)] if small else []
    each = [([*over_one(size, passes, width, dtype), *numbers], count) for size, count in share.sizes.items()]
    return [work for works, count in each for _ in range(count) for work in works]
