"""Softmax attention: fused into one kernel each way, or written out as products and a softmax."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import capping, dropout_kernels, elementwise, transpose
from sim.model.layers.heads import Heads
from sim.model.layers.linear import operand, quantised, scaled_before
from sim.model.parts import Part
from sim.model.share import Share
from sim.work import BYTES, Attention, Gemm, Work


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
    chosen: int = 0,
    reread: int | None = None,
    name: str = "attn.core",
) -> Part:
    """softmax(Q K^T) V. Under context parallelism this rank's queries meet all keys; `mask`: an additive mask (BERT);
    `scale`: scores are divided by the root of the head's size (T5 does without); `capped`: a tanh bounds them; `chosen`: keys that
    each query picks (fused alone). `reread`: bytes of an element of the result that what reads it keeps; None: a trained linear reads it.

    A fused kernel takes each document of a packed sequence for a sequence of its own; scores that are written out are whole squares with a mask.
    Ranks of cp share each document (TransformerEngine's thd; whole documents on a rank, as all_gather may have them, are as many pairs).
    The whole gathered K and V travel (p2p, all_gather), or this rank's Q, K, V change places with heads (all_to_all).
    """
    b, s, cp, swap = share.micro, share.seq, share.shape.cp, share.shape.ulysses
    keys = kv_seq or s * cp
    if share.math:
        part = _written_out(share, heads, keys, name, dropout, causal or mask, scale, causal, capped)
    else:
        packed = 1 if kv_seq else share.shape.documents
        inside = -(-keys // packed)
        work = Attention(
            b * packed, max(1, heads.q // swap), max(1, heads.kv // swap), -(-s * swap // packed), inside, heads.d,
            heads.dv if heads.dv != heads.d else 0, causal, share.fused, window=window if window < inside else 0, chosen=chosen,
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
