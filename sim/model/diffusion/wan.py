"""Wan 2.1's video transformer, operator by operator as diffusers' WanTransformer3DModel runs it (models/transformers/transformer_wan.py; parameters as in
Wan-Video/Wan2.1, wan/modules/model.py).

The residual stream has 16 bits, also under autocast; norms, what shifts and scales them, and gates are fp32, as casts around them make them.
Context parallelism gives each rank a part of the patches, of all frames in their order; the text is whole on each, so that attention to it needs no
message (wan/distributed/xdit_context_parallel.py: usp_attn_forward). Patches that do not divide are padded (wan/text2video.py: seq_len).
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.diffusion.modulation import gated, modulated
from sim.model.diffusion.timestep import noised, squared_error, time_embedding
from sim.model.layers.activation import activation
from sim.model.layers.attention import core
from sim.model.layers.elementwise import casts, elementwise, in_fp32, residual
from sim.model.layers.grouped_query import grouped_query
from sim.model.layers.heads import split_heads
from sim.model.layers.linear import linear
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.parts import Block, Part, Shape
from sim.model.pictures.maps import swish
from sim.model.pictures.vision import Blocks
from sim.model.share import Share, share_of
from sim.model.specs.diffusion import Wan
from sim.work import Work

_WAVES = 256
"""Numbers of the time's embedding (freq_dim)."""


class _Maker(NamedTuple):
    """What all blocks are made with: the patches' share of a rank, and the text's, which is whole."""

    spec: Wan
    video: Share
    text: Share

    @property
    def n(self) -> int:
        """Elements of the residual stream."""
        return self.video.rows * self.spec.hidden


