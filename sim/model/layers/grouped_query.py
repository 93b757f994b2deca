"""Attention of a layer: projections of queries and of (fewer) keys and values, norms, rotary positions, the core, the projection back."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.activation import sigmoid_gate
from sim.model.layers.attention import core
from sim.model.layers.elementwise import elementwise, transpose
from sim.model.layers.heads import Heads, split_heads
from sim.model.layers.linear import linear
from sim.model.layers.norm import norm
from sim.model.layers.rotary import rope
from sim.model.parts import Part
from sim.model.share import Share
from sim.work import MemoryBound

_VIEWS = {True: 10, False: 8}
"""Calls of a layer in Python that launch nothing: of a fused projection's result a view, a split, three flattened and three transposed parts, else
three views transposed; attention's result transposed and flattened. Transformers' are as many."""


def _split(share: Share, columns: int) -> list[Part]:
    """A fused projection's result as views of its parts, whose gradients backward copies together."""
    if not share.framework.linears.joins_gradients or share.framework.compile:
        return []
    join = elementwise("copy", share, share.rows * columns, share.e, share.e)
    return [Part(name="attn.split", backward=(join,), cls="elementwise")]


def _repeated(share: Share, heads: Heads) -> tuple[list[Part], Heads]:
    """Keys and values, each copied to all query heads that read it, and the heads that there are then; backward sums their gradients. Compiled, the
    rotation writes the copies of keys in place of these, and takes their sum."""
    if not share.framework.attention.repeats_keys or heads.kv == heads.q or share.math:
        return [], heads
    narrow, wide = (share.rows * count * heads.d * share.e for count in (heads.kv, heads.q))
    kernels, copied = (1, 2 * wide - narrow) if share.framework.compile else (2, wide)
    forward, backward = MemoryBound("copy", narrow, copied, share.act), MemoryBound("reduce", copied, narrow, share.act)
    part = Part(name="attn.repeat", forward=(forward,) * kernels, backward=(backward,) * kernels, cls="elementwise", modules=0)
    return [part], heads._replace(kv=heads.q)


def _left(heads: Heads, rotated: bool, normed: bool, whole: bool) -> int:
    """Columns of a fused projection's result that are kept in other tensors, too: what is rotated, or (`whole`) read by a norm over all heads, which
    takes no views with gaps between them. Queries leave their groups as a copy, where there are several and several in each; a norm over each
    head reads keys where they are."""
    queries, keys = heads.q * heads.d, heads.kv * heads.d
    if whole or (rotated and not normed):
        return queries + keys
    return queries if heads.q > heads.kv > 1 else 0


def _joined(share: Share, turned: int, width: int) -> bool:
    """Are heads joined of `turned` columns and others, in Python? They lie before tokens then, and so does attention's result, of which the
    projection reads a copy."""
    return 0 < turned < width and not (share.math or share.framework.attention.fused_rope or share.framework.compile)


def grouped_query(
    share: Share,
    hidden: int,
    heads: int,
    kv: int,
    d: int,
    *,
    qkv_bias: bool,
    proj_bias: bool,
    fused: bool,
    causal: bool = True,
    rotary: float = 0.0,
    rope_scaled: bool = False,
    qk_norm: bool = False,
    qk_whole: bool = False,
    qk_weight: bool = True,
    gated: bool = False,
    window: int = 0,
    sinks: bool = False,
    dropout: bool = False,
    mask: bool = False,
    scale: bool = True,
    capped: bool = False,
    frozen: bool = False,
    reread: int | None = None,
) -> list[Part]:
    """MHA, GQA or MQA from the norm's output to the projection's: qkv, (norms), (rope), core, proj.

    `qk_norm` is over each head of queries and keys, or (`qk_whole`) over all of this rank's heads at once; `gated`: the query
    projection is twice as wide, and the sigmoid of its other half scales the core's output. `capped`, `reread`: as in `core`.
    """
    local, seam_bytes = split_heads(share, heads, kv, d), share.over_tp(hidden)
    q, k = local.q * d * (1 + gated), local.kv * d
    views = _split(share, q + 2 * k) if fused else []
    parts = [
        linear(
            share, "attn.qkv", hidden, q + 2 * k if fused else (q, k, k), bias=qkv_bias, seam="tp.gather",
            seam_bytes=seam_bytes, stream=True, normed=True, saved_rows=share.srows, frozen=frozen, modules=2,
        ), *views,
    ]  # fmt: skip
    turned = int(d * rotary)
    if qk_norm:
        for name, count in (("q", local.q), ("k", local.kv)):
            rows, width = (share.rows, count * d) if qk_whole else (share.rows * count, d)
            part = norm(share, f"attn.{name}_norm", rows, width, "rmsnorm", weight=qk_weight, after_residual=False, es=share.e)
            parts.append(replace(part, whole=()) if qk_whole else part)  # weights of all heads are split as these are
    if turned:
        parts.append(rope(share, local.q + local.kv, turned, scaled=rope_scaled, passed=d - turned))
    copies, local = _repeated(share, local)
    parts += copies
    reread = 0 if (joined := _joined(share, turned, d)) else share.e if gated else reread
    middle = core(share, local, causal=causal, window=window, dropout=dropout, mask=mask, scale=scale, capped=capped, reread=reread)
    middle = replace(middle, forward=(*middle.forward, *[transpose(share, share.rows * local.q * d)] * joined))
    if views and not share.math:  # its view of the values keeps all of that result
        middle = replace(middle, saved=middle.saved + share.rows * share.e * _left(local, bool(turned), qk_norm, qk_whole))
    middle = replace(middle, tensors=(local.q,) * sinks, views=_VIEWS[fused] if share.framework.host == "python" else 0)
    out = linear(
        share, "attn.proj", local.q * d, hidden, bias=proj_bias, seam="tp.reduce", seam_bytes=seam_bytes, frozen=frozen
    )  # fmt: skip
    return [*parts, middle, *([sigmoid_gate(share, "attn.gate", local.q * d)] if gated else []), out]
