"""CLIP's two towers and the loss over a whole batch, operator by operator as open_clip runs them (src/open_clip/model.py, transformer.py, loss.py).

Each rank compares its own samples with those of all ranks (--local-loss --gather-with-grad, which large batches need: the logits of all samples
with all would be as many on each rank). Attention is torch.nn.MultiheadAttention: its input in the order of its own, queries, keys and values of
one product copied apart. Under autocast the pictures' stream has 16 bits (a convolution begins it, and norms cast back), the texts' 32.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.layers.attention import core
from sim.model.layers.elementwise import elementwise, in_fp32, residual
from sim.model.layers.ends import embedding, loss
from sim.model.layers.heads import split_heads
from sim.model.layers.linear import linear
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.multimodal import sigmoid, tower
from sim.model.multimodal.sigmoid import length
from sim.model.parts import Block, Part, Shape
from sim.model.pictures.vision import Blocks
from sim.model.share import Share, share_of
from sim.model.specs.clip import Clip
from sim.work import Gemm, MemoryBound, Work


def blocks_of(spec: Clip, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed (patches), L0 ... (pictures), target (their features, the texts' words), D0 ... (texts), head. Raises `Refused` for tp, cp or ep."""
    data_parallel_only(spec.name or "clip", "a pair of towers", shape, chain=False)
    seen, said = (share_of(replace(shape, seq=tokens), framework, attention) for tokens in (spec.tower.tokens, spec.text))
    seen = seen if spec.sigmoid else replace(seen, es=seen.e)
    h, w = spec.hidden, spec.text_hidden
    pictures, texts = seen.rows * h * seen.es, said.rows * w * said.es
    own = sigmoid.attention(seen, h, spec.heads) if spec.sigmoid else _attention(seen, h, spec.heads, masked=False)
    read = _attention(said, w, spec.text_heads, masked=not spec.sigmoid)
    layer = Block(kind="layer", parts=tuple(_layer(spec, seen, h, own, spec.tower.ffn)), saved_input=pictures)
    reader = Block(kind="layer", parts=tuple(_layer(spec, said, w, read, spec.text_ffn or 4 * w)), saved_input=texts)
    one = share_of(replace(shape, seq=1), framework, attention)
    ending = _normed(seen, "pictures.last", h)
    ending += [*sigmoid.pooled(spec, seen, one), length(seen, "pictures", h)] if spec.sigmoid else _row(spec, seen, "pictures", h)
    compared = (sigmoid.compared if spec.sigmoid else _compared)(spec, said)
    middle = (*ending, embedding(said, w, spec.vocab, tables=(spec.text,), name="target.words"))
    return (
        ("embed", Block(kind="embed", parts=tuple(tower.stem(spec.tower, seen)))),
        *((f"L{i}", layer) for i in range(spec.layers)),
        ("target", Block(kind="embed", parts=middle, saved_input=pictures)),
        *((f"D{i}", reader) for i in range(spec.text_layers)),
        ("head", Block(kind="head", parts=(*_normed(said, "texts.last", w), *_row(spec, said, "texts", w), *compared), saved_input=texts)),
    )


def _normed(share: Share, name: str, width: int, modules: int = 2) -> list[Part]:
    """F.layer_norm, and its result cast to what came: autocast runs it in fp32."""

    def made(wide: Share) -> list[Part]:
        return [norm(wide, f"{name}.norm", share.rows, width, "layernorm", modules=modules)]

    return in_fp32(share, name, share.rows * width, made) if share.autocast and share.es == share.e else made(share)


def _layer(spec: Clip, share: Share, h: int, attention: list[Part], ffn: int) -> list[Part]:
    """ResidualAttentionBlock."""
    found = []
    for name, mixer in (("attn", attention), ("mlp", mlp(share, h, ffn, spec.activation, bias=True))):
        found += [*_normed(share, name, h), *mixer, residual(share, f"{name}.residual", share.rows, h, dropout=False)]
    return found


