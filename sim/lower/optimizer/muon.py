"""Muon (Jordan 2024): a matrix is updated by its momentum, made orthogonal in five Newton-Schulz iterations.

The kernels are those of torch/optim/_muon.py, matrix by matrix: momentum and its look-ahead; the cast to bf16, the norm and the division by
it; five times the Gram matrix X X^T, b A + c A A and a X + B X on the shorter side (2 short^2 long + short^3 multiply-adds each); decay and
update. AdamW updates all parameters that are not matrices of layers.

It takes whole matrices. zero = 0: every rank orthogonalizes all of its own. zero = 1: each rank owns whole ones, gradients are summed everywhere
and updated parameters broadcast (Megatron-Core's layer_wise_optimizer.py). zero = 2 and 3: momenta in bf16 go to their matrix's owner and the
orthogonal ones come back by all_to_all (microsoft/dion, muon.py). Pieces that tensor parallelism makes are matrices of their own (Megatron-Core's
`muon_tp_mode = "blockwise"`), fused projections are one.
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.lower.job import Job
from sim.lower.ops import collective, compute
from sim.lower.optimizer.owned import Matrix, Share, state_dtype, state_width
from sim.lower.optimizer.passes import over_one
from sim.model.parts import Part
from sim.optimizers import Passes
from sim.program import COMPUTE, Op
from sim.work import Gemm, MemoryBound, Work

CLS = "optimizer"
BESIDE = "adamw"
"""The optimizer that updates all other parameters."""
ITERATIONS = 5
_MOMENTUM: Passes = (("add_", 2, 1), ("add", 2, 1))
"""lerp into the momentum, lerp of the gradient towards it (Nesterov)."""
_DTYPE, _WIDTH = "bf16", 2


def orthogonalized(job: Job, share: Share) -> list[Op]:
    """From gradients to updated matrices, as one recipe."""
    if job.zero < 2:
        works = [work for matrix, count in share.matrices.items() for _ in range(count) for work in _whole(job, matrix)]
        return [compute(job, "optimizer/muon", tuple(works), CLS)] if works else []
    if not share.pieces:
        return []
    size = sum(share.pieces.values())
    inner = [work for matrix, count in share.matrices.items() for _ in range(count) for work in newton_schulz(matrix)]
    there, back = (
        [
            collective(job, f"optimizer/muon.{axis}.{way}", COMPUTE, "all_to_all", n * _WIDTH, axis, "comm.fsdp")
            for axis, n in share.pieces.items()
            if job.size(axis) > 1
        ]
        for way in ("gather", "scatter")
    )  # fmt: skip
    return [
        compute(job, "optimizer/muon.momentum", (*_passes(job, size, _MOMENTUM), *_cast(job, size)), CLS),
        *there,
        compute(job, "optimizer/muon", tuple(inner), CLS),
        *back,
        compute(job, "optimizer/muon.update", tuple(_applied(job, size)), CLS),
    ]


def _whole(job: Job, matrix: Matrix) -> list[Work]:
    """All kernels of one matrix."""
    size = matrix[0] * matrix[1]
    return [*_passes(job, size, _MOMENTUM), *_cast(job, size), *newton_schulz(matrix), *_applied(job, size)]


def newton_schulz(matrix: Matrix) -> list[Work]:
    """The kernels that divide a bf16 matrix by its norm and run the iterations. addmm first copies its addend into the result."""
    (short, long), size = sorted(matrix), matrix[0] * matrix[1]
    square = short * short

    def copy(elements: int) -> Work:
        return MemoryBound("copy", elements * _WIDTH, elements * _WIDTH, _DTYPE)

    def add(columns: int) -> Work:
        return Gemm(short, columns, short, _DTYPE, 1, "dgrad", True, 1, _DTYPE)

    norm: list[Work] = [MemoryBound("norm", size * _WIDTH, 0, _DTYPE), MemoryBound("scale_", size * _WIDTH, size * _WIDTH, _DTYPE)]
    once = [Gemm(short, short, long, _DTYPE), copy(square), add(short), copy(size), add(long)]
    return norm + once * ITERATIONS


def workspace(parts: Iterable[Part]) -> float:
    """Bytes that the costliest matrix takes while it is made orthogonal: the fp32 momentum looked ahead, X before and after an iteration, and
    both squares."""
    return max((4 * a * b + 2 * _WIDTH * (a * b + min(a, b) ** 2) for part in parts for a, b in part.matrices), default=0)


def _applied(job: Job, size: int) -> list[Work]:
    """Decay, then the parameter minus the bf16 update."""
    width, dtype = state_width(job), state_dtype(job)
    return [*_passes(job, size, (("scale_", 1, 1),)), MemoryBound("add_", int(size * (width + _WIDTH)), int(size * width), dtype)]


def _cast(job: Job, size: int) -> list[Work]:
    """The cast to bf16; none where the state is bf16 already."""
    return [] if state_dtype(job) == _DTYPE else [MemoryBound("cast", int(size * state_width(job)), size * _WIDTH, state_dtype(job))]


def _passes(job: Job, size: int, passes: Passes) -> list[Work]:
    return over_one(size, passes, state_width(job), state_dtype(job))
