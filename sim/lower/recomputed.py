"""Layers that backward runs again: what they keep, where torch's checkpoint ends, and what it spends on the host.

Beside the layer's forward, which runs twice (`sim.lower.blocks`).
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
"""Tensors that autograd keeps of one call, which are one unless said here (torch/csrc/autograd, derivatives.yaml): of a norm its input, two
statistics, weight and bias; of products of two activations both; of sums and moves none; of the five kernels of a rotation two cosines."""
_PRODUCT, _ATTENTION = 2, 7
"""The same of a product (input and weight) and of fused attention (queries, keys, values, output, sums of exponentials, two of its dropout)."""


def on_demand(parts: tuple[PartOps, ...], at: int, redo: Ops) -> tuple[PartOps, ...]:
    """`redo` as torch's checkpoint runs it: when the first kernel asks for a saved tensor, after what backward sends before."""

    def before_kernels(ops: Ops) -> Ops:
        first = next((i for i, op in enumerate(ops) if op.kind == "compute"), len(ops))
        return (*ops[:first], *redo, *ops[first:])

    part = parts[at]
    return (*parts[:at], part._replace(backward=before_kernels(part.backward), joint=before_kernels(part.joint)), *parts[at + 1 :])


def early_stop(block: Block) -> int:
    """Parts that torch's checkpoint runs again: it ends with the last tensor that backward needs, and a product hands over its input
    before it runs (torch/utils/checkpoint.py, _StopRecomputationError)."""
    last = max((index for index, part in enumerate(block.parts) if part.saved), default=-1)
    return last if last >= 0 and block.parts[last].cls == "gemm" else last + 1


def keep_input(parts: list[PartOps], saved: int) -> tuple[PartOps, ...]:
    """Full recomputation keeps the block's input alone, from its first forward op to its last backward op."""
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
    """Forward puts a note in place of each tensor that autograd would keep."""
    spent = _hooks(job, f"fwd/{name}.packed", block, 1)
    return (parts[0]._replace(forward=(*spent, *parts[0].forward)), *parts[1:])


def unpacked(job: Job, name: str, block: Block) -> Ops:
    """Backward makes those tensors again, and hands each out."""
    return _hooks(job, f"recompute/{name}.packed", block, 2)


def _hooks(job: Job, id: str, block: Block, turns: int) -> Ops:
    """torch's checkpoint without reentrance in eager modules: a region's contexts and random state, and a Python function that is called with each
    saved tensor in forward, again where it is made once more, and where backward asks for it (torch/utils/checkpoint.py, _checkpoint_hook)."""
    if not (job.eager and job.framework.early_stop) or job.compiled:
        return ()
    tensors = sum(_saved(work) for part in block.parts for work in part.forward)
    return (host(id, HostWork("checkpointed"), HostWork("packed", turns * tensors)),)


def _saved(work: Work) -> float:
    if isinstance(work, MemoryBound):
        return _SAVED.get(work.what, 1) * work.repeat
    return (_ATTENTION if isinstance(work, Attention) else _PRODUCT) * work.repeat
