"""Transformer-XL (Dai et al. 2019) as in NVIDIA's DeepLearningExamples: attention over a memory of the segment before,
relative positions, norms after the residuals, adaptive embedding and softmax.
"""

from __future__ import annotations

import math

from sim.framework import Framework
from sim.model.elementwise import elementwise, residual
from sim.model.linear import linear, weight_casts
from sim.model.mlp import mlp
from sim.model.norm import norm
from sim.model.parts import Block, Part, Shape
from sim.model.share import Share, share_of
from sim.model.spec import TransformerXl
from sim.work import Gemm, MemoryBound, Work
from topologies.errors import Refused

Blocks = tuple[tuple[str, Block], ...]


def blocks_of(spec: TransformerXl, shape: Shape, framework: Framework) -> Blocks:
    """embed, L0 ..., head. seq_len is the segment's length. Its attention is always written out: no fused kernel shifts."""
    if shape.tp * shape.cp * shape.ep > 1:
        raise Refused(f"{spec.name or 'transformer-xl'}: split by data or pipeline parallelism only; set tp = cp = ep = 1")
    share = share_of(shape, framework, "math")
    layer = Block(kind="layer", parts=tuple(_layer(spec, share)), saved_input=share.rows * spec.hidden * share.es)
    first = Block(kind="embed", parts=(_embed(spec, share),))
    last = Block(kind="head", parts=tuple(_head(spec, share)), saved_input=layer.saved_input)
    return (("embed", first), *((f"L{i}", layer) for i in range(spec.layers)), ("head", last))


