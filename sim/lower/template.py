"""Blocks lowered to ops. Each kind of layer is lowered once, as a template; all layers of the kind get its ops under their own names."""

from __future__ import annotations

from typing import NamedTuple

from sim.model.parts import Block, Part
from sim.program import Op

Ops = tuple[Op, ...]


def name_of(block: str, part: Part) -> str:
    """`L5.attn.qkv`; parts of the ends already carry their block's name."""
    return part.name if part.name.startswith(f"{block}.") else f"{block}.{part.name}"


class PartOps(NamedTuple):
    """One part of one block, lowered."""

    block: str
    part: Part
    forward: Ops
    backward: Ops
    """Gradient of the input."""
    wgrad: Ops
    """Gradients of the weights."""
    joint: Ops
    """Both in one pass, with the communication of one beside the other's kernels."""


class BlockOps(NamedTuple):
    """One block, lowered. Backward runs over the parts in reverse, after `prelude`."""

    name: str
    block: Block
    parts: tuple[PartOps, ...]
    prelude: Ops = ()
    """Ops before the first op of backward: recomputation, activations brought back."""
    again: bool = False
    """Backward runs all of its forward again."""

    @property
    def forward(self) -> list[Op]:
        return [op for part in self.parts for op in part.forward]


TEMPLATE = "~"
"""Name of a block that stands for all layers of its kind until they are `renamed`."""
Template = tuple[int, bool, bool, str]
"""A kind of block: (id() of the block, whether it is recomputed, whether it is the network's first, its own name; "" for layers, which share one)."""
Templates = dict[Template, BlockOps]


def renamed(template: BlockOps, name: str) -> BlockOps:
    """The ops of a template under a layer's own name. Much cheaper than lowering equal layers one by one."""
    made: dict[int, Op] = {}

    def ops(line: Ops) -> Ops:
        found = []
        for op in line:
            new = made.get(id(op))
            if new is None:
                id_, event = op.id.replace(TEMPLATE, name, 1), op.event.replace(TEMPLATE, name, 1)
                new = made[id(op)] = Op(
                    id_, op.kind, op.lane, op.works, op.name, op.bytes, op.group, op.peer, event, op.shift, op.cls, op.blocking, op.how,
                    op.alloc, op.free,
                )  # fmt: skip
            found.append(new)
        return tuple(found)

    parts = [PartOps(name, p.part, ops(p.forward), ops(p.backward), ops(p.wgrad), ops(p.joint)) for p in template.parts]
    return BlockOps(name, template.block, tuple(parts), ops(template.prelude), template.again)
