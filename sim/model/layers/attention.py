"""Attention's parts: projections, rotary positions, the core (flash or written out), and the latent kind (MLA)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.activation import sigmoid_gate
from sim.model.layers.elementwise import capping, dropout_kernels, elementwise, transpose
from sim.model.layers.heads import Heads, split_heads
from sim.model.layers.linear import linear, operand, quantised, scaled_before
from sim.model.layers.norm import norm
from sim.model.parts import Part
from sim.model.share import Share
from sim.work import BYTES, Attention, Gemm, MemoryBound, Work

_VIEWS = {True: 10, False: 8}
"""Calls of a layer in Python that launch nothing: of a fused projection's result a view, a split, three flattened and three transposed parts, else
three views transposed; attention's result transposed and flattened. Transformers' are as many."""


def core(
    share: Share,
    heads: Heads,
    *,
    causal: bool,
    window: int = 0,
    dropout: bool = False,
    mask: bool = False,
    scale: bool = True,
    capped: bool = False,
    kv_seq: int = 0,
    reread: int | None = None,
    name: str = "attn.core",
) -> Part:
    """softmax(Q K^T) V. Under context parallelism this rank's queries meet all keys; `mask`: an additive mask (BERT);
    `scale`: scores are divided by the root of the head's size (T5 does without); `capped`: a tanh bounds them. `reread`: bytes of an element of the
    result that what reads it keeps; None: a trained linear reads it.

    The whole gathered K and V travel (p2p, all_gather), or this rank's Q, K, V change places with heads (all_to_all).
    """
    b, s, cp, swap = share.micro, share.seq, share.shape.cp, share.shape.ulysses
    keys = kv_seq or s * cp
    if share.math:
        part = _written_out(share, heads, keys, name, dropout, causal or mask, scale, causal, capped)
    else:
        work = Attention(
            b, max(1, heads.q // swap), max(1, heads.kv // swap), s * swap, keys, heads.d, heads.dv if heads.dv != heads.d else 0, causal,
            share.fused, window=window if window < keys else 0,
        )  # fmt: skip
        back = replace(work, backward=True)
        taken, sums = _qkv_bytes(share, heads, b * s, b * (keys // cp if cp > 1 else keys)), b * s * heads.q * 4
        result = b * s * heads.q * heads.dv
        forward, backward = (*_narrow(share, taken // share.e), work), (*_narrow(share, result), back)
        inputs = taken // share.e * int(BYTES[share.fused])  # its own 8-bit copies, where it has some
        kept, again = _result(share, result, reread)
        part = Part(
            name=name, forward=forward, backward=backward, cls="attention", saved=inputs + sums + kept, recompute=True, dropped=sums + again,
            native=len(forward) - 1,
        )  # fmt: skip
    if cp == 1:
        return part
    held = max(heads.kv, swap)  # heads are copied where there is less than one for each
    whole = b * keys * (held // swap) * (heads.d + heads.dv) * share.e if swap < cp else 0
    moved = tuple(b * s * columns * share.e for columns in (heads.q * heads.d, held * heads.d, held * heads.dv))
    return replace(part, seam="cp.attention", seam_bytes=whole, seam_heads=moved if swap > 1 else ())


def _narrow(share: Share, elements: int) -> list[Work]:
    """Queries, keys and values for 8-bit attention, and the gradient of its result (TransformerEngine's fp8_dpa leaves 16 bits around it)."""
    return quantised(share, elements) if share.fused == "fp8" else []


def _result(share: Share, elements: int, reread: int | None) -> tuple[int, int]:
    """A fused kernel's backward reads its result. Bytes of it beside those that its reader keeps, and of them those that attention's
    recomputation does without: trained linears of 16 bits keep the result itself; those of 8 bits with delayed scales a copy of their own, and
    all others the result in its place (Megatron-Core, attention.py: set_save_original_input; torchao), of which `linear` counts its operand."""
    own = elements * int(BYTES[share.fused])
    if reread is not None:
        own = max(0, own - elements * reread)
    elif not share.fp8:
        own = 0
    elif not scaled_before(share):
        return elements * share.e - operand(share, elements, True), 0
    return own, own


def _qkv_bytes(share: Share, heads: Heads, queries: int, keys: int) -> int:
    return (queries * heads.q * heads.d + keys * heads.kv * (heads.d + heads.dv)) * share.e


def _written_out(
    share: Share, heads: Heads, keys: int, name: str, dropout: bool, masked: bool, scaled: bool, causal: bool, capped: bool
) -> Part:
    """Attention of separate kernels: 5 a s^2 b bytes kept with dropout (Korthikanti et al. 2022, section 4.1)."""
    b, s, h, dtype = share.micro, share.seq, heads.q, share.core
    scores = b * h * s * keys
    e, quiet = share.e, share.framework.compile
    fused = share.framework.attention.fused_softmax
    one = quiet and share.framework.attention.compiled and not fused
    es = e if fused or one else share.es  # autocast runs softmax in fp32
    widened = es != e and share.core == "bf16" and not quiet  # only of fp16 is it one kernel (ATen/native/SoftMax.cpp: half_to_float)
    rows, views = b * h * s, share.framework.attention.strided_heads
    read = e / 2 if causal and fused and share.framework.attention.causal_softmax else e
    forward: list[Work] = [] if views else _head_copies(share, heads, keys)
    forward.append(Gemm(s, keys, heads.d, dtype, b * h))
    if not (fused or quiet):
        forward += [elementwise("scale", share, scores, e, e)] * scaled
    forward += capping(share, scores) if capped and not quiet else []
    if not (fused or quiet):
        forward += [elementwise("add", share, scores, e, e)] * masked
    forward += [elementwise("cast", share, scores, e, es)] * widened
    dropped = dropout * (e + 1) if one else 0  # beside the result, and the mask
    forward.append(elementwise("softmax", share, scores, es if widened else read, es + dropped, 5.0, rows))
    drop, undrop = dropout_kernels(share, scores, es) if dropout and not one else ([], [])
    forward += drop
    forward += [elementwise("cast", share, scores, es, e)] * (es != e)
    context = transpose(share, b * s * h * heads.dv)
    forward += [Gemm(s, heads.dv, keys, dtype, b * h), context]
    backward: list[Work] = [
        *([] if views else [context]),
        Gemm(s, keys, heads.dv, dtype, b * h, "dgrad"),
        Gemm(keys, heads.dv, s, dtype, b * h, "dgrad"),
    ]
    backward += [elementwise("cast", share, scores, e, es)] * (es != e)
    backward += undrop
    backward.append(elementwise("softmax", share, scores, 2 * (read if fused else es) + (dropout and one), es if widened else e, 4.0, rows))
    backward += [elementwise("cast", share, scores, es, e)] * widened
    backward += capping(share, scores, backward=True) if capped and not quiet else []
    if not (fused or quiet):
        backward += [elementwise("scale", share, scores, e, e)] * (scaled + (masked and scaled))
    backward += [
        Gemm(s, heads.d, keys, dtype, b * h, "dgrad"),
        Gemm(keys, heads.d, s, dtype, b * h, "dgrad"),
        *_head_copies(share, heads, keys),
    ]
    square = scores * (es + dropout * (1 + e) + (e if es != e and not dropout else 0) + capped * (not quiet) * e)
    kept = square + _qkv_bytes(share, heads, b * s, b * keys)
    return Part(
        name=name, forward=tuple(forward), backward=tuple(backward), cls="attention", saved=kept, modules=2, recompute=True, dropped=square
    )


def _head_copies(share: Share, heads: Heads, keys: int) -> list[Work]:
    """torch.matmul of (b, h, s, d) views copies them to be contiguous; grouped heads are repeated first."""
    q = share.micro * heads.q
    return [transpose(share, n) for n in (q * share.seq * heads.d, q * keys * heads.d, q * keys * heads.dv)]


def rope(share: Share, heads: int, width: int, scaled: bool = False, passed: int = 0) -> Part:
    """Rotation of `heads` (queries and keys together) by `width` columns: one kernel fused, else as Python writes it.

    Unfused (transformers): x cos + rotate_half(x) sin is neg, cat, mul, mul, add, for queries and for keys, all of heads that lie between tokens
    (`strided`). Backward fills each half's gradient into zeros, and sums three gradients of x. `passed` columns of each head are not turned: the
    fused kernel copies them (TransformerEngine, fused_rope.cu); in Python cat joins them to the rest, and backward fills each slice's gradient
    into zeros and sums both (transformers, modeling_gpt_neox.py). `scaled`: cos and sin carry a factor, which TransformerEngine's kernel has
    not: Megatron-Core's own (rope_utils.py, _apply_rotary_pos_emb_bshd) makes them anew for each call and joins the rest, also where it is empty.
    """
    n, e, fused = share.rows * heads * width, share.e, share.framework.attention.fused_rope
    whole = n + share.rows * heads * passed
    if (fused and not scaled) or share.framework.compile:
        turn = (elementwise("rope", share, whole, e, e, 3.0),)
        return Part(name="attn.rope", forward=turn, backward=turn, cls="elementwise", rope=True)
    # parts of a fused projection's rows; torchtitan's complex product is of whole ones
    apart = share.framework.linears.joins_gradients and not fused
    one, two = ("strided", "strided") if apart else ("scale", "add")
    neg, cat, mul = (elementwise(one, share, n // part, e, e) for part in (4, 2, 2))
    steps: tuple[Work, ...] = (neg, cat, mul, mul, elementwise(two, share, n // 2, 2 * e, e))
    back: tuple[Work, ...] = (elementwise("zero", share, n // 2, 0, e),) * 2 + (elementwise("add", share, n // 2, 2 * e, e),)
    join = elementwise("copy", share, whole // 2, e, e)
    if passed:
        back += (elementwise("zero", share, whole // 2, 0, e),) * 2 + (join, elementwise("add", share, whole // 2, 2 * e, e))
    if not fused:
        forward = (*steps, *([join] if passed else [])) * 2
        return Part(name="attn.rope", forward=forward, backward=steps * 2 + back * 2, cls="elementwise", rope=True)
    angles = (elementwise("scale", share, share.seq * width, 4, 4),) * 2 + (elementwise("cast", share, share.seq * width, 4, e),)
    forward = (*angles, *angles, *steps, join) * 2
    return Part(
        name="attn.rope",
        forward=forward,
        backward=steps * 2 + back * 2,
        cls="elementwise",
        rope=True,
        native=len(forward),
        nodes=2 * len(steps),
    )


def _split(share: Share, columns: int) -> list[Part]:
    """A fused projection's result as views of its parts, whose gradients backward copies together."""
    if not share.framework.linears.joins_gradients or share.framework.compile:
        return []
    join = elementwise("copy", share, share.rows * columns, share.e, share.e)
    return [Part(name="attn.split", backward=(join,), cls="elementwise")]


def _repeated(share: Share, heads: Heads) -> Part:
    """Keys and values, each copied to all query heads that read it; backward sums their gradients. Compiled, the rotation writes the copies of keys
    in place of these, and takes their sum."""
    e, narrow, wide = share.e, share.rows * heads.kv * heads.d, share.rows * heads.q * heads.d
    if share.framework.compile:
        more = 2 * wide - narrow
        forward, backward = [MemoryBound("copy", narrow * e, more * e, share.act)], [MemoryBound("reduce", more * e, narrow * e, share.act)]
    else:
        forward, backward = (
            [MemoryBound("copy", narrow * e, wide * e, share.act)] * 2,
            [MemoryBound("reduce", wide * e, narrow * e, share.act)] * 2,
        )
    return Part(name="attn.repeat", forward=tuple(forward), backward=tuple(backward), cls="elementwise", modules=0)


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
    local = split_heads(share, heads, kv, d)
    q, k = local.q * d * (1 + gated), local.kv * d
    seam_bytes = share.rows * hidden * share.e if share.tp > 1 else 0
    views = _split(share, q + 2 * k) if fused else []
    parts = [
        linear(
            share, "attn.qkv", hidden, q + 2 * k if fused else (q, k, k), bias=qkv_bias, seam="tp.gather" if seam_bytes else "",
            seam_bytes=seam_bytes, stream=True, normed=True, saved_rows=share.srows, frozen=frozen, modules=2,
        ), *views,
    ]  # fmt: skip
    turned = int(d * rotary)
    if qk_norm:
        for name, count in (("q", local.q), ("k", local.kv)):
            rows, width = (share.rows, count * d) if qk_whole else (share.rows * count, d)
            parts.append(norm(share, f"attn.{name}_norm", rows, width, "rmsnorm", weight=qk_weight, after_residual=False, es=share.e))
    if turned:
        parts.append(rope(share, local.q + local.kv, turned, scaled=rope_scaled, passed=d - turned))
    repeated = share.framework.attention.repeats_keys and local.kv < local.q and not share.math
    if repeated:
        parts.append(_repeated(share, local))
        local = local._replace(kv=local.q)
    joined = _joined(share, turned, d)
    reread = 0 if joined else share.e if gated else reread
    middle = core(share, local, causal=causal, window=window, dropout=dropout, mask=mask, scale=scale, capped=capped, reread=reread)
    middle = replace(middle, forward=(*middle.forward, *[transpose(share, share.rows * local.q * d)] * joined))
    if views and not share.math:  # its view of the values keeps all of that result
        middle = replace(middle, saved=middle.saved + share.rows * share.e * _left(local, bool(turned), qk_norm, qk_whole))
    middle = replace(middle, tensors=(local.q,) * sinks, views=_VIEWS[fused] if share.framework.host == "python" else 0)
    out = linear(
        share, "attn.proj", local.q * d, hidden, bias=proj_bias, seam="tp.reduce" if seam_bytes else "", seam_bytes=seam_bytes, frozen=frozen
    )  # fmt: skip
    return [*parts, middle, *([sigmoid_gate(share, "attn.gate", local.q * d)] if gated else []), out]
