"""The ops that a stage runs in one pass, forward or backward, block by block, without the messages of data parallelism.

With a `Shortener`, the ops of each kind of block are shortened once for all stages and plans that split and run it alike.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Literal, NamedTuple

from sim.lower import narrow
from sim.lower.accumulate import Way, accumulate
from sim.lower.job import Job
from sim.lower.short import Shortener
from sim.lower.template import BlockOps, Ops, PartOps, Template
from sim.program import LATER

Pieces = list[tuple[PartOps, Ops]]
"""(part, ops) for each run of ops, in order; the run ends with the ops of that part."""
Loose = tuple[PartOps, list[Ops]]
"""(part, its runs of ops): recomputation, casts of weights, kernels, accumulation of gradients."""


class Chunk(NamedTuple):
    """The blocks of one pipeline stage, lowered. `kind`: for each block the key of its template; blocks with equal keys run equal ops."""

    job: Job
    blocks: list[BlockOps]
    short: Shortener | None
    kind: tuple[Template, ...]


class Variant(NamedTuple):
    """One pass over a stage, and how it differs from the passes of the stage's other micro-batches."""

    base: Literal["fwd", "bwd", "wgrad"]
    """Forward, backward (whole, or of the input alone), or the gradients of weights alone."""
    input_only: bool = False
    gathers: bool = False
    """A forward that gathers parameters which later ones reuse."""
    narrows: narrow.When = ""
    """Which 8- or 4-bit copies of weights it makes (`sim.lower.narrow.When`)."""
    how: Way = ""
    """How its gradients are accumulated with those of earlier micro-batches (`sim.lower.accumulate.Way`)."""
    sync: Literal["", "sync", "sync0"] = ""
    """Gradients are sent from this pass: "sync" in the usual buckets, "sync0" in those of the first step; "": not in this pass."""
    later: bool = False
    """Not the first pass of its step, where later passes cost something else (`sim.program.LATER`)."""
    beside: bool = False
    """Parameters of the rank's other stages are gathered at the same time."""

    @property
    def name(self) -> str:
        """Name of the pass's segment, from all fields that are not the default."""
        flags = ("input" * self.input_only, "gather" * self.gathers, "narrow" * (self.narrows == "once"), self.how, self.sync)
        return ".".join([self.base, *filter(None, flags)]) + LATER * self.later + ".beside" * self.beside


def alone(chunk: Chunk, variant: Variant) -> Ops:
    """The ops of a pass while no messages of data parallelism run."""
    line = list(zip(chunk.kind, chunk.blocks, strict=True))

    def blocks() -> list[Ops]:
        return [_line(chunk, kind, block, variant, False) for kind, block in (line if variant.base == "fwd" else reversed(line))]

    short = chunk.short
    if short and not any(short.open(block.name) for block in chunk.blocks):
        return short.line((chunk.kind, variant), blocks, False)
    return tuple(op for ops in blocks() for op in ops)


def beside(chunk: Chunk, variant: Variant) -> Ops:
    """The ops of a pass while parameters of the rank's other stages are gathered."""
    pieces = forward(chunk, variant) if variant.base == "fwd" else [ops for _, ops in backward(chunk, variant)]
    return tuple(op for ops in pieces for op in ops)


def forward(chunk: Chunk, variant: Variant) -> list[Ops]:
    """The forward ops of each block, while parameters are gathered."""
    return [_line(chunk, kind, block, variant, True) for kind, block in zip(chunk.kind, chunk.blocks, strict=True)]


def backward(chunk: Chunk, variant: Variant, cuts: Collection[tuple[str, str]] = ()) -> Pieces:
    """Backward while gradients are reduced, last part first. One piece for each part; with a `Shortener` one for each block, cut further so that a piece
    ends at each (block, part) of `cuts`, where a bucket is complete."""
    ends: dict[str, set[str]] = {}
    for block_name, part_name in cuts:
        ends.setdefault(block_name, set()).add(part_name)
    found: Pieces = []
    for kind, block in reversed(list(zip(chunk.kind, chunk.blocks, strict=True))):
        cut = ends.get(block.name, set())
        if not block.parts:
            continue
        if chunk.short is None or chunk.short.open(block.name):
            found += [(part, tuple(op for ops in runs for op in ops)) for part, runs in _parts(chunk, block, variant)]
        elif cut <= {block.parts[0].part.name}:
            found.append((block.parts[0], _line(chunk, kind, block, variant, True)))
        else:
            found += _cut(chunk, block, variant, cut)
    return found


def _line(chunk: Chunk, kind: Template, block: BlockOps, variant: Variant, beside: bool) -> Ops:
    """A block's pass; `beside`: messages may run beside it."""
    make = partial(_runs, chunk, block, variant)
    short = chunk.short
    if short is None or short.open(block.name):
        return tuple(op for ops in make() for op in ops)
    return short.line((kind, variant._replace(gathers=False, sync="", later=False, beside=False)), make, beside)


def _runs(chunk: Chunk, block: BlockOps, variant: Variant) -> list[Ops]:
    if variant.base == "fwd":
        return [ops for part in block.parts for ops in (_narrowed(chunk, part, variant, block.again), part.forward)]
    return [ops for _, runs in _parts(chunk, block, variant) for ops in runs]


def _narrowed(chunk: Chunk, part: PartOps, variant: Variant, again: bool) -> Ops:
    """The ops that make a part's 8- or 4-bit weights for a pass."""
    if not part.part.narrow or not variant.narrows:
        return ()
    make = partial(narrow.made, chunk.job, part, variant.narrows, variant.base == "fwd", again)
    return chunk.short.once(part.part, f"narrow.{variant.base}.{variant.narrows}.{again}", make) if chunk.short else make()


def _cut(chunk: Chunk, block: BlockOps, variant: Variant, ends: Collection[str]) -> Pieces:
    """A block's shortened backward, cut into pieces that end at the parts named in `ends`."""
    assert chunk.short
    found: Pieces = []
    run: list[Ops] = []
    for part, runs in _parts(chunk, block, variant):
        run += [ops for ops in runs if ops]
        if part.part.name in ends or part is block.parts[0]:
            found.append((part, chunk.short.run(run, True)))
            run = []
    return found


def _parts(chunk: Chunk, block: BlockOps, variant: Variant) -> list[Loose]:
    """A block's backward part by part, last part first."""
    short = chunk.short
    found: list[Loose] = []
    again = block.prelude if variant.base == "bwd" else ()
    for part in reversed(block.parts):
        ops = part.wgrad if variant.base == "wgrad" else part.backward if variant.input_only else part.joint
        added: Ops = ()
        if not variant.input_only:
            make = partial(accumulate, chunk.job, part, variant.how)
            added = short.once(part.part, variant.how, make) if short else make()
        found.append((part, [again, _narrowed(chunk, part, variant, block.again), ops, added]))
        again = ()
    return found