def _attention(share: Share, h: int, heads: int, *, masked: bool) -> list[Part]:
    """torch.nn.MultiheadAttention with the batch first: its input in the order of tokens before samples is no tensor of one piece, so that it is copied
    and the biases are added by themselves; queries, keys and values are copied apart, whose gradients are each laid into zeros and added.

    `masked`: texts' causal mask is a tensor, which no flash kernel takes: a memory-efficient one reads it, and returns its result and the gradients in
    another order, which are copied twice (F.multi_head_attention_forward).
    """
    n, e = share.rows * h, share.e
    qkv = linear(share, "attn.qkv", h, 3 * h, bias=True, stream=True, normed=True, modules=2)
    middle = core(share, split_heads(share, heads, heads, h // heads), causal=False, mask=masked, reread=0 if masked else None)
    proj = linear(share, "attn.proj", h, h, bias=True)
    if share.framework.compile:
        return [qkv, middle, proj]
    copy, three = elementwise("copy", share, n, e, e), elementwise("copy", share, 3 * n, e, e)
    bias, zero, add = (
        elementwise("add", share, 3 * n, e, e),
        elementwise("zero", share, 3 * n, 0, e),
        elementwise("add", share, 3 * n, 2 * e, e),
    )
    biased = () if share.framework.linears.separate_bias else (bias,)
    apart: tuple[Work, ...] = (*(copy,) * (6 * masked), zero, copy, zero, copy, add, zero, copy, add, three)
    turned = elementwise("copy", share, n, share.es, share.es)
    return [
        Part(name="attn.turned", forward=(turned,), cls="elementwise", modules=0),
        qkv,
        Part(name="attn.apart", forward=(*biased, three), backward=apart, cls="elementwise", modules=0),
        replace(middle, forward=(*middle.forward, *(copy,) * masked), backward=(*(copy,) * masked, *middle.backward)),
        proj,
    ]


def _row(spec: Clip, share: Share, name: str, width: int) -> list[Part]:
    """The class token's row, a text's last (SigLIP), or that of its token with the largest id, which ends it; its projection, of length one."""
    b, n, es = share.micro, share.rows * width, share.es
    row, zero = b * width * es, elementwise("zero", share, n, 0, es)
    pick: tuple[Work, ...] = ()
    back: tuple[Work, ...] = (zero, MemoryBound("copy", row, row, share.act))
    if name == "texts" and not spec.sigmoid:
        pick = (MemoryBound("reduce", 8 * share.rows, 8 * b, "fp32"), MemoryBound("embedding", row + 8 * b, row, share.act))
        back = (zero, MemoryBound("embedding_backward", row + 8 * b, 2 * row, share.act))
    return [
        Part(name=f"{name}.row", forward=pick, backward=back, cls="elementwise", modules=0),
        linear(share, f"{name}.project", width, spec.width, rows=b, bias=spec.sigmoid, low=False, stream=True),
        length(share, name, spec.width),
    ]


def _compared(spec: Clip, share: Share) -> list[Part]:
    """Features of all samples, the products of this rank's with them by the learned scale, and the cross-entropy of either."""
    b, w, e, ways = share.micro, spec.width, share.e, share.shape.dp
    every, small = b * ways, b * spec.width
    join = elementwise("copy", share, every * w, e, e)
    scale, twice = elementwise("scale", share, small, e, e), elementwise("scale", share, small, 2 * e, e)
    product: Work = Gemm(b, every, w, share.core)
    grads: tuple[Work, ...] = (Gemm(b, w, every, share.core, 1, "dgrad"), Gemm(every, w, b, share.core, 1, "dgrad"), scale)
    fork = elementwise("add", share, small, 2 * e, e)
    total = elementwise("reduce", share, small, e, 0)
    found = [
        Part(
            name="compare", forward=(scale, product) * 2, backward=(*grads, *grads, fork, fork), wgrad=(twice, total) * 2, cls="gemm", tensors=(1,),
            saved=2 * (every * (ways > 1) + 2 * b) * w * e, modules=1,
        ),
        *(loss(share, every, rows=b, name=f"loss.{kind}") for kind in ("pictures", "texts")),
    ]  # fmt: skip
    if ways == 1:
        return found
    gather = Part(
        name="gather",
        forward=(join, join),
        backward=(join, join),
        cls="elementwise",
        seam="dp.features",
        seam_bytes=every * w * e,
        modules=0,
    )
    return [gather, *found]
