"""A model that was captured from a running `torch.nn.Module` (`executor.recording.capture`): kernels read from a file, not described.

The file holds the kernels at two batch sizes. Nearly every size in them is a straight line in the batch, so any micro-batch follows; where some
are not (a loss over all pairs of a batch, as CLIP's), those at a third batch size bend the line into a parabola.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sim.model.check import data_parallel_only
from sim.model.parts import Block, Part, Shape
from sim.work import Attention, Conv, Gemm, GroupedGemm, Work
from topologies.errors import BadInput, Refused

Blocks = tuple[tuple[str, Block], ...]


class Captured(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="family", tag="captured"
):
    """`low`, `high`, `third`: the kinds of blocks at `micro`, 2 x `micro` and, where those make no line, 3 x `micro` samples; `order`: (name,
    kind) first to last."""

    name: str = ""
    precision: str = "fp32"
    micro: int = 1
    order: tuple[tuple[str, int], ...]
    low: tuple[Block, ...]
    high: tuple[Block, ...]
    third: tuple[Block, ...] = ()
    unseen: tuple[str, ...] = ()
    """Ops whose arithmetic nobody tells (custom kernels, factorisations): they count by the bytes that they move."""
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
    data_parallel_only(spec.name, "a captured model", shape)
    same = shape.precision == spec.precision or {shape.precision, spec.precision} == {"fp32", "tf32"}
    if not same:
        raise Refused(
            f"{spec.name} was captured in {spec.precision}, the plan wants {shape.precision}. "
            f'Capture it again with --precision {shape.precision}, or set precision = "{spec.precision}"'
        )
    if spec.seq > 1 and shape.seq not in (1, spec.seq):
        raise Refused(f"{spec.name} was captured at seq_len = {spec.seq}, the plan wants {shape.seq}. Capture it again with such an input")
    return tuple((name, _kind(spec, kind, shape)) for name, kind in spec.order)


def _kind(spec: Captured, kind: int, shape: Shape) -> Block:
    return _block(spec, [blocks[kind] for blocks in (spec.low, spec.high, spec.third) if blocks], shape)


def boundary(blocks: Blocks) -> int:
    """What one stage of a pipeline sends to the next: the largest input of a layer. The first layer's may be the model's own."""
    inputs = [block.saved_input for _, block in blocks if block.kind == "layer"]
    return max(inputs[1:] or inputs, default=0)


def check_alike(name: str, micro: int, passes: list[list[Block]]) -> None:
    """Raises `BadInput` where the passes, at `micro`, 2 x `micro` ... samples, ran other kernels: the module decides by the size of its batch."""
    first = [_kernels(block) for block in passes[0]]
    for times, blocks in enumerate(passes[1:], 2):
        if [_kernels(block) for block in blocks] != first:
            raise BadInput(
                f"{name}: it runs other kernels with {times * micro} samples than with {micro}: it decides by the size of its batch. "
                "Capture it with another batch, on one side of that limit"
            )


def _kernels(block: Block) -> list[tuple[str, ...]]:
    """The block's parts and the types of their kernels."""
    return [(p.name, *(type(work).__name__ for work in (*p.forward, *p.backward, *p.wgrad))) for p in block.parts]


def bent(low: list[Block], high: list[Block], third: list[Block]) -> bool:
    """Do kernels, or what is kept for backward, lie beside the line through the first two? (Most bytes alive at one moment may have a kink
    without that: another moment becomes the fullest.)"""
    for blocks in zip(low, high, third, strict=True):
        for parts in zip(*(block.parts for block in blocks), strict=True):
            works = zip(*((*p.forward, *p.backward, *p.wgrad) for p in parts), strict=True)
            sizes = [[getattr(work, field) for work in kernels] for kernels in works for field in kernels[0].__struct_fields__]
            if any(_beside(*size) for size in [*sizes, [part.saved for part in parts]] if isinstance(size[0], (int, float))):
                return True
    return False


_STRAIGHT = 1e-3
"""Share of a size by which rounding may put it beside the line."""


def _beside(low: float, high: float, third: float) -> bool:
    return abs(third - (2 * high - low)) > _STRAIGHT * abs(third)


def _block(spec: Captured, seen: list[Block], shape: Shape) -> Block:
    """The block at `shape.micro`, of those `seen` in two or three captures."""
    if len({len(block.parts) for block in seen}) > 1:
        raise BadInput(f"{spec.name}: its kernels differ between the captured batch sizes; capture it again with another batch")
    parts = tuple(_part(spec, list(parts), shape) for parts in zip(*(block.parts for block in seen), strict=True))
    return Block(kind=seen[0].kind, parts=parts, saved_input=_line([block.saved_input for block in seen], spec.micro, shape.micro))


def _part(spec: Captured, seen: list[Part], shape: Shape) -> Part:
    works: dict[str, Any] = {}
    for field in ("forward", "backward", "wgrad"):
        kernels = [getattr(part, field) for part in seen]
        if len({len(one) for one in kernels}) > 1:
            raise BadInput(f"{spec.name}: {seen[0].name} has other kernels at another batch; capture it again with another batch")
        works[field] = tuple(_work(list(one), spec.micro, shape) for one in zip(*kernels, strict=True))
    bytes_ = {field: _line([getattr(part, field) for part in seen], spec.micro, shape.micro) for field in ("saved", "working", "ahead")}
    return msgspec.structs.replace(seen[0], **bytes_, **works)


def _work(seen: list[Work], micro: int, shape: Shape) -> Work:
    """Each number of the kernel on its line, or parabola, through all captures."""
    changes: dict[str, Any] = {}
    for field in seen[0].__struct_fields__:
        values = [getattr(work, field) for work in seen]
        if values[0] != values[1] and isinstance(values[0], (int, float)):
            found = _line(values, micro, shape.micro)
            changes[field] = found if isinstance(values[0], int) else float(found)
    first = seen[0]
    if isinstance(first, (Gemm, GroupedGemm, Conv, Attention)) and {shape.precision, first.dtype} == {"tf32", "fp32"}:
        changes["dtype"] = shape.precision
    return msgspec.structs.replace(first, **changes) if changes else first


def _line(seen: list[int], micro: int, wanted: int) -> int:
    """The value at `wanted` samples of the line through two values at `micro` and 2 x `micro`, or of the parabola through a third at
    3 x `micro` where it lies beside that line (Newton's form of the interpolation)."""
    low, high = seen[:2]
    found = low + (high - low) * (wanted - micro) // micro
    if len(seen) == 3 and _beside(low, high, seen[2]):
        found += (seen[2] - 2 * high + low) * (wanted - micro) * (wanted - 2 * micro) // (2 * micro * micro)
    return max(found, 0)
