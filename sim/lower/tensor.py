"""Tensor parallelism: the collectives at a part's seams.

Column-parallel parts (`tp.gather`) need their whole input, row-parallel ones (`tp.reduce`) leave partial sums
(Shoeybi et al. 2019, section 3). With sequence parallelism the all_reduce splits into an all_gather before the one and
a reduce_scatter after the other (Korthikanti et al. 2022, section 4.2.2). A synchronous collective stands on the compute
lane itself, as torch >= 2.8 runs `async_op=False`; those that Megatron runs beside a GEMM are on `comm.tp`.
"""

from __future__ import annotations

from sim.lower.job import Job
from sim.lower.ops import collective, order
from sim.model.parts import Part
from sim.program import COMPUTE, Op

LANE = "comm.tp"
CLS = "comm.tp"


def _now(job: Job, id: str, name: str, size: float) -> Op:
    return collective(job, id, COMPUTE, name, size, "tp", CLS)


def _beside(job: Job, id: str, name: str, size: float, kernels: list[Op]) -> list[Op]:
    """The collective on its own lane while `kernels` run; what comes after them waits for it."""
    if not kernels:
        return [_now(job, id, name, size)]
    return [
        *order(job, f"{id}.in", COMPUTE, LANE),
        collective(job, id, LANE, name, size, "tp", CLS),
        *kernels,
        *order(job, f"{id}.out", LANE, COMPUTE),
    ]


def _split_sequence(job: Job) -> bool:
    return job.plan.parallel.sequence_parallel


def forward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """Collectives around a part's forward kernels. `name` is the op id of the kernels."""
    size, split = part.seam_bytes, _split_sequence(job)
    if part.seam == "tp.gather":
        return [_now(job, f"{name}.all_gather", "all_gather", size), *kernels] if split else kernels
    if part.seam == "tp.loss":  # maximum, predicted logit and sum of exponentials, one number a row each
        return [*kernels, *(_now(job, f"{name}.{what}", "all_reduce", size / 3) for what in ("max", "target", "sum"))]
    reduce = "reduce_scatter" if split else "all_reduce"
    return [*kernels, _now(job, f"{name}.{reduce}", reduce, size)]


def backward(job: Job, name: str, part: Part, dgrad: list[Op], wgrad: list[Op]) -> tuple[list[Op], list[Op], list[Op]]:
    """(input's gradient, weights' gradients, both in one pass)."""
    size, split = part.seam_bytes, _split_sequence(job)
    if part.seam == "tp.gather":
        return _column(job, name, size, split, dgrad, wgrad)
    if split and part.seam in ("tp.reduce", "tp.embedding"):
        dgrad = [_now(job, f"bwd/{name}.all_gather", "all_gather", size), *dgrad]
    return dgrad, wgrad, dgrad + wgrad


def _column(job: Job, name: str, size: int, split: bool, dgrad: list[Op], wgrad: list[Op]) -> tuple[list[Op], list[Op], list[Op]]:
    """Megatron's linear: the input is gathered again beside dgrad, dgrad's sum travels beside wgrad
    (`LinearWithGradAccumulationAndAsyncCommunication`)."""
    reduce = "reduce_scatter" if split else "all_reduce"
    again, total = f"wgrad/{name}.all_gather", f"bwd/{name}.{reduce}"
    regather = split and bool(wgrad)
    alone = [*dgrad, _now(job, total, reduce, size)]
    weights = [_now(job, again, "all_gather", size), *wgrad] if regather else wgrad
    first = _beside(job, again, "all_gather", size, dgrad) if regather else dgrad
    return alone, weights, [*first, *_beside(job, total, reduce, size, wgrad)]
