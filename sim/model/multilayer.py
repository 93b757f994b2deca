"""A plain MLP: linears with an activation between, on a batch of vectors."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.layers.activation import activation
from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.parts import Block, Part, Shape
from sim.model.share import Share, share_of
from sim.model.specs.spec import Mlp
from sim.work import MemoryBound


def blocks_of(spec: Mlp, shape: Shape, framework: Framework) -> tuple[tuple[str, Block], ...]:
    """L0 ... L(n-1), head (the loss). One sample is one row; tp and cp are refused."""
    data_parallel_only(spec.name or "mlp", "an MLP", shape)
    share = share_of(replace(shape, seq=1), framework)
    made: dict[tuple[int, int, bool], Block] = {}
    blocks = []
    widths = spec.widths
    for index, (k, n) in enumerate(pairwise(widths)):
        last = index == len(widths) - 2
        if (k, n, last) not in made:
            made[k, n, last] = _layer(spec, share, k, n, last)
        blocks.append((f"L{index}", made[k, n, last]))
    head = Block(kind="head", parts=(_loss(spec, share),), saved_input=share.rows * widths[-1] * share.e)
    return (*blocks, ("head", head))


def _layer(spec: Mlp, share: Share, k: int, n: int, last: bool) -> Block:
    parts: list[Part] = [linear(share, "linear", k, n, bias=spec.bias)]
    if not last:
        parts.append(activation(share, "act", share.rows, n, spec.activation, reread=not share.fp8))
    return Block(kind="layer", parts=tuple(parts), saved_input=share.rows * k * share.e)


def _loss(spec: Mlp, share: Share) -> Part:
    rows, width, e = share.rows, spec.widths[-1], share.e
    if spec.loss == "mse":
        forward = (elementwise("reduce", share, rows * width, 2 * e, 0, 3.0),)
        backward = (elementwise("scale", share, rows * width, 2 * e, e, 2.0),)
        return Part(name="loss", forward=forward, backward=backward, cls="loss", saved=2 * rows * width * e)
    soft = MemoryBound("softmax", rows * width * e, rows * width * e, share.act, 5.0 * rows * width, 1, rows)
    row = MemoryBound("reduce", rows * e, rows * e, share.act, 1.0, 1, rows)
    return Part(name="loss", forward=(soft, row), backward=(row, soft), cls="loss", saved=rows * width * e + 8 * rows)
