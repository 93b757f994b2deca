"""How a micro-batch's gradients join those of the micro-batches before it."""

from __future__ import annotations

from typing import Literal

from sim.lower.job import Job
from sim.lower.ops import compute
from sim.lower.template import PartOps, name_of
from sim.program import Op
from sim.work import MemoryBound, Work

COPY = "grad.copy"
"""Class of the kernels that move gradients: they add them to earlier ones, or copy them into and out of buckets."""
Way = Literal["", "add", "cast", "more"]
"""How a micro-batch's gradients join those of earlier ones. "": there are no others. "add": added to them in their own dtype. "cast"
and "more": the sum is kept in the dtype of the messages; the first micro-batch's are cast to it, later ones are added."""


def accumulate(job: Job, part: PartOps, how: Way) -> tuple[Op, ...]:
    """The op that adds the part's new gradients to those of earlier micro-batches, as autograd does: one kernel for each tensor. Empty
    where nothing is added.

    Megatron's GEMMs add to the main gradient themselves; gradients that other kernels make are added to it in every micro-batch.
    """
    tensors = part.part.tensors
    if not tensors or part.part.frozen or (not part.part.wgrad and not part.part.backward):
        return ()
    if part.part.cls == "gemm" and not part.part.wgrad:
        return ()  # put off to the end of the step (`sim.lower.ends.late`)
    flat = job.flat_gradients
    if job.framework.precision.sums_apart:
        return (compute(job, f"wgrad/{name_of(part.block, part.part)}.add", _sums_apart(job, tensors), COPY),)
    if (flat and any(getattr(work, "accumulate", False) for work in part.part.wgrad)) or not (how or flat):
        return ()
    if how in ("cast", "more") and not flat:
        new, kept, dtype = job.param_bytes, job.reduce_bytes, job.framework.precision.reduce_dtype
    else:
        new, kept, dtype = job.param_bytes if flat else job.grad_bytes, job.grad_bytes, job.framework.precision.grad_dtype
    first = how == "cast" and not flat
    read = new if first else new + kept
    added = tuple(MemoryBound("cast" if first else "add_", int(n * read), int(n * kept), dtype, float(n)) for n in tensors)
    works = (*_checked(job, tensors), *added)
    return (compute(job, f"wgrad/{name_of(part.block, part.part)}.{'cast' if first else 'add'}", works, COPY),)


def _sums_apart(job: Job, tensors: tuple[int, ...]) -> tuple[Work, ...]:
    """`hp_grad.add_(lp.grad.to(hp_grad.dtype))`, in the first micro-batch too: the buffer holds zeros."""
    new, kept, dtype = job.param_bytes, job.grad_bytes, job.framework.precision.grad_dtype
    steps = (("cast", new, kept), ("add_", 2 * kept, kept))
    return tuple(MemoryBound(what, int(n * read), int(n * written), dtype, float(n)) for n in tensors for what, read, written in steps)


def _checked(job: Job, tensors: tuple[int, ...]) -> tuple[Work, ...]:
    """What the framework does to each gradient before it is added (`Updates.between`)."""
    how, g, dtype = job.framework.optimizer.between, job.grad_bytes, job.framework.precision.grad_dtype
    scaled = job.plan.precision == "fp16"
    steps = [("reduce", 0.0)] * scaled + [("norm", 0.0), ("scale", g)] if how == "clip" else [("scale", g)] if how and scaled else []
    return tuple(MemoryBound(what, int(n * g), int(n * written), dtype, float(n)) for n in tensors for what, written in steps)
