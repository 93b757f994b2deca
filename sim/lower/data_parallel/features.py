"""Features of all ranks' samples, which a contrastive loss compares: gathered before it, their gradients summed after.

open_clip's gather_features with gather_with_grad (src/open_clip/loss.py): torch.distributed.nn.functional.all_gather for either kind of features,
whose backward is a reduce_scatter; each is waited for.
"""

from __future__ import annotations

from sim.lower.job import Job
from sim.lower.ops import collective
from sim.model.parts import Part
from sim.program import COMPUTE, Op

CLS = "comm.features"
_KINDS = ("pictures", "texts")


def forward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """Both kinds are gathered, then joined by `kernels`."""
    return [*_each(job, name, "all_gather", part.seam_bytes), *kernels]


def backward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """Both kinds' gradients are laid out by `kernels`, then summed where the samples are."""
    return [*kernels, *_each(job, f"bwd/{name}", "reduce_scatter", part.seam_bytes)]


def _each(job: Job, name: str, what: str, size: int) -> list[Op]:
    return [collective(job, f"{name}.{kind}.{what}", COMPUTE, what, size, "dp", CLS) for kind in _KINDS]
