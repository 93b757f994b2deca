"""Casts weights of linears that run in 8 or 4 bits from 16 bits: once a step, or in each pass that reads them.

Where ZeRO-3 gathers a layer for each pass, the gathered weights are cast there (`sim.lower.data_parallel.gathered`).
"""

from __future__ import annotations

from typing import Literal

from sim.lower.job import Job
from sim.lower.ops import compute
from sim.lower.template import Ops, PartOps, name_of
from sim.work import BYTES, MemoryBound, Work

When = Literal["", "once", "each"]
"""Which narrow weights a pass makes. "": none. "once": those that later passes of the step read, too. "each": its own."""


def when(job: Job, first: bool) -> When:
    """Which narrow weights a pass makes. `first`: it is the step's first forward."""
    return "each" if each(job) else "once" if first and _once(job) else ""


def _once(job: Job) -> bool:
    """Whether they are made in a step's first micro-batch: by TransformerEngine, which keeps them, or from parameters with block scales
    that were gathered in 16 bits."""
    kept, habits = job.framework.linears.kept_casts, job.framework.data_parallel
    return job.train and job.zero < 3 and bool(kept) and job.plan.precision not in habits.sends_narrow and _narrow(job)


def each(job: Job) -> bool:
    """Whether they are made in each pass of each micro-batch, from weights that stay on the rank."""
    how, stay = job.framework.data_parallel.quantises_gathered, job.zero < 3 or job.size("pp") > 1
    return _narrow(job) and stay and (how in ("forward", "passes") or (how == "shards" and job.zero < 3))


def _narrow(job: Job) -> bool:
    return BYTES[job.plan.precision] < 2


def casts(job: Job, ahead: bool, again: bool, elements: int) -> tuple[Work, ...]:
    """The kernels that make `elements` of them in a forward pass (`ahead`), or in a backward one, which may run forward `again`. With
    delayed scales, one kernel makes both layouts at once. With a scale for the tensor or for each row or column, they are made in the
    layout that the pass reads (torchao, float8_linear.py: matmul_with_hp_or_float8_args casts the weight in forward and once more in
    backward)."""
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
    """The op that makes a part's narrow weights before its forward (`ahead`) or before the gradient of its input, where the layer's
    forward may run `again`. Made once a step, they include frozen weights only if they are casts that are kept, not parameters."""
    its, phase = part.part, "fwd" if ahead else "bwd"
    if how == "each":
        works = casts(job, ahead, again, its.narrow) if ahead or not its.detached else ()
    else:
        works = its.narrowing if not its.frozen or job.plan.precision in job.framework.linears.kept_casts else ()
    return (compute(job, f"{phase}/{name_of(part.block, its)}.narrow", works, its.cls),) if works else ()
