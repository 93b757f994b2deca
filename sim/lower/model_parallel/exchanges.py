"""Experts' all_to_alls that run beside another micro-batch: which kernels cover which exchange.

A forward and a backward of two micro-batches go through a layer together (Megatron-Core, TransformerLayerSchedulePlan.run in
megatron/core/models/common/model_chunk_schedule_plan.py): while tokens of one travel, the other's kernels run. Towards the experts beside
the experts' backward, back from them beside attention's; gradients towards the experts beside attention's forward, back from them beside the
experts' forward. The first forwards and the last backwards of a step, which go alone, are taken for covered too. What a step sees of an
exchange is what its cover does not hide (`sim.cost.gpu_pricer`).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.lower.model_parallel.expert import CLS
from sim.lower.template import BlockOps, Ops, PartOps
from sim.work import Work

Works = tuple[Work, ...]


def covered(block: BlockOps) -> BlockOps:
    """The block; in each all_to_all of its experts, `works` are now the kernels of the other micro-batch that run beside it. Unchanged
    without such exchanges."""
    seams = [part.part.seam for part in block.parts]
    if "ep.dispatch" not in seams or "ep.combine" not in seams:
        return block
    there, back = seams.index("ep.dispatch"), seams.index("ep.combine")
    attention, experts = block.parts[:there], block.parts[there:]
    forward = {there: _kernels(experts, back=True), back: _kernels(attention, back=True)}
    backward = {there: _kernels(experts, back=False), back: _kernels(attention, back=False)}
    parts = list(block.parts)
    for at in (there, back):
        part = parts[at]
        parts[at] = part._replace(
            forward=_beside(part.forward, forward[at]),
            backward=_beside(part.backward, backward[at]),
            joint=_beside(part.joint, backward[at]),
        )
    return block._replace(parts=tuple(parts))


def _kernels(parts: tuple[PartOps, ...], back: bool) -> Works:
    lines = [part.joint if back else part.forward for part in parts]
    return tuple(work for ops in lines for op in ops if op.kind == "compute" for work in op.works)


def _beside(ops: Ops, works: Works) -> Ops:
    return tuple(replace(op, works=works) if op.cls == CLS else op for op in ops)
