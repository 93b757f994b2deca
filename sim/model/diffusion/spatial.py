"""Transformers on a feature map: its places are tokens that attend to each other and to a text (Rombach et al. 2021, section 3.3).

Kernels as diffusers runs them (models/transformers/transformer_2d.py; models/attention.py, BasicTransformerBlock). The residual stream has 16
bits under autocast, as the products around it have; what norms return has 32.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from sim.model.layers.attention import core
from sim.model.layers.elementwise import elementwise, residual
from sim.model.layers.grouped_query import grouped_query
from sim.model.layers.heads import split_heads
from sim.model.layers.linear import linear
from sim.model.layers.lora import beside_frozen, reread
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.parts import Part
from sim.model.pictures.maps import cast_in, divided, group_norm, join, wide, widened
from sim.model.pictures.vision import Map, convolution
from sim.model.share import Share
from sim.model.specs.lora import Lora


class Text(NamedTuple):
    """What the places of a map attend to; its encoder is not trained."""

    tokens: int
    width: int


def transformer(
    share: Share, rows: Share, x: Map, heads: int, layers: int, text: Text, by_linear: bool, lora: Lora | None = None
) -> list[Part]:
    """Norm, projection, `layers` layers, projection, and the map added. `rows`: the share whose tokens are the places of `x`; `lora`: layers are
    frozen and have adapters."""
    n, c = share.micro * x.size, x.channels
    inside = [part for at in range(layers) for part in _layer(rows, f"t{at}", c, heads, text, lora, first=not at)]
    end = join(share, "join", n, share.e)
    if by_linear:
        into, out = (linear(rows, name, c, c, bias=True, stream=name == "in") for name in ("in", "out"))
        return [
            group_norm(share, "norm", x),
            _turned(share, "tokens", n, wide(share)),
            into,
            *inside,
            out,
            _turned(share, "map", n, share.e),
            end,
        ]
    first, last = (convolution(share, name, x, c, 1, bias=True)[0] for name in ("in", "out"))
    begin = [group_norm(share, "norm", x), *cast_in(share, "cast", n), first, _turned(share, "tokens", n, share.e)]
    return [*begin, *inside, _turned(share, "map", n, share.e), last, end]


def _turned(share: Share, name: str, n: int, e: int) -> Part:
    """Channels and places change their order: the copy that reshape or contiguous() makes of a map in torch's own layout."""
    turn = elementwise("permute", share, n, e, e)
    return Part(name=name, forward=(turn,), backward=(turn,), cls="elementwise", modules=0)


def _normed(rows: Share, name: str, width: int, first: bool, frozen: bool) -> Part:
    part = norm(rows, name, rows.rows, width, "layernorm", after_residual=not first, es=wide(rows), modules=2, frozen=frozen)
    return widened(rows, part, rows.rows * width)


def _layer(rows: Share, name: str, width: int, heads: int, text: Text, lora: Lora | None, first: bool) -> list[Part]:
    """Attention among the places, attention to the text, an MLP gated by GELU, each after a norm and added."""
    narrow, n = replace(rows, es=rows.e), rows.rows * width
    own = grouped_query(
        rows, width, heads, heads, width // heads, qkv_bias=False, proj_bias=True, fused=False, causal=False, reread=reread(lora, rows)
    )
    ways = (
        ("self", [*own, *divided(rows, "self.rescale", n)]),
        ("cross", [*_cross(rows, width, heads, text, lora), *divided(rows, "cross.rescale", n)]),
        ("mlp", mlp(rows, width, 4 * width, "geglu", bias=True)),
    )
    found: list[Part] = []
    for at, (way, parts) in enumerate(ways):
        join_ = residual(narrow, f"{way}.residual", rows.rows, width, dropout=False)
        made = parts if lora is None else beside_frozen(parts, lora, rows)
        found += [_normed(rows, f"{way}.norm", width, first and not at, lora is not None), *made, join_]
    return [replace(part, name=f"{name}.{part.name}") for part in found]


def _cross(rows: Share, width: int, heads: int, text: Text, lora: Lora | None) -> list[Part]:
    """Queries of the places on keys and values of the text, which needs no gradient."""
    b = rows.micro
    local = split_heads(rows, heads, heads, width // heads)
    keys = linear(rows, "cross.kv", text.width, (width, width), rows=b * text.tokens)
    kept = b * text.tokens * text.width * rows.e
    return [
        linear(rows, "cross.q", width, width, stream=True, modules=2),
        replace(keys, backward=(), saved=kept),
        core(rows, local, causal=False, kv_seq=text.tokens, reread=reread(lora, rows), name="cross.core"),
        linear(rows, "cross.proj", width, width, bias=True),
    ]
