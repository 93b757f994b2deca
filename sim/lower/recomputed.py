"""Full recomputation of layers: what they keep, where torch's checkpoint stops, and its work on the host.

The repeated forward itself is in `sim.lower.blocks`.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.job import Job
from sim.lower.ops import host
from sim.lower.template import Ops, PartOps
from sim.model.parts import Block
from sim.work import Attention, HostWork, MemoryBound, Work

_SAVED = {
    "layernorm": 5, "layernorm_apart": 5, "batchnorm": 5, "groupnorm": 5, "rmsnorm": 3, "glu": 3, "scale": 2, "add": 0, "permute": 0, "copy": 0,
    "cast": 0, "zero": 0, "strided": 0.4,
}  # fmt: skip
"""Kernel -> number of tensors that autograd keeps for one call; 1 for kernels not listed (torch/csrc/autograd, derivatives.yaml). A
norm keeps its input, two statistics, weight and bias; a product of two activations both; sums and copies none; the five kernels of a
rotation together two cosines."""
_PRODUCT, _ATTENTION = 2, 7
"""The same for a GEMM (input and weight) and for fused attention (queries, keys, values, output, sums of exponentials, two for its
dropout)."""


def on_demand(parts: tuple[PartOps, ...], at: int, redo: Ops) -> tuple[PartOps, ...]:
    """Puts the recomputation `redo` where torch's checkpoint runs it: before the first backward kernel of part number `at`, which asks
    for a saved tensor, and after the messages that come before this kernel."""

    def before_kernels(ops: Ops) -> Ops:
        first = next((i for i, op in enumerate(ops) if op.kind == "compute"), len(ops))
        return (*ops[:first], *redo, *ops[first:])

    part = parts[at]
    return (*parts[:at], part._replace(backward=before_kernels(part.backward), joint=before_kernels(part.joint)), *parts[at + 1 :])


def early_stop(block: Block) -> int:
    """Number of parts that torch's checkpoint runs again. It stops with the last tensor that backward needs; a GEMM as the last of them
    is not run, since it saves its input before it runs (torch/utils/checkpoint.py, _StopRecomputationError)."""
    last = max((index for index, part in enumerate(block.parts) if part.saved), default=-1)
    return last if last >= 0 and block.parts[last].cls == "gemm" else last + 1


def keep_input(parts: list[PartOps], saved: int) -> tuple[PartOps, ...]:
    """Adds the block's input (`saved` bytes) to the parts, the only thing that full recomputation keeps: allocated by the first forward
    op, freed by the last backward op."""
    first = parts[0]
    if not saved or not first.forward or not first.joint:
        return tuple(parts)
    forward = (replace(first.forward[0], alloc=first.forward[0].alloc + saved), *first.forward[1:])
    last = first.joint[-1]
    freed = replace(last, free=last.free + saved)
    change = {id(last): freed}
    swapped = [tuple(change.get(id(op), op) for op in ops) for ops in (first.backward, first.wgrad, first.joint)]
    return (first._replace(forward=forward, backward=swapped[0], wgrad=swapped[1], joint=swapped[2]), *parts[1:])


def packed(job: Job, name: str, block: Block, parts: tuple[PartOps, ...]) -> tuple[PartOps, ...]:
    """Adds the host's work in forward: a placeholder for each tensor that autograd would keep."""
    spent = _hooks(job, f"fwd/{name}.packed", block, 1)
    return (parts[0]._replace(forward=(*spent, *parts[0].forward)), *parts[1:])


def unpacked(job: Job, name: str, block: Block) -> Ops:
    """The host's work in backward: those tensors are made again, and each is handed out."""
    return _hooks(job, f"recompute/{name}.packed", block, 2)


def _hooks(job: Job, id: str, block: Block, turns: int) -> Ops:
    """The host's work of torch's non-reentrant checkpoint in eager modules: a region's contexts and random state, and a Python function
    for each saved tensor. It is called once in forward (`turns` = 1), and twice in backward: when the tensor is made again and when
    backward asks for it (torch/utils/checkpoint.py, _checkpoint_hook)."""
    if not (job.eager and job.framework.early_stop) or job.compiled:
        return ()
    tensors = sum(_saved(work) for part in block.parts for work in part.forward)
    return (host(id, HostWork("checkpointed"), HostWork("packed", turns * tensors)),)


def _saved(work: Work) -> float:
    if isinstance(work, MemoryBound):
        return _SAVED.get(work.what, 1) * work.repeat
    return (_ATTENTION if isinstance(work, Attention) else _PRODUCT) * work.repeat
