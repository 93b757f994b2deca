"""Diffusion transformers (Peebles & Xie 2022), operator by operator as facebookresearch/DiT's models.py runs them."""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.diffusion.modulation import condition, gated, modulated
from sim.model.diffusion.timestep import noised, squared_error, time_embedding
from sim.model.layers.elementwise import elementwise
from sim.model.layers.grouped_query import grouped_query
from sim.model.layers.linear import linear
from sim.model.layers.mlp import mlp
from sim.model.parts import Block, Part, Shape
from sim.model.pictures.vision import Blocks, Map, convolution
from sim.model.share import Share, share_of
from sim.model.specs.diffusion import Dit
from sim.work import MemoryBound, Work

_WAVES = 256
"""Numbers of the time's embedding (TimestepEmbedder, frequency_embedding_size)."""


def blocks_of(spec: Dit, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed (patches, positions, time and class), L0 ..., head. Raises `Refused` for tp, cp or ep."""
    data_parallel_only(spec.name or "dit", "a diffusion transformer", shape)
    share = share_of(replace(shape, seq=spec.tokens), framework, attention)
    stream = share.rows * spec.hidden * share.es + share.micro * spec.hidden * share.e  # and what conditions all layers
    layer = Block(kind="layer", parts=tuple(_layer(spec, share)), saved_input=stream)
    head = Block(kind="head", parts=tuple(_head(spec, share)), saved_input=stream)
    return (
        ("embed", Block(kind="embed", parts=tuple(_embed(spec, share)))),
        *((f"L{i}", layer) for i in range(spec.layers)),
        ("head", head),
    )


def _embed(spec: Dit, share: Share) -> list[Part]:
    b, h, n = share.micro, spec.hidden, share.rows * spec.hidden
    latents = Map(spec.channels, spec.side, spec.side)
    patches, _ = convolution(share, "patches", latents, h, spec.patch, stride=spec.patch, padding=0, bias=True, first=True)
    positions = elementwise("add", share, n, share.e, share.es)
    back = (elementwise("cast", share, n, share.es, share.e),) if share.es != share.e else ()
    rows = spec.classes + (spec.label_dropout > 0)
    pick: Work = MemoryBound("embedding", b * h * share.es, b * h * share.es, share.act)
    grad: tuple[Work, ...] = (
        MemoryBound("zero", 0, rows * h * share.es, share.act),
        MemoryBound("embedding_backward", b * h * share.es, 2 * b * h * share.es, share.act),
    )
    few: Work = MemoryBound("add", 8 * b, 8 * b, "fp32")
    add = elementwise("add", share, b * h, 2 * share.e, share.e)
    return [
        noised(share, b * latents.size),
        patches,
        Part(name="positions", forward=(positions,), backward=back, cls="elementwise", tensors=(spec.tokens * h,), frozen=True, modules=0),
        *time_embedding(share, _WAVES, h),
        Part(name="label", forward=(*((few,) * 3 if spec.label_dropout else ()), pick), wgrad=grad, cls="embedding", tensors=(rows * h,), saved=8 * b, modules=2),
        Part(name="condition", forward=(add,), cls="elementwise", modules=0),
    ]  # fmt: skip


def _layer(spec: Dit, share: Share) -> list[Part]:
    h = spec.hidden
    attn = grouped_query(share, h, spec.heads, spec.heads, h // spec.heads, qkv_bias=True, proj_bias=True, fused=True, causal=False)
    return [
        *condition(share, "condition", h, 6),
        *modulated(share, "attn", h),
        *attn,
        gated(share, "attn.residual", h),
        *modulated(share, "mlp", h),
        *mlp(share, h, spec.ffn or 4 * h, "gelu", bias=True),
        gated(share, "mlp.residual", h),
    ]


def _head(spec: Dit, share: Share) -> list[Part]:
    """The last norm, patches back to latents, and the squared error."""
    out = spec.channels * (1 + spec.learn_sigma)
    n = share.rows * spec.patch**2 * out
    permute = elementwise("permute", share, n, share.e, share.e)
    back = (permute, elementwise("copy", share, n, share.e / 2, share.e)) if spec.learn_sigma else (permute,)
    return [
        *condition(share, "condition", spec.hidden, 2),
        *modulated(share, "last", spec.hidden),
        linear(share, "out", spec.hidden, spec.patch**2 * out, bias=True, low=False, stream=True),
        Part(name="unpatch", forward=(permute,), backward=back, cls="elementwise", modules=0),
        squared_error(share, n // (1 + spec.learn_sigma)),
    ]