def _clusters(spec: TransformerXl) -> list[tuple[int, int]]:
    """(words, columns) of each cluster, the frequent first."""
    ends = [*(cut for cut in spec.cutoffs if cut < spec.vocab), spec.vocab]
    return [(end - start, spec.hidden // spec.div**i) for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]


def zipf(first: int, last: int, vocab: int) -> float:
    """Share of tokens whose word has a rank in (first, last], words being Zipf-distributed (1 / rank)."""

    def below(rank: int) -> float:
        return math.log(rank) + 0.5772 if rank else 0.0

    return (below(last) - below(first)) / below(vocab)


def _embed(spec: TransformerXl, share: Share) -> Part:
    """One table a cluster (one in all for div = 1), each projected to `hidden` where narrower; two position biases for all layers."""
    n, es = share.rows * spec.hidden, share.es
    clusters = _clusters(spec) if spec.div > 1 else [(spec.vocab, spec.hidden)]
    tensors: list[int] = []
    forward: list[Work] = []
    wgrad: list[Work] = []
    first = 0
    for words, columns in clusters:
        rows = max(1, round(share.rows * zipf(first, first + words, spec.vocab)))
        first += words
        forward.append(MemoryBound("embedding", rows * columns * es, rows * columns * es, share.act))
        wgrad += [
            MemoryBound("zero", 0, words * columns * es, share.act),
            MemoryBound("embedding_backward", rows * columns * es, 2 * rows * columns * es),
        ]
        tensors.append(words * columns)
        if spec.div > 1:
            forward.append(Gemm(rows, spec.hidden, columns, share.core))
            wgrad += [Gemm(rows, columns, spec.hidden, share.core, 1, "dgrad"), Gemm(spec.hidden, columns, rows, share.core, 1, "wgrad")]
            tensors.append(columns * spec.hidden)
    drop = elementwise("dropout", share, n, es, es + 1)
    inner = spec.heads * (spec.head_dim or spec.hidden // spec.heads)
    tensors += [inner, inner]
    return Part(
        name="embed.tokens", forward=(*forward, elementwise("scale", share, n, es, es), drop), backward=(drop,), wgrad=tuple(wgrad),
        cls="embedding", tensors=tuple(tensors), saved=n + 8 * share.rows, modules=3,
    )  # fmt: skip


def _layer(spec: TransformerXl, share: Share) -> list[Part]:
    h, drops = spec.hidden, spec.dropout > 0
    inner = spec.heads * (spec.head_dim or h // spec.heads)
    wide = share.micro * (share.seq + spec.memory)
    keys = share.seq + spec.memory
    join = elementwise("copy", share, wide * h, share.es, share.es)
    cat = Part(name="attn.memory", forward=(join,), backward=(join,), cls="elementwise")
    qkv = linear(share, "attn.qkv", h, 3 * inner, rows=wide, stream=True, low=False, modules=2)
    positions = linear(share, "attn.r", h, inner, rows=keys, stream=True, low=False)
    return [
        cat,
        qkv,
        positions,
        _core(spec, share, inner, keys),
        linear(share, "attn.proj", inner, h, low=False),
        residual(share, "attn.residual", share.rows, h, dropout=drops),
        norm(share, "norm1", share.rows, h, "layernorm"),
        *mlp(share, h, spec.ffn, "relu", bias=True),
        residual(share, "mlp.residual", share.rows, h, dropout=drops),
        norm(share, "norm2", share.rows, h, "layernorm"),
    ]


def _core(spec: TransformerXl, share: Share, inner: int, keys: int) -> Part:
    """(q + u) k^T + shift((q + v) r^T), scale, mask, softmax, dropout, times v: each a kernel."""
    b, s, e, dtype = share.micro, share.seq, share.e, share.core
    batch, d = b * spec.heads, inner // spec.heads
    scores = batch * s * keys
    es = 4 if share.autocast and not share.framework.fused_softmax else e
    bias = elementwise("add", share, b * s * inner, e, e)
    soft = elementwise("softmax", share, scores, e, es, 5.0, batch * s)
    unsoft = elementwise("softmax", share, scores, 2 * es, e, 4.0, batch * s)
    steps: list[Work] = [elementwise("copy", share, scores, e, e), elementwise("add", share, scores, 2 * e, e)]
    steps += [elementwise("scale", share, scores, e, e)] * (0 if share.framework.fused_softmax or share.framework.compile else 2)
    drop: list[Work] = [elementwise("dropout", share, scores, es, es + 1)] * (spec.dropout > 0)
    cast: list[Work] = [elementwise("cast", share, scores, es, e)] * (es != e)
    score, context = Gemm(s, keys, d, dtype, batch), Gemm(s, d, keys, dtype, batch)
    back = [Gemm(w.m, w.k, w.n, dtype, w.batch, "dgrad") for w in (context, score, score) for _ in range(2)]
    return Part(
        name="attn.core",
        forward=(bias, bias, score, score, *steps, soft, *drop, *cast, context),
        backward=(back[0], back[1], *cast, *drop, unsoft, *steps, *back[2:], bias, bias),
        cls="attention",
        saved=scores * (es + bool(drop) * (1 + e)) + b * (2 * s + 2 * keys) * inner * e,
        modules=3,
        recompute=True,
    )


def _head(spec: TransformerXl, share: Share) -> list[Part]:
    """Adaptive softmax (Grave et al. 2016): every token over the frequent words and the cluster names, the others over their own cluster."""
    parts: list[Part] = []
    clusters = _clusters(spec)
    first = 0
    for index, (words, columns) in enumerate(clusters):
        rows = share.rows if not index else max(1, round(share.rows * zipf(first, first + words, spec.vocab)))
        first += words
        width = words + (len(clusters) - 1 if not index else 0)
        parts.append(_cluster(spec, share, index, rows, columns, width, len(clusters) - 1))
    return parts


def _cluster(spec: TransformerXl, share: Share, index: int, rows: int, columns: int, width: int, tails: int) -> Part:
    n, e = rows * width, share.e
    project = spec.div > 1
    first: list[Work] = [Gemm(rows, columns, spec.hidden, share.core)] * project
    gemm = Gemm(rows, width, columns, share.core)
    soft: Work = MemoryBound("softmax", n * e, 4 * n, "fp32", 5.0 * n, 1, rows)
    back: list[Work] = [Gemm(rows, spec.hidden, columns, share.core, 1, "dgrad")] * project
    wback: list[Work] = [Gemm(columns, spec.hidden, rows, share.core, 1, "wgrad")] * project
    tensors = (width - (tails if not index else 0),) + ((tails * columns, tails) if not index else ())
    down, up = weight_casts(share, (width * columns,))
    return Part(
        name=f"head.cluster{index}",
        forward=(*down, *first, gemm, soft),
        backward=(
            MemoryBound("softmax", 8 * n, e * n, "fp32", 2.0 * n, 1, rows),
            Gemm(rows, columns, width, share.core, 1, "dgrad"),
            *back,
        ),
        wgrad=(Gemm(width, columns, rows, share.core, 1, "wgrad"), *wback, *up),
        cls="loss",
        tensors=tensors,
        saved=4 * n + rows * (spec.hidden + columns * project) * e,
        modules=2,
    )
