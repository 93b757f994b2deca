"""DiLoCo (Douillard et al. 2023, algorithm 1): local updates whose outer step is SGD with Nesterov momentum, not a plain average.

Every rank keeps the parameters of the last outer step, and a momentum, on its device. After `every` steps what it has moved by (the copy minus
its parameters) is the outer gradient: flattened, divided by the ranks, summed, as the plain average's parameters are. The parameters go back
to the copy, torch.optim.SGD(nesterov = True) updates them, and the copy is made anew (torchft's local_sgd.py, DiLoCo.perform_sync; Prime's
zeroband/diloco.py). Both these keep the copy in host memory unless told otherwise; here it is told.
"""

from __future__ import annotations

from sim.lower.job import Job
from sim.lower.ops import collective, compute, spent
from sim.lower.optimizer.lists import over_all, passed
from sim.lower.optimizer.owned import Share, state_dtype, state_width
from sim.lower.optimizer.step import model_copy
from sim.optimizers import NESTEROV, Passes
from sim.plan import Plan
from sim.program import COMPUTE, Op
from sim.work import MemoryBound, Work

CLS = "optimizer"
COPIES = 2
"""Tensors kept for each parameter: its value at the last outer step, and the momentum."""
_MOVED: Passes = (("add", 2, 1),)
_BACK: Passes = (("copy", 1, 1),)


def kept(plan: Plan, elements: float, width: float) -> float:
    """Bytes that the outer optimizer keeps for so many parameters of `width` bytes."""
    return COPIES * elements * width if plan.update.mode == "local" and plan.update.outer == "nesterov" else 0.0


def outer_step(job: Job, share: Share) -> list[Op]:
    """The outer step: parameters that differ between ranks become equal. With one data-parallel rank nothing is sent."""
    if not share.elements:
        return []
    called = [spent("outer/step.host", "optimizer_step", cls=CLS), spent("outer/tensors.host", "optimizer", share.tensors, cls=CLS)]
    calls = called if job.eager else []
    size, width, dtype = int(share.elements * state_width(job)), state_width(job), state_dtype(job)
    moved, back = passed(job, share, _MOVED, width, dtype), passed(job, share, _BACK, width, dtype)
    message: list[Op] = []
    if job.size(job.data_axis) > 1:
        moved += [MemoryBound("copy", size, size, dtype), MemoryBound("scale", size, size, dtype)]
        message.append(collective(job, "outer/all_reduce", COMPUTE, "all_reduce", size, job.data_axis, "comm.ps"))
    # Back to the copy, updated, and the copy made anew.
    step = (*back, *_nesterov(job, share), *model_copy(job, share), *back)
    return [*calls, compute(job, "outer/moved", tuple(moved), CLS), *message, compute(job, "outer/step", step, CLS)]


def _nesterov(job: Job, share: Share) -> list[Work]:
    """The update, launched as the framework launches its own; fused it is momentum's kernel."""
    width, dtype = state_width(job), state_dtype(job)
    if job.framework.optimizer.implementation == "fused":
        read, written = NESTEROV.fused
        return [over_all(job, share, NESTEROV.like, read * width, written * width, dtype, 3)]
    return passed(job, share, NESTEROV.launched(job.framework.optimizer.implementation), width, dtype)
