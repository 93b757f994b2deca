"""Bidirectional transformers: BERT with its heads, and the layers of ViT."""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import check_length
from sim.model.layers.activation import activation
from sim.model.layers.elementwise import elementwise, residual
from sim.model.layers.ends import embedding, logits, loss
from sim.model.layers.grouped_query import grouped_query
from sim.model.layers.linear import linear
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.parts import Block, Part, Shape
from sim.model.share import Share, share_of
from sim.model.specs.spec import Encoder, Vit
from sim.work import Conv, MemoryBound, Work
from topologies.errors import BadInput, Refused

Blocks = tuple[tuple[str, Block], ...]


def blocks_of(spec: Encoder, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed, L0 ..., head. Raises `BadInput` for sequences longer than the position table."""
    check_length(spec.name or "encoder", shape.seq, spec.positions)
    share = share_of(shape, framework, attention)
    fused = framework.linears.fused_projections
    parts = layer_parts(
        share, spec.hidden, spec.heads, spec.ffn or 4 * spec.hidden, spec.dropout > 0, pre_norm=False, fused=fused, mask=True
    )
    layer = Block(kind="layer", parts=tuple(parts), saved_input=share.srows * spec.hidden * share.es)
    tables = (spec.positions, spec.types) if spec.types else (spec.positions,)
    first = embedding(share, spec.hidden, spec.vocab, tables=tables, dropout=spec.dropout > 0)
    after = norm(share, "embed.norm", share.srows, spec.hidden, "layernorm", after_residual=False)
    head = Block(kind="head", parts=tuple(_head(spec, share)), saved_input=layer.saved_input)
    return (("embed", Block(kind="embed", parts=(first, after))), *((f"L{i}", layer) for i in range(spec.layers)), ("head", head))


def layer_parts(share: Share, hidden: int, heads: int, ffn: int, drops: bool, *, pre_norm: bool, fused: bool, mask: bool) -> list[Part]:
    """Attention and MLP, each with its residual, and a norm before (ViT) or after it (BERT)."""
    attn = grouped_query(
        share, hidden, heads, heads, hidden // heads, qkv_bias=True, proj_bias=True, fused=fused, causal=False, dropout=drops, mask=mask
    )
    rest = mlp(share, hidden, ffn, "gelu", bias=True)
    first, second = (norm(share, f"norm{i}", share.srows, hidden, "layernorm", modules=3 - i) for i in (1, 2))
    joins = [residual(share, f"{name}.residual", share.srows, hidden, dropout=drops) for name in ("attn", "mlp")]
    if pre_norm:
        return [first, *attn, joins[0], second, *rest, joins[1]]
    return [*attn, joins[0], first, *rest, joins[1], second]


def _masked(share: Share, hidden: int, rows: int) -> Part:
    """The rows of the masked words alone."""
    size, whole = rows * hidden * share.e, share.rows * hidden * share.e
    pick: Work = MemoryBound("embedding", size, size, share.act)
    spread: Work = MemoryBound("scatter_add", size, whole, share.act)
    return Part(name="head.masked", forward=(pick,), backward=(spread,), cls="embedding")


def _head(spec: Encoder, share: Share) -> list[Part]:
    if spec.head == "none":
        return [replace(part, wgrad=()) for part in _pooler(spec, share)]
    if spec.head == "squad":
        return [
            linear(share, "head.span", spec.hidden, 2, bias=True, low=False, stream=True, modules=2),
            loss(share, share.shape.seq, rows=2 * share.micro),
        ]
    picked = spec.picked(share.shape.seq)
    rows = share.micro * -(-picked // share.shape.cp)
    sentence: list[Part] = []
    if spec.head == "pretraining":
        sentence = [*_pooler(spec, share), linear(share, "head.next", spec.hidden, 2, rows=share.micro, bias=True, low=False)]
    return [
        *sentence,
        *([_masked(share, spec.hidden, rows)] if picked < share.shape.seq else []),
        linear(share, "head.transform", spec.hidden, spec.hidden, rows=rows, bias=True, low=False, stream=True),
        activation(share, "head.act", rows, spec.hidden, "gelu"),
        norm(share, "head.norm", rows, spec.hidden, "layernorm", after_residual=False),
        logits(share, spec.hidden, spec.vocab, tied=spec.tied, bias=True, rows=rows),
        loss(share, spec.vocab, rows=rows),
    ]


def _pooler(spec: Encoder, share: Share) -> list[Part]:
    return [
        linear(share, "head.pooler", spec.hidden, spec.hidden, rows=share.micro, bias=True, low=False, stream=True, modules=2),
        activation(share, "head.tanh", share.micro, spec.hidden, "tanh"),
    ]


def vit_blocks(spec: Vit, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed (patches by convolution), L0 ..., head. One sample is an image. Raises where patches do not tile it."""
    if spec.image % spec.patch:
        raise BadInput(f"{spec.name or 'vit'}: patch = {spec.patch} does not divide image = {spec.image}")
    if shape.cp > 1:
        raise Refused(f"{spec.name or 'vit'}: context parallelism splits long sequences; set cp = 1 for images")
    side = spec.image // spec.patch
    share = share_of(replace(shape, seq=side * side + 1), framework, attention)
    parts = layer_parts(
        share, spec.hidden, spec.heads, spec.ffn or 4 * spec.hidden, spec.dropout > 0, pre_norm=True, fused=True, mask=False
    )
    layer = Block(kind="layer", parts=tuple(parts), saved_input=share.srows * spec.hidden * share.es)
    head = (
        norm(share, "head.norm", share.srows, spec.hidden, "layernorm"),
        linear(share, "head.logits", spec.hidden, spec.classes, rows=share.micro, bias=True, low=False, stream=True),
        loss(share, spec.classes, rows=share.micro),
    )
    last = Block(kind="head", parts=head, saved_input=layer.saved_input)
    return (("embed", Block(kind="embed", parts=(_patches(spec, share),))), *((f"L{i}", layer) for i in range(spec.layers)), ("head", last))


def _patches(spec: Vit, share: Share) -> Part:
    """A convolution of stride = kernel = patch, the class token, and the position table added. The image needs no gradient."""
    b, n = share.micro, share.rows * spec.hidden
    shape = (b, 3, spec.image, spec.image, spec.hidden, spec.patch, spec.patch, spec.patch, 0, 1, share.core)
    add: Work = elementwise("add", share, n, 2 * share.e, share.e)
    join: Work = elementwise("copy", share, n, share.e, share.e)
    weight = 3 * spec.patch**2 * spec.hidden
    total: Work = MemoryBound("reduce", n * share.e, share.rows // b * spec.hidden * share.e, share.act)
    return Part(
        name="embed.patches",
        forward=(Conv(*shape), join, add),
        backward=(join,),
        wgrad=(Conv(*shape, "wgrad"), total),
        cls="conv",
        tensors=(weight, spec.hidden, spec.hidden, share.rows // b * spec.hidden),
        saved=b * 3 * spec.image**2 * share.e,
        modules=3,
    )
