"""Encoder-decoders: T5 (Raffel et al. 2019) and the Transformer of 2017 (Vaswani et al.)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.layers.attention import core
from sim.model.layers.elementwise import elementwise, residual
from sim.model.layers.ends import embedding, logits, loss
from sim.model.layers.grouped_query import grouped_query
from sim.model.layers.heads import Heads, split_heads
from sim.model.layers.linear import casts, linear
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.parts import Block, Part, Shape
from sim.model.share import Share, share_of
from sim.model.specs.spec import EncDec

Blocks = tuple[tuple[str, Block], ...]


def blocks_of(spec: EncDec, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed, L0 ... (encoder), target (its embedding), D0 ... (decoder), head. seq_len counts source tokens."""
    source = share_of(shape, framework, attention)
    target = share_of(replace(shape, seq=spec.target or shape.seq), framework, attention)
    stream = source.srows * spec.hidden * source.es
    encoder = [Block(kind="layer", parts=tuple(_encoder(spec, source, first)), saved_input=stream) for first in (True, False)]
    result, stream = stream, target.srows * spec.hidden * target.es
    decoder = [
        Block(kind="layer", parts=tuple(_decoder(spec, source, target, first)), saved_input=stream, beside=result)
        for first in (True, False)
    ]
    if not spec.relative:  # all layers are equal
        encoder[0], decoder[0] = encoder[1], decoder[1]
    middle = [*_final(spec, source, "encoder.norm"), *_embed(spec, target, shared=True)]
    if not casts(source):  # all layers read the one result
        middle[0] = replace(middle[0], saved=middle[0].saved + result)
    head = [
        *_final(spec, target, "head.norm"),
        logits(target, spec.hidden, spec.vocab, tied=spec.tied),
        loss(target, spec.vocab),
    ]
    return (
        ("embed", Block(kind="embed", parts=tuple(_embed(spec, source)))),
        *((f"L{i}", encoder[min(i, 1)]) for i in range(spec.layers)),
        ("target", Block(kind="embed", parts=tuple(middle), saved_input=result)),
        *((f"D{i}", decoder[min(i, 1)]) for i in range(spec.layers)),
        ("head", Block(kind="head", parts=tuple(head), saved_input=stream)),
    )


def _embed(spec: EncDec, share: Share, *, shared: bool = False) -> list[Part]:
    """`shared`: the decoder reads the encoder's table, and its gradient is added to the same tensor."""
    part = embedding(share, spec.hidden, spec.vocab, dropout=spec.dropout > 0, name="target.tokens" if shared else "embed.tokens")
    part = replace(part, tensors=()) if shared else part
    if spec.relative:
        return [part]
    n, es = share.rows * spec.hidden, share.es
    sinusoids = (elementwise("scale", share, n, es, es), elementwise("add", share, n, 2 * es, es))
    return [part, Part(name="embed.positions", forward=sinusoids, backward=sinusoids[:1], cls="elementwise")]


def _final(spec: EncDec, share: Share, name: str) -> list[Part]:
    """With norms before each mixer, a stack ends with one."""
    return [norm(share, name, share.srows, spec.hidden, spec.norm)] if spec.pre_norm else []


def _around(spec: EncDec, share: Share, name: str, parts: list[Part]) -> list[Part]:
    """The mixer `parts` with its residual, its norm before or after it."""
    around = norm(share, f"{name}.norm", share.srows, spec.hidden, spec.norm, modules=2)
    join = residual(share, f"{name}.residual", share.srows, spec.hidden, dropout=spec.dropout > 0)
    return [around, *parts, join] if spec.pre_norm else [*parts, join, around]


def _self(spec: EncDec, share: Share, causal: bool, first: bool) -> list[Part]:
    width = spec.head_dim or spec.hidden // spec.heads
    parts = grouped_query(
        share, spec.hidden, spec.heads, spec.heads, width, qkv_bias=spec.bias, proj_bias=spec.bias, causal=causal,
        fused=share.framework.linears.fused_projections, dropout=spec.dropout > 0, mask=True, scale=not spec.relative,
    )  # fmt: skip
    if not spec.relative:
        return parts
    heads = spec.heads // share.tp
    n = heads * share.seq * share.seq
    if share.math:  # the gradient of the bias, which all samples add
        total = elementwise("reduce", share, n, share.micro * share.e, share.e)
        parts = [replace(part, backward=(*part.backward, total)) if part.name == "attn.core" else part for part in parts]
    if not first:
        return parts
    lookup = elementwise("embedding", share, n, 8 + share.e, share.e)
    scatter = elementwise("embedding_backward", share, n, share.e, 0)
    table = Part(name="attn.positions", forward=(lookup,), wgrad=(scatter,), cls="embedding", tensors=(spec.relative * heads,))
    return [table, *parts]


def _mlp(spec: EncDec, share: Share) -> list[Part]:
    return mlp(share, spec.hidden, spec.ffn, spec.activation, bias=spec.bias, fused=share.framework.linears.fused_projections)


def _encoder(spec: EncDec, share: Share, first: bool) -> list[Part]:
    return [*_around(spec, share, "attn", _self(spec, share, False, first)), *_around(spec, share, "mlp", _mlp(spec, share))]


def _decoder(spec: EncDec, source: Share, target: Share, first: bool) -> list[Part]:
    crossing = _cross(spec, source, target)
    return [
        *_around(spec, target, "attn", _self(spec, target, True, first)),
        *_around(spec, target, "cross", crossing),
        *_around(spec, target, "mlp", _mlp(spec, target)),
    ]


def _cross(spec: EncDec, source: Share, target: Share) -> list[Part]:
    """Queries of the target on keys and values of the encoder's output, which each layer projects anew."""
    width = spec.head_dim or spec.hidden // spec.heads
    local: Heads = split_heads(target, spec.heads, spec.heads, width)
    inner, split = local.q * width, target.tp > 1
    bytes_ = target.rows * spec.hidden * target.e if split else 0
    keys = source.rows * spec.hidden * source.e if split else 0
    fused = target.framework.linears.fused_projections
    middle = core(
        target,
        local,
        causal=False,
        dropout=spec.dropout > 0,
        mask=True,
        scale=not spec.relative,
        kv_seq=source.shape.seq,
        name="cross.core",
    )
    # What all layers' keys and values give to the encoder's result is summed.
    fork = (elementwise("add", source, source.srows * spec.hidden, 2 * source.es, source.es),) if not source.framework.compile else ()
    read = linear(
        source, "cross.kv", spec.hidden, 2 * inner if fused else (inner, inner), bias=spec.bias, seam="tp.gather" if split else "",
        seam_bytes=keys, stream=True, saved_rows=source.srows,
    )  # fmt: skip
    return [
        linear(target, "cross.q", spec.hidden, inner, bias=spec.bias, seam="tp.gather" if split else "", seam_bytes=bytes_, stream=True, modules=2),
        replace(read, backward=(*read.backward, *fork), saved=read.saved if casts(source) else 0),
        middle,
        linear(target, "cross.proj", inner, spec.hidden, bias=spec.bias, seam="tp.reduce" if split else "", seam_bytes=bytes_),
    ]  # fmt: skip
