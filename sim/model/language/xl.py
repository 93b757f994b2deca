"""Transformer-XL (Dai et al. 2019) as in NVIDIA's DeepLearningExamples: attention over a memory of the segment before,
relative positions, norms after the residuals, adaptive embedding and softmax.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.layers.elementwise import dropout_kernels, elementwise, residual, transpose
from sim.model.layers.linear import linear, weight_casts
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.parts import Block, Part, Shape
from sim.model.share import Share, share_of
from sim.model.specs.spec import TransformerXl
from sim.work import Gemm, MemoryBound, Work

Blocks = tuple[tuple[str, Block], ...]
_VIEWS = 52
"""Views (permute, reshape, chunk, slice ...) that a layer's attention takes in forward, three einsums' most of all (recorded as `_core`'s kernels)."""


def blocks_of(spec: TransformerXl, shape: Shape, framework: Framework) -> Blocks:
    """embed, L0 ..., head. seq_len is the segment's length. Its attention is always written out: no fused kernel shifts."""
    data_parallel_only(spec.name or "transformer-xl", "a Transformer-XL", shape)
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
        cls="embedding", tensors=tuple(tensors), saved=n + 8 * share.rows, modules=3, reads=spec.div > 1,
    )  # fmt: skip


def _layer(spec: TransformerXl, share: Share) -> list[Part]:
    h, drops = spec.hidden, spec.dropout > 0
    inner = spec.heads * (spec.head_dim or h // spec.heads)
    wide = share.micro * (share.seq + spec.memory)
    keys = share.seq + spec.memory
    cat = Part(name="attn.memory", forward=(elementwise("copy", share, wide * h, share.es, share.es),), cls="elementwise")
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
        *_fed(spec, share),
        residual(share, "mlp.residual", share.rows, h, dropout=drops),
        norm(share, "norm2", share.rows, h, "layernorm"),
    ]


def _fed(spec: TransformerXl, share: Share) -> list[Part]:
    """Linear, ReLU, dropout, linear (PositionwiseFF in mem_transformer.py): what dropout leaves is a tensor of its own, beside relu's result."""
    up, act, down = mlp(share, spec.hidden, spec.ffn, "relu", bias=True)
    if spec.dropout > 0:
        n = share.rows * spec.ffn
        drop, undrop = dropout_kernels(share, n, share.e)
        act = replace(act, forward=(*act.forward, *drop), backward=(*undrop, *act.backward), saved=n * (share.e + 1), modules=2)
    return [up, act, down]


