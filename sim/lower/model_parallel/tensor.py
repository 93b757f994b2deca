"""Tensor parallelism: the collectives at a part's seams.

Column-parallel parts (`tp.gather`) need their whole input, row-parallel ones (`tp.reduce`) leave partial sums
(Shoeybi et al. 2019, section 3). With sequence parallelism the all_reduce splits into an all_gather before the one and
a reduce_scatter after the other (Korthikanti et al. 2022, section 4.2.2). A synchronous collective stands on the compute
lane itself, as torch >= 2.8 runs `async_op=False`; those that run beside a GEMM are on `comm.tp`: Megatron's in backward, and with
`tp_overlap` (TransformerEngine's user buffers, async TP) also those of forward, whose GEMMs are cut into tp pieces. User buffers and symmetric
memory hold fewer SMs than NCCL's channels, most often none. What low-precision linears gather is quantised first: TransformerEngine's
all-gather buffers are fp8 (transformer_engine/pytorch/module/base.py, initialize_ub), and torchao's Float8ColwiseParallel casts before it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from sim.lower.job import Job
from sim.lower.ops import collective, compute, order
from sim.lower.template import PartOps, name_of
from sim.model.parts import Part
from sim.optimizers import OPTIMIZERS
from sim.program import COMPUTE, Op, beside
from sim.work import BYTES, Gemm, MemoryBound

LANE = "comm.tp"
CLS = "comm.tp"


def _now(job: Job, id: str, name: str, size: float) -> Op:
    return collective(job, id, COMPUTE, name, size, "tp", CLS)


def _beside(job: Job, id: str, name: str, size: float, kernels: list[Op], sms: int | None = None) -> list[Op]:
    """The collective on its own lane while `kernels` run; what comes after them waits for it. `sms`: how many SMs it holds; None: those
    of NCCL's channels."""
    if not kernels:
        return [_now(job, id, name, size)]
    if sms is not None and job.device == "cuda":
        kernels = [replace(op, how=beside(sms)) for op in kernels]
    begin, end = order(job, f"{id}.in", COMPUTE, LANE), order(job, f"{id}.out", LANE, COMPUTE)
    return [*begin, collective(job, id, LANE, name, size, "tp", CLS), *kernels, *end]


RING, PIPELINE, BULK, BULK_QKV = 0, 16, 4, 24
"""SMs that overlapped messages hold beside a product. Rings of pieces go by copy engines; sums of 16-bit partial results in forward are
pipelined by a kernel; whole messages in backward ("bulk") take 2-8 SMs, the sum beside the short product for qkv's weights 24-32. num_sm of
TransformerEngine's defaults and of NVIDIA's tables (NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/comm_overlap.py)."""


def _gathered(size: float, kernels: list[Op]) -> float:
    """Bytes that are sent of an input that has `size` bytes in 16 bits. It is sent in the dtype in which the GEMMs of `kernels` read
    it; with a scale for each row it is sent in 16 bits (torchtitan parallelize.py: float8 all_gather with tensorwise recipes alone)."""
    widths = [BYTES["bf16" if work.dtype == "rowfp8" else work.dtype] for op in kernels for work in op.works if isinstance(work, Gemm)]
    return size * min(1.0, max(widths) / BYTES["bf16"]) if widths else size


def _low(kernels: list[Op]) -> bool:
    return _gathered(1.0, kernels) < 1.0


def _overlaps(job: Job, kernels: list[Op]) -> bool:
    asked = job.plan.parallel.tp_overlap
    wanted = job.framework.tensor_parallel.overlap if asked is None else asked
    return wanted and job.plan.parallel.sequence_parallel and any(isinstance(work, Gemm) for op in kernels for work in op.works)


