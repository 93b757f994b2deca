"""Expert parallelism: tokens travel to their experts and back (GShard, Lepikhin et al. 2020), mirrored in backward."""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.job import Job
from sim.lower.ops import collective, read_back
from sim.model.parts import Part
from sim.program import COMPUTE, Op
from sim.routing import once

CLS = "comm.ep"


def _exchange(job: Job, id: str, part: Part) -> Op:
    found = collective(job, id, COMPUTE, "all_to_all", part.seam_bytes, "ep", CLS)
    return replace(found, how=once(part.copies)) if part.copies else found


def _weights(job: Job, id: str, part: Part) -> list[Op]:
    return [collective(job, id, COMPUTE, "all_to_all", part.seam_weights, "ep", CLS)] if part.seam_weights else []


def _counts(job: Job, id: str, part: Part) -> list[Op]:
    """The exchange of how many rows go to each expert, and on a GPU the host's read of the result, for which it waits for all queued
    compute. What Megatron's host reads is lowered with the part itself (`Part.reads`)."""
    if not part.seam_counts:
        return []
    if not job.framework.experts.stacked:
        return [collective(job, f"{id}.all_gather", COMPUTE, "all_gather", part.seam_counts, "ep", CLS)]
    exchange = collective(job, f"{id}.all_to_all", COMPUTE, "all_to_all", part.seam_counts, "ep", CLS)
    return [exchange, *read_back(job, f"{id}.read", CLS, 16 * job.size("ep"))]


def forward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """`ep.dispatch` before the part's kernels, with the tokens' counts before and their weights after the tokens; `ep.combine` after the kernels."""
    exchange = _exchange(job, f"{name}.all_to_all", part)
    weights = _weights(job, f"{name}.weights.all_to_all", part)
    counts = _counts(job, f"{name}.counts", part)
    return [*counts, exchange, *weights, *kernels] if part.seam == "ep.dispatch" else [*kernels, exchange]


def nodes(part: Part) -> int:
    """Number of autograd nodes for a part's all_to_alls. Fused exchanges count with the kernels that sort inside them."""
    return 0 if part.copies or not part.seam.startswith("ep.") else 1 + bool(part.seam_weights)


def backward(job: Job, name: str, part: Part, dgrad: list[Op], wgrad: list[Op]) -> tuple[list[Op], list[Op]]:
    """(gradient of the input with its all_to_alls, gradients of the weights). Gradients are sent the opposite way."""
    exchange = _exchange(job, f"bwd/{name}.all_to_all", part)
    weights = _weights(job, f"bwd/{name}.weights.all_to_all", part)
    return ([*dgrad, *weights, exchange] if part.seam == "ep.dispatch" else [exchange, *dgrad]), wgrad