def _core(spec: TransformerXl, share: Share, inner: int, keys: int) -> Part:
    """(q + u) k^T + shift((q + v) r^T), scale, mask, softmax, dropout, times v: each a kernel.

    Heads are views of one projection, which torch.einsum copies to be one batch (k, v and the shifted q; not what a bias was added to). The
    shift pads the scores by a column and reads them one row further; its backward fills zeros, and copies what it gets before the product.
    Operators and strides as a dispatch mode records them of RelPartialLearnableMultiHeadAttn.forward and its backward.
    """
    b, s, e, dtype = share.micro, share.seq, share.e, share.core
    batch, d = b * spec.heads, inner // spec.heads
    scores, own, all_ = batch * s * keys, b * s * inner, b * keys * inner
    es = 4 if share.autocast and not share.framework.attention.fused_softmax else e
    copy, add, scale = (elementwise(what, share, scores, n * e, e) for what, n in (("copy", 1), ("add", 2), ("scale", 1)))
    bias, heads, context = (
        elementwise("add", share, own, e, e),
        transpose(share, all_),
        transpose(share, own),
    )
    soft = elementwise("softmax", share, scores, e, es, 5.0, batch * s)
    unsoft = elementwise("softmax", share, scores, 2 * es, e, 4.0, batch * s)
    drop: list[Work] = [elementwise("dropout", share, scores, es, es + 1)] * (spec.attention_dropout > 0)
    cast: list[Work] = [elementwise("cast", share, scores, es, e)] * (es != e)
    mask = [] if share.framework.attention.fused_softmax or share.framework.compile else [scale]
    score, product = Gemm(s, keys, d, dtype, batch), Gemm(s, d, keys, dtype, batch)
    back = [Gemm(w.m, w.k, w.n, dtype, w.batch, "dgrad") for w in (product, score, score) for _ in range(2)]
    shift, unshift = (copy, add), (scale, elementwise("zero", share, scores, 0, e), copy, copy)
    join = (heads, elementwise("zero", share, all_, 0, e), context, elementwise("copy", share, 3 * all_, e, e))
    total = MemoryBound("reduce", own * e, inner * e, share.act)
    return Part(
        name="attn.core",
        forward=(bias, heads, score, bias, context, score, *shift, *mask, soft, *drop, *cast, heads, product, context),
        backward=(
            *back[:2],
            *cast,
            *drop,
            unsoft,
            *mask * 2,
            *unshift,
            *back[2:],
            total,
            total,
            elementwise("add", share, own, 2 * e, e),
            *join,
        ),
        cls="attention",
        saved=scores * (es + bool(drop) * (1 + e)) + b * (2 * s + 2 * keys) * inner * e,
        modules=3,
        views=_VIEWS,
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
    return [*parts, _picked(spec, share, clusters)]


def _picked(spec: TransformerXl, share: Share, clusters: list[tuple[int, int]]) -> Part:
    """Each cluster's rows of the frequent words' scores, picked by index: a copy of all scores in all. Backward fills a gradient of zeros as large
    as all scores for each cluster, adds that cluster's rows by index, and sums them (proj_adaptive_softmax.py: index_select).

    Weights of clusters are slices of one table where all are equally wide (`div` = 1): gradients of slices are filled into zeros as large as the
    table and summed, and so is what the tied embedding gets. The host reads how many rows a cluster has (nonzero) before it goes on.
    """
    e, tails = share.e, len(clusters) - 1
    n = share.rows * (clusters[0][0] + tails)
    table = sum(words * columns for words, columns in clusters)
    zero, add = elementwise("zero", share, n, 0, e), elementwise("add", share, n, 2 * e, e)
    whole, tied = elementwise("zero", share, table, 0, e), elementwise("add", share, table, 2 * e, e)
    slices: tuple[Work, ...] = (*[whole] * (tails + 1), elementwise("copy", share, table, e, e), *[tied] * tails) if spec.div == 1 else ()
    return Part(
        name="head.picked",
        forward=(elementwise("gather", share, n, e, e),),
        backward=(zero, *[zero] * (tails + 1), elementwise("index_add", share, n, 2 * e, e), *[add] * tails),
        wgrad=(*slices, tied),
        cls="loss",
        saved=n * e,
        reads=True,
    )


def _cluster(spec: TransformerXl, share: Share, index: int, rows: int, columns: int, width: int, tails: int) -> Part:
    n, e, h = rows * width, share.e, spec.hidden
    project = spec.div > 1
    dense = elementwise("add", share, n, e, e)
    first: list[Work] = [Gemm(rows, columns, h, share.core)] * project
    gemm = Gemm(rows, width, columns, share.core)
    wide = 4 if share.autocast else e
    soft: Work = MemoryBound("softmax", n * e, wide * n, share.act, 5.0 * n, 1, rows)
    back: list[Work] = [Gemm(rows, h, columns, share.core, 1, "dgrad")] * project
    wback: list[Work] = [Gemm(columns, h, rows, share.core, 1, "wgrad")] * project
    tensors = (width - (tails if not index else 0),) + ((tails * columns, tails) if not index else ())
    down, up = weight_casts(share, (width * columns,))
    zeros: list[Work] = [elementwise("zero", share, n, 0, e)] * (index > 0)  # of the gradient of gather
    return Part(
        name=f"head.cluster{index}",
        forward=(*down, *first, gemm, *[dense] * project, soft),
        backward=(
            *zeros,
            MemoryBound("softmax", 2 * wide * n, e * n, share.act, 2.0 * n, 1, rows),
            Gemm(rows, columns, width, share.core, 1, "dgrad"),
            *back,
        ),
        wgrad=(Gemm(width, columns, rows, share.core, 1, "wgrad"), MemoryBound("reduce", n * e, width * e, share.act), *wback, *up),
        cls="loss",
        tensors=tensors,
        saved=4 * n + rows * (h + columns * project) * e,
        modules=2,
    )