def blocks_of(spec: Wan, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed, L0 ..., head. Raises `Refused` for tp or ep."""
    data_parallel_only(spec.name or "wan", "a video's transformer", shape, context=True)
    padded = -(-spec.tokens // shape.cp) * shape.cp
    video, text = (
        share_of(replace(shape, **sizes), framework, attention) for sizes in ({"seq": padded}, {"seq": spec.text, "cp": 1, "ulysses": 1})
    )
    make = _Maker(spec, replace(video, es=video.e), replace(text, es=text.e))
    stream, steered = make.n * video.e, video.micro * spec.hidden * video.e
    layer = Block(
        kind="layer", parts=tuple(_layer(make)), saved_input=stream, beside=text.rows * spec.hidden * text.e + 7 * steered
    )  # of the head too: what the time makes
    return (
        ("embed", Block(kind="embed", parts=tuple(_embed(make)))),
        *((f"L{i}", layer) for i in range(spec.layers)),
        ("head", Block(kind="head", parts=tuple(_head(make)), saved_input=stream, beside=steered)),
    )


def _embed(make: _Maker) -> list[Part]:
    """Noise mixed in, patches (a convolution whose kernel is its stride, as the product that it is), angles of all positions, time and text."""
    (spec, video, text), b, h = make, make.video.micro, make.spec.hidden
    width = spec.channels * spec.patch**2
    angles = video.seq * (h // spec.heads)
    turn = elementwise("permute", video, make.n, video.e, video.e)
    words = [
        replace(linear(text, "text.up", spec.context, h, bias=True, low=False, modules=2), backward=()),
        activation(text, "text.act", text.rows, h, "gelu"),
        linear(text, "text.down", h, h, bias=True, low=False),
    ]
    kept = text.rows * h * text.e  # once for all layers, whose keys and values are made of it
    return [
        noised(video, video.rows * width),
        replace(linear(video, "patches", width, h, bias=True, low=False), backward=(), matrices=()),
        Part(name="tokens", forward=(turn,), backward=(turn,), cls="elementwise", modules=0),
        Part(name="positions", forward=(elementwise("copy", video, angles, 4, 4),) * 4, cls="elementwise", detached=True),
        *time_embedding(video, _WAVES, h),
        swish(video, "time.project.act", b * h),
        linear(video, "time.project", h, 6 * h, rows=b, bias=True, low=False),
        *words[:-1],
        replace(words[-1], saved=words[-1].saved + kept),
    ]


def _layer(make: _Maker) -> list[Part]:
    """Attention among all patches, to the text, MLP: the first and the last shifted, scaled and gated by time and a table of the layer's own."""
    (spec, video, _), h = make, make.spec.hidden
    own = grouped_query(
        video, h, spec.heads, spec.heads, h // spec.heads, qkv_bias=True, proj_bias=True, causal=False, qk_norm=True, qk_whole=True,
        fused=False,
    )  # fmt: skip
    at = next(at for at, part in enumerate(own) if part.seam == "cp.attention" or part.cls == "attention")
    return [
        _steering(video, h, 6),
        *_modulated(video, "attn", h),
        *own[:at],
        _rotated(video, h),
        *own[at:],
        _gated(video, "attn.residual", h, wide=False),
        *in_fp32(video, "cross", make.n, lambda wide: [norm(wide, "cross.norm", video.rows, h, "layernorm")]),
        *_cross(make),
        residual(video, "cross.residual", video.rows, h, dropout=False),
        *_modulated(video, "mlp", h),
        *mlp(video, h, spec.ffn, "gelu", bias=True),
        _gated(video, "mlp.residual", h, wide=True),
    ]


def _cross(make: _Maker) -> list[Part]:
    """Queries of the patches on keys and values of the whole text, whose gradients of all layers are summed."""
    (spec, video, text), h = make, make.spec.hidden
    local = replace(video, shape=replace(video.shape, cp=1, ulysses=1))
    fork = () if text.framework.compile else (elementwise("add", text, text.rows * h, 2 * text.e, text.e),)
    read = linear(text, "cross.kv", h, (h, h), bias=True)
    return [
        linear(video, "cross.q", h, h, bias=True, stream=True, normed=True, modules=2),
        norm(video, "cross.q_norm", video.rows, h, "rmsnorm", after_residual=False),
        replace(read, backward=(*read.backward, *fork), saved=0 if not text.fp8 else read.saved),
        norm(text, "cross.k_norm", text.rows, h, "rmsnorm", after_residual=False),
        core(local, split_heads(local, spec.heads, spec.heads, h // spec.heads), causal=False, kv_seq=spec.text, name="cross.core"),
        linear(video, "cross.proj", h, h, bias=True),
    ]


def _head(make: _Maker) -> list[Part]:
    """The last norm, patches back to latents, and the squared error of the flow."""
    (spec, video, _), h = make, make.spec.hidden
    width = spec.channels * spec.patch**2
    n = video.rows * width
    permute = elementwise("permute", video, n, video.e, video.e)
    return [
        _steering(video, h, 2),
        *_modulated(video, "last", h),
        linear(video, "out", h, width, bias=True, low=False, stream=True),
        Part(name="unpatch", forward=(permute,), backward=(permute,), cls="elementwise", modules=0),
        Part(name="flow", forward=(elementwise("add", video, n, 8, 4),), cls="elementwise", detached=True, modules=0),
        squared_error(video, n),
    ]


def _steering(share: Share, h: int, count: int) -> Part:
    """What the time makes plus a table: `count` shifts, scales and gates in fp32. Backward joins their gradients, sums them over the batch for the
    table, and adds them to those of other layers."""
    n = share.micro * count * h
    up, down = casts(share, n)
    add, join = elementwise("add", share, n, 8, 4), elementwise("copy", share, n, 4, 4)
    fork, total = elementwise("add", share, n, 2 * share.e, share.e), elementwise("reduce", share, n, 4, 4 / share.micro)
    return Part(name="steering", forward=(*up, add), backward=(join, *down, fork), wgrad=(total,), cls="elementwise", tensors=(count * h,), modules=1)  # fmt: skip


def _modulated(share: Share, name: str, h: int) -> list[Part]:
    return in_fp32(share, name, share.rows * h, lambda wide: modulated(wide, name, h))


def _gated(share: Share, name: str, h: int, *, wide: bool) -> Part:
    """x + gate y in fp32, and back to 16 bits. `wide`: y is cast before, and kept so; else the product reads 16 bits."""
    n, e = share.rows * h, share.e
    if share.framework.compile or e == 4:
        return gated(share, name, h)
    up, down = casts(share, n)
    y = 4 if wide else e
    forward: tuple[Work, ...] = (
        *up,
        *(up if wide else ()),
        elementwise("scale", share, n, y, 4),
        elementwise("add", share, n, 8, 4),
        *down,
    )
    of_y = (elementwise("scale", share, n, 4, 4), *down)
    of_gate = (elementwise("scale", share, n, 4 + y, 4), elementwise("reduce", share, n, 4, 0))
    backward = (*up, *of_y, *of_gate, *down, elementwise("add", share, n, 2 * e, e))
    return Part(name=name, forward=forward, backward=backward, cls="elementwise", saved=n * y, modules=0)


def _rotated(share: Share, width: int) -> Part:
    """Queries and keys turned, pair of columns by pair, in fp32: four products of half the columns, two sums, each laid into the columns of the result.

    Backward copies the result's gradient and each half of it as autograd does for views that are written to, and stacks the halves.
    """
    n, e = share.rows * width, share.e
    if share.framework.compile or share.framework.attention.fused_rope:
        turn: tuple[Work, ...] = (elementwise("rope", share, 2 * n, e, e, 3.0),)
        return Part(name="attn.rope", forward=turn, backward=turn, cls="elementwise", rope=True)
    half = n // 2
    up, down = casts(share, half)
    product, add, lay = (
        elementwise("scale", share, half, e, 4),
        elementwise("add", share, half, 8, 4),
        elementwise("copy", share, half, 4, e),
    )
    one = (product, product, add, lay) * 2
    copied = (elementwise("copy", share, n, e, e), elementwise("copy", share, half, e, e), *up)
    zeroed = (elementwise("zero", share, half, 0, e), elementwise("copy", share, half, e, e))
    times = (elementwise("scale", share, half, 4, 4), *down) * 4
    sums = (elementwise("scale", share, half, 4, 4), *(elementwise("add", share, half, 2 * e, e),) * 2, elementwise("copy", share, n, e, e))
    back = (*copied, *copied, *zeroed, *times, *sums)
    return Part(name="attn.rope", forward=one * 2, backward=back * 2, cls="elementwise", rope=True)
