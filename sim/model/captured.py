"""A model that was captured from a running `torch.nn.Module` (`executor.capture`): kernels read from a file, not described.

The file holds the kernels at two batch sizes; every size in them is a straight line in the batch, so any micro-batch follows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sim.model.parts import Block, Part, Shape
from sim.work import Attention, Conv, Gemm, GroupedGemm, Work
from topologies.errors import BadInput, Refused

Blocks = tuple[tuple[str, Block], ...]


class Captured(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="family", tag="captured"
):
    """`low` and `high`: the kinds of blocks at `micro` and at 2 x `micro` samples; `order`: (name, kind) first to last."""

    name: str = ""
    precision: str = "fp32"
    micro: int = 1
    order: tuple[tuple[str, int], ...]
    low: tuple[Block, ...]
    high: tuple[Block, ...]
    sample_bytes: int = 0
    seq: int = 1
    """Tokens of a sample, where its input is token ids; 1 for images and vectors."""

    @property
    def unit(self) -> str:
        """What one sample is."""
        return "sequences" if self.seq > 1 else "samples"

    def input_bytes(self, seq: int) -> int:
        """Bytes of one sample on its way to the device, as captured."""
        return self.sample_bytes


def blocks_of(spec: Captured, shape: Shape) -> Blocks:
    """The blocks at `shape.micro`. Raises `Refused` for splits that need a description, or another precision than captured."""
    if shape.tp * shape.cp * shape.ep > 1:
        raise Refused(f"{spec.name}: a captured model is split by data or pipeline parallelism only; set tp = cp = ep = 1")
    same = shape.precision == spec.precision or {shape.precision, spec.precision} == {"fp32", "tf32"}
    if not same:
        raise Refused(
            f"{spec.name} was captured in {spec.precision}, the plan wants {shape.precision}. "
            f'Capture it again with --precision {shape.precision}, or set precision = "{spec.precision}"'
        )
    if spec.seq > 1 and shape.seq not in (1, spec.seq):
        raise Refused(f"{spec.name} was captured at seq_len = {spec.seq}, the plan wants {shape.seq}. Capture it again with such an input")
    made = [_block(spec, low, high, shape) for low, high in zip(spec.low, spec.high, strict=True)]
    return tuple((name, made[kind]) for name, kind in spec.order)


def boundary(blocks: Blocks) -> int:
    """What one stage of a pipeline sends to the next: the largest input of a layer. The first layer's may be the model's own."""
    inputs = [block.saved_input for _, block in blocks if block.kind == "layer"]
    return max(inputs[1:] or inputs, default=0)


def _block(spec: Captured, low: Block, high: Block, shape: Shape) -> Block:
    if len(low.parts) != len(high.parts):
        raise BadInput(f"{spec.name}: its kernels differ between the two captured batch sizes; capture it again with another batch")
    parts = tuple(_part(spec, a, b, shape) for a, b in zip(low.parts, high.parts, strict=True))
    return Block(kind=low.kind, parts=parts, saved_input=_line(low.saved_input, high.saved_input, spec.micro, shape.micro))


def _part(spec: Captured, low: Part, high: Part, shape: Shape) -> Part:
    works: dict[str, Any] = {}
    for field in ("forward", "backward", "wgrad"):
        a, b = getattr(low, field), getattr(high, field)
        if len(a) != len(b):
            raise BadInput(f"{spec.name}: {low.name} has other kernels at twice the batch; capture it again with another batch")
        works[field] = tuple(_work(x, y, spec.micro, shape) for x, y in zip(a, b, strict=True))
    bytes_ = {field: _line(getattr(low, field), getattr(high, field), spec.micro, shape.micro) for field in ("saved", "working", "ahead")}
    return msgspec.structs.replace(low, **bytes_, **works)


def _work(low: Work, high: Work, micro: int, shape: Shape) -> Work:
    """Each whole number of the kernel on its line through both captures."""
    changes: dict[str, Any] = {}
    for field in low.__struct_fields__:
        a, b = getattr(low, field), getattr(high, field)
        if a != b and isinstance(a, int):
            changes[field] = _line(a, b, micro, shape.micro)
        elif a != b and isinstance(a, float):
            changes[field] = a + (b - a) * (shape.micro - micro) / micro
    if isinstance(low, (Gemm, GroupedGemm, Conv, Attention)) and {shape.precision, low.dtype} == {"tf32", "fp32"}:
        changes["dtype"] = shape.precision
    return msgspec.structs.replace(low, **changes) if changes else low


def _line(low: int, high: int, micro: int, wanted: int) -> int:
    return low + (high - low) * (wanted - micro) // micro
