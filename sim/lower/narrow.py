"""Weights of linears that run in 8 bits or 4, made of 16-bit ones: once a step, or in each pass that reads them.

Where ZeRO-3 gathers a layer for each pass, it makes them of what it has gathered (`sim.lower.data_parallel.gathered`).
"""

from __future__ import annotations

from typing import Literal

from sim.lower.job import Job
from sim.lower.ops import compute
from sim.lower.template import Ops, PartOps, name_of
from sim.work import BYTES, MemoryBound, Work

When = Literal["", "once", "each"]
"""A pass makes none, those that a step's later passes read too, or its own."""


def when(job: Job, first: bool) -> When:
    """What a pass makes; `first`: the step's first forward."""
    return "each" if each(job) else "once" if first and _once(job) else ""


def _once(job: Job) -> bool:
    """Are they made in a step's first micro-batch? By TransformerEngine, which keeps them; or of parameters with scales of blocks, which have come in
    16 bits."""
    kept, habits = job.framework.linears.kept_casts, job.framework.data_parallel
    return job.train and job.zero < 3 and bool(kept) and job.plan.precision not in habits.sends_narrow and _narrow(job)


def each(job: Job) -> bool:
    """Are they made in each pass of each micro-batch, of weights that stay?"""
    how, stay = job.framework.data_parallel.quantises_gathered, job.zero < 3 or job.size("pp") > 1
    return _narrow(job) and stay and (how in ("forward", "passes") or (how == "shards" and job.zero < 3))


def _narrow(job: Job) -> bool:
    return BYTES[job.plan.precision] < 2


def casts(job: Job, ahead: bool, again: bool, elements: int) -> tuple[Work, ...]:
    """What makes so many of them in a forward pass (`ahead`), or in a backward one, which may run forward `again`. With scales of before, both ways at
    once; with the tensor's own, or one for each row or column, in the way that the pass reads them (torchao, float8_linear.py:
    matmul_with_hp_or_float8_args casts the weight in forward and once more in backward)."""
    how, dtype = job.framework.data_parallel.quantises_gathered, job.framework.precision.param_dtype
    if how == "forward" and not (ahead or again):
        return ()
    cast, largest = MemoryBound("cast", 2 * elements, elements, dtype), MemoryBound("reduce", 2 * elements, 0, dtype)
    scaling = job.framework.linears.fp8_scaling
    if scaling in ("delayed", "shared"):
        return (MemoryBound("cast_transpose", 2 * elements, 2 * elements, dtype),)
    forward = (cast,) if scaling == "rowwise" else (largest, cast)
    return forward if ahead else (*(forward if again else ()), largest, cast)


def made(job: Job, part: PartOps, how: When, ahead: bool, again: bool) -> Ops:
    """Before a part's forward (`ahead`), or before the gradient of its input, where the layer's forward may run `again`. What is made once a step is made
    of frozen weights too where it is a cast that is kept, not where it is a parameter."""
    its, phase = part.part, "fwd" if ahead else "bwd"
    if how == "each":
        works = casts(job, ahead, again, its.narrow) if ahead or not its.detached else ()
    else:
        works = its.narrowing if not its.frozen or job.plan.precision in job.framework.linears.kept_casts else ()
    return (compute(job, f"{phase}/{name_of(part.block, its)}.narrow", works, its.cls),) if works else ()
