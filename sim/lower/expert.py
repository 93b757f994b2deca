"""Expert parallelism: tokens travel to their experts and back (GShard, Lepikhin et al. 2020), mirrored in backward."""

from __future__ import annotations

from sim.lower.job import Job
from sim.lower.ops import collective
from sim.model.parts import Part
from sim.program import COMPUTE, Op

CLS = "comm.ep"


def _exchange(job: Job, id: str, size: int) -> Op:
    return collective(job, id, COMPUTE, "all_to_all", size, "ep", CLS)


def forward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """`ep.dispatch` before the part's kernels, `ep.combine` after them."""
    exchange = _exchange(job, f"{name}.all_to_all", part.seam_bytes)
    return [exchange, *kernels] if part.seam == "ep.dispatch" else [*kernels, exchange]


def backward(job: Job, name: str, part: Part, dgrad: list[Op], wgrad: list[Op]) -> tuple[list[Op], list[Op]]:
    """Gradients travel the other way round."""
    exchange = _exchange(job, f"bwd/{name}.all_to_all", part.seam_bytes)
    return ([*dgrad, exchange] if part.seam == "ep.dispatch" else [exchange, *dgrad]), wgrad
