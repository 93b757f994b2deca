"""Diffusion transformers (Peebles & Xie 2022), operator by operator as facebookresearch/DiT's models.py runs them."""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.diffusion.timestep import noised, squared_error, time_embedding
from sim.model.layers.attention import grouped_query
from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.parts import Block, Part, Shape
from sim.model.pictures.maps import swish
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


def _condition(spec: Dit, share: Share, name: str, count: int) -> list[Part]:
    """Swish and a linear from what conditions the picture to `count` shifts, scales and gates. Backward adds its gradient to those of other layers,
    and joins those of the `count`."""
    b, h, e = share.micro, spec.hidden, share.e
    act = swish(share, f"{name}.act", b * h)
    fork = elementwise("add", share, b * h, 2 * e, e)
    out = linear(share, name, h, count * h, rows=b, bias=True, low=False, modules=2)
    join = elementwise("copy", share, b * count * h, e, e)
    return [replace(act, backward=(*act.backward, fork)), replace(out, backward=(join, *out.backward))]


def _modulated(share: Share, name: str, width: int) -> list[Part]:
    """A norm without weights, x (1 + scale) + shift. Backward: the gradient summed over a picture's tokens (shift), times the norm's result and
    summed (scale), times 1 + scale. A compiler has all of it in the norm's kernels, and the sums in one."""
    n, es, small = share.rows * width, share.es, share.micro * width
    plain = norm(share, f"{name}.norm", share.rows, width, "layernorm", bias=False, weight=False)
    few = elementwise("add", share, small, share.e, share.e)
    scale, add = elementwise("scale", share, n, es, es), elementwise("add", share, n, es, es)
    total, product = elementwise("reduce", share, n, es, 0), elementwise("scale", share, n, 2 * es, es)
    if share.framework.compile:
        both: Work = elementwise("reduce", share, n, 2 * es, 0)
        return [plain, Part(name=f"{name}.modulate", backward=(both,), cls="elementwise", saved=n * es, modules=0)]
    works: tuple[Work, ...] = (total, product, total, scale)
    return [plain, Part(name=f"{name}.modulate", forward=(few, scale, add), backward=works, cls="elementwise", saved=n * es, modules=0)]


def _gated(share: Share, name: str, width: int) -> Part:
    """x + gate y. Backward: the gradient times the gate, and times y summed over a picture's tokens; the two gradients of x are added."""
    n, e, es = share.rows * width, share.e, share.es
    if share.framework.compile:  # the products and the add are the next norm's
        product: Work = elementwise("reduce", share, n, es + e, e)
        return Part(name=name, backward=(product,), cls="elementwise", saved=n * e, modules=0)
    cast = [elementwise("cast", share, n, es, e)] if es != e else []
    scale, times, total = (
        elementwise("scale", share, n, e, e),
        elementwise("scale", share, n, 2 * e, e),
        elementwise("reduce", share, n, e, 0),
    )
    fork = elementwise("add", share, n, 2 * es, es)
    forward: tuple[Work, ...] = (scale, elementwise("add", share, n, e + es, es))
    return Part(name=name, forward=forward, backward=(*cast, scale, times, total, fork), cls="elementwise", saved=n * e, modules=0)


def _layer(spec: Dit, share: Share) -> list[Part]:
    h = spec.hidden
    attn = grouped_query(share, h, spec.heads, spec.heads, h // spec.heads, qkv_bias=True, proj_bias=True, fused=True, causal=False)
    return [
        *_condition(spec, share, "condition", 6),
        *_modulated(share, "attn", h),
        *attn,
        _gated(share, "attn.residual", h),
        *_modulated(share, "mlp", h),
        *mlp(share, h, spec.ffn or 4 * h, "gelu", bias=True),
        _gated(share, "mlp.residual", h),
    ]


def _head(spec: Dit, share: Share) -> list[Part]:
    """The last norm, patches back to latents, and the squared error."""
    out = spec.channels * (1 + spec.learn_sigma)
    n = share.rows * spec.patch**2 * out
    permute = elementwise("permute", share, n, share.e, share.e)
    back = (permute, elementwise("copy", share, n, share.e / 2, share.e)) if spec.learn_sigma else (permute,)
    return [
        *_condition(spec, share, "condition", 2),
        *_modulated(share, "last", spec.hidden),
        linear(share, "out", spec.hidden, spec.patch**2 * out, bias=True, low=False, stream=True),
        Part(name="unpatch", forward=(permute,), backward=back, cls="elementwise", modules=0),
        squared_error(share, n // (1 + spec.learn_sigma)),
    ]