def _pieces(job: Job, kernels: list[Op]) -> list[Op]:
    """The same kernels with each GEMM cut by rows into tp pieces, one for each step of the ring exchange."""
    ways = job.size("tp")

    def cut(work: object) -> object:
        return replace(work, m=-(-work.m // ways), repeat=work.repeat * ways) if isinstance(work, Gemm) else work

    return [replace(op, works=tuple(map(cut, op.works))) for op in kernels]


def _gather(job: Job, id: str, size: float, kernels: list[Op]) -> list[Op]:
    """all_gather before GEMMs. Overlapped, the ring starts with the piece that is here, so nothing of it is exposed by itself."""
    size = _gathered(size, kernels)
    if _overlaps(job, kernels):
        return _beside(job, id, "all_gather", size, _pieces(job, kernels), RING)
    # One sequence's pieces are in place (torch 2.13, _utils.py: _maybe_view_chunk_cat).
    several = job.plan.batch.micro > 1 or job.framework.tensor_parallel.copies_one
    copies = _side_by_side(job, id, size, kernels[:1], 0) if several else []
    return [_now(job, id, "all_gather", size), *copies, *kernels]


def _scatter(job: Job, id: str, size: float, kernels: list[Op]) -> list[Op]:
    """The reduce_scatter of all that `kernels` made, in one message. DTensor first copies its pieces together, rank by rank
    (_chunk_or_narrow_cat)."""
    return [*_side_by_side(job, id, size, kernels[-1:], -1), _now(job, id, "reduce_scatter", size)]


def _side_by_side(job: Job, id: str, size: float, beside: list[Op], at: int) -> list[Op]:
    """The copy that DTensor makes for a collective, since it splits sequences along the second dimension and NCCL along the first. A
    compiler has the kernel that makes or reads the tensor (the `at`-th of each op in `beside`) do so, unless that is a GEMM. Empty
    without such a copy."""
    if job.framework.tensor_parallel.style != "dtensor":
        return []
    if job.framework.compile and any(isinstance(op.works[at], MemoryBound) for op in beside):
        return []
    return [compute(job, f"{id}.copy", (MemoryBound("copy", round(size), round(size), job.act),), CLS)]


def _reduce(job: Job, id: str, name: str, size: float, kernels: list[Op]) -> list[Op]:
    """all_reduce or reduce_scatter after GEMMs. Overlapped, the last of tp pieces travels when all GEMMs have ended."""
    if name != "reduce_scatter":
        return [*kernels, _now(job, id, name, size)]
    if not _overlaps(job, kernels):
        return [*kernels, *_scatter(job, id, size, kernels)]
    tail = size / job.size("tp")
    sms = RING if _low(kernels) or job.framework.tensor_parallel.style == "dtensor" else PIPELINE
    return [*_beside(job, id, name, size - tail, _pieces(job, kernels), sms), _now(job, f"{id}.tail", name, tail)]


def forward(job: Job, name: str, part: Part, kernels: list[Op]) -> list[Op]:
    """Collectives around a part's forward kernels. `name` is the op id of the kernels."""
    size, split = part.seam_bytes, job.plan.parallel.sequence_parallel
    if part.seam in ("tp.gather", "tp.spread", "tp.copy"):
        return _gather(job, f"{name}.all_gather", size, kernels) if split and part.seam != "tp.copy" else kernels
    if part.seam == "tp.columns":  # of all tokens: with sequence parallelism each rank keeps its own of them
        return [
            _now(job, f"{name}.all_gather", "all_gather", size),
            *_side_by_side(job, f"{name}.all_gather", size, kernels[:1], 0),
            *kernels,
        ]
    if part.seam == "tp.sum":
        return [*kernels, _now(job, f"{name}.all_reduce", "all_reduce", size)]
    if part.seam == "tp.loss":  # maximum, predicted logit and sum of exponentials, one number a row each
        return [*kernels, *(_now(job, f"{name}.{what}", "all_reduce", size / 3) for what in ("max", "target", "sum"))]
    reduce = "reduce_scatter" if split else "all_reduce"
    return _reduce(job, f"{name}.{reduce}", reduce, size, kernels)


def backward(job: Job, name: str, part: Part, dgrad: list[Op], wgrad: list[Op]) -> tuple[list[Op], list[Op], list[Op]]:
    """(input's gradient, weights' gradients, both in one pass)."""
    size, split = part.seam_bytes, job.plan.parallel.sequence_parallel
    if part.seam == "tp.gather":
        if job.framework.tensor_parallel.style == "megatron":
            return _column(job, name, size, split, dgrad, wgrad)
        linears = sum(isinstance(work, Gemm) for work in part.backward) if job.framework.tensor_parallel.style == "sync" else 1
        return _column_in_turn(job, name, size, split, dgrad, wgrad, max(1, linears))
    if part.seam == "tp.copy":
        return _column_in_turn(job, name, size, False, dgrad, wgrad, 1)
    if split and part.seam in ("tp.reduce", "tp.columns", "tp.embedding"):
        dgrad = _gather(job, f"bwd/{name}.all_gather", size, dgrad)
    return dgrad, wgrad, dgrad + wgrad


def _column(job: Job, name: str, size: int, split: bool, dgrad: list[Op], wgrad: list[Op]) -> tuple[list[Op], list[Op], list[Op]]:
    """Megatron's linear: the input is gathered again beside dgrad, dgrad's sum travels beside wgrad
    (`LinearWithGradAccumulationAndAsyncCommunication`)."""
    reduce = "reduce_scatter" if split else "all_reduce"
    again, total = f"wgrad/{name}.all_gather", f"bwd/{name}.{reduce}"
    regather = split and bool(wgrad)
    wide = _gathered(size, dgrad)
    alone = [*dgrad, _now(job, total, reduce, size)]
    weights = [_now(job, again, "all_gather", wide), *wgrad] if regather else wgrad
    # Only what TransformerEngine runs has user buffers: the head is Megatron's own linear, whose messages are NCCL's.
    buffers = _overlaps(job, dgrad) and "head." not in name
    first = _beside(job, again, "all_gather", wide, dgrad, BULK if buffers else None) if regather else dgrad
    sms = BULK_QKV if name.endswith("attn.qkv") else BULK
    return alone, weights, [*first, *_beside(job, total, reduce, size, wgrad, sms if buffers else None)]


def _column_in_turn(
    job: Job, name: str, size: int, split: bool, dgrad: list[Op], wgrad: list[Op], linears: int
) -> tuple[list[Op], list[Op], list[Op]]:
    """DTensor's and early Megatron's: the gathered input was kept, the gradient's sum follows both GEMMs. DTensor gathers an input once for
    all its linears and sums their gradients together; without it each of `linears` sums what it hands back."""
    reduce = "reduce_scatter" if split else "all_reduce"
    ids = [f"bwd/{name}.{reduce}{turn or ''}" for turn in range(linears)]
    sums = [op for id in ids for op in (_scatter(job, id, size, dgrad) if split else [_now(job, id, reduce, size)])]
    return [*dgrad, *sums], wgrad, [*dgrad, *wgrad, *sums]


def whole_gradients(job: Job, parts: Iterable[PartOps], sharded: bool = False) -> list[Op]:
    """Sums over tp of the gradients of parameters that are whole on each rank (`Part.whole`).

    Megatron: all in one message (finalize_model_grads). DTensor: each by itself; FSDP sums a `Partial` gradient once, an optimizer without
    it at each use.
    """
    if job.size("tp") == 1 or not job.plan.parallel.sequence_parallel:
        return []
    mine = [part for part in parts if part.part.whole and not part.part.frozen]
    if job.framework.tensor_parallel.style != "dtensor":
        total = sum(sum(part.part.whole) for part in mine)
        return [_now(job, "grad/whole.all_reduce", "all_reduce", total * job.grad_bytes)] if total else []
    uses = 1 if sharded or job.framework.optimizer.implementation == "fused" else OPTIMIZERS[job.plan.optimizer.name].gradient_reads
    found = []
    for part in mine:
        tensors = part.part.whole
        for index, elements in enumerate(tensors):
            for use in range(uses):
                suffix = "".join([f".{index}" if len(tensors) > 1 else "", f".use{use}" if uses > 1 else ""])
                found.append(
                    _now(job, f"grad/{name_of(part.block, part.part)}{suffix}.all_reduce", "all_reduce", elements * job.grad_bytes)
                )
    return found
