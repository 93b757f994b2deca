"""How passes over tensors are launched: lists of them in multi-tensor kernels, or each tensor by itself.

A multi-tensor kernel takes so many tensors and so many elements (ATen/native/cuda/MultiTensorApply.cuh); on a CPU foreach is a loop.
"""

from __future__ import annotations

import math

from sim.lower.job import Job
from sim.lower.optimizer.owned import Share
from sim.lower.optimizer.passes import kernel, over_one
from sim.optimizers import Passes
from sim.work import MemoryBound, Work

CHUNK = 320 * 65536
"""Elements of one multi-tensor launch: 320 blocks of 65,536 (ATen/native/cuda/MultiTensorApply.cuh, apex)."""
TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors of one multi-tensor launch, by lists of tensors that it walks (the same header)."""


def launches(job: Job, tensors: int, elements: int, lists: int) -> int:
    """Kernels of one multi-tensor pass over `lists` lists of so many tensors. On a CPU foreach is a loop whose passes are one each here:
    the calibration's seconds for each tensor hold its calls."""
    if job.device == "cpu":
        return 1
    return max(math.ceil(tensors / TENSORS.get(lists, 30)), math.ceil(elements / CHUNK), 1)


def over_all(job: Job, share: Share, what: str, read: float, written: float, dtype: str, lists: int = 2) -> Work:
    """One pass over all tensors; `read` and `written` are bytes per element."""
    return _multi(job, share.tensors, share.elements, what, (read, written), dtype, lists)


def over_lists(job: Job, tensors: list[int], what: str, read: float, written: float, dtype: str, lists: int = 2) -> Work:
    """One pass over some tensors, by their elements."""
    return _multi(job, len(tensors), sum(tensors), what, (read, written), dtype, lists)


def _multi(job: Job, tensors: int, elements: int, what: str, moved: tuple[float, float], dtype: str, lists: int) -> Work:
    count = launches(job, tensors, elements, lists)
    each = elements / count
    return MemoryBound(what, int(each * moved[0]), int(each * moved[1]), dtype, float(int(each)), count)


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
    """`passes` over each tensor, every kernel called by itself; `small`: kernels over single numbers, called by a compiled function."""
    numbers: list[Work] = [MemoryBound("scale", 8, 4, dtype, 1.0, small)] if small else []
    each = [([*over_one(size, passes, width, dtype), *numbers], count) for size, count in share.sizes.items()]
    return [work for works, count in each for _ in range(count) for work in works]
