"""What SigLIP has otherwise than CLIP: attention as timm has it, patches pooled by a learned query, and a loss of pairs, each for itself (Zhai et al. 2023).

Kernels as open_clip runs them: the vision tower is timm's (timm/layers/attention_pool.py: AttentionPoolLatent), the loss SigLipLoss (src/open_clip/loss.py):
this rank's pictures with its own texts, then with each other rank's as they come round (`sim.lower.data_parallel.features`).
"""

from __future__ import annotations

from sim.model.layers.attention import core
from sim.model.layers.elementwise import elementwise, residual
from sim.model.layers.grouped_query import grouped_query
from sim.model.layers.heads import split_heads
from sim.model.layers.linear import linear
from sim.model.layers.mlp import mlp
from sim.model.layers.norm import norm
from sim.model.parts import Part
from sim.model.share import Share
from sim.model.specs.clip import Clip
from sim.work import Gemm, Work

Kernels = tuple[Work, ...]


def attention(share: Share, h: int, heads: int) -> list[Part]:
    """Queries, keys and values of one product."""
    return grouped_query(share, h, heads, heads, h // heads, qkv_bias=True, proj_bias=True, fused=True, causal=False)


def pooled(spec: Clip, seen: Share, one: Share) -> list[Part]:
    """One learned query of each picture on all its patches, and an MLP. `one`: the share whose sequences have one token."""
    h = spec.hidden
    keys = linear(seen, "pool.kv", h, 2 * h, bias=True, stream=True, modules=2)
    middle = core(one, split_heads(one, spec.heads, spec.heads, h // spec.heads), causal=False, kv_seq=seen.seq, name="pool.core")
    latent = Part(
        name="pool.query", wgrad=(elementwise("reduce", one, one.rows * h, one.e, 0),), cls="elementwise", tensors=(h,), modules=0
    )
    return [
        latent,
        linear(one, "pool.q", h, h, bias=True, low=False),
        keys,
        middle,
        linear(one, "pool.proj", h, h, bias=True, low=False),
        norm(one, "pool.norm", one.rows, h, "layernorm"),
        *mlp(one, h, spec.tower.ffn, spec.activation, bias=True, prefix="pool.mlp"),
        residual(one, "pool.residual", one.rows, h, dropout=False),
    ]


def length(share: Share, name: str, width: int) -> Part:
    """Features of length one (F.normalize): the norm of each row, and the quotient."""
    n, e = share.micro * width, share.e
    whole, divide, two = (
        elementwise(what, share, n, *sizes) for what, sizes in (("reduce", (e, 0)), ("scale", (e, e)), ("add", (2 * e, e)))
    )
    back = (divide, two, whole, divide, two)
    return Part(name=f"{name}.length", forward=(whole, divide), backward=back, cls="elementwise", saved=2 * n * e, modules=0)


def compared(spec: Clip, share: Share) -> list[Part]:
    """The loss of this rank's pairs, and of its pictures with all other ranks' texts, which are none of theirs."""
    b, w, e = share.micro, spec.width, share.e
    n, small, others = b * b, b * spec.width, share.shape.dp - 1
    kept = (2 * n + 2 * b * w) * e
    eye: Kernels = (elementwise("zero", share, n, 0, e), elementwise("scale", share, n, e, e), elementwise("add", share, n, 2 * e, e))
    forward, backward = _pairs(share, b, w)
    own = Part(
        name="compare", forward=(*forward, *eye), backward=backward, wgrad=(elementwise("reduce", share, small + n, e, 0),), cls="gemm", tensors=(1, 1),
        saved=kept,
    )  # fmt: skip
    if not others:
        return [own]
    both = elementwise("add", share, small, 2 * e, e)  # of pictures, with the gradients so far; of texts, with those that came back
    ring = Part(
        name="others", forward=forward, backward=(*backward, both, both), cls="gemm", saved=others * kept, seam="dp.ring", seam_bytes=small * e, modules=0
    )  # fmt: skip
    return [own, ring]


def _pairs(share: Share, b: int, w: int) -> tuple[Kernels, Kernels]:
    """Pictures times the scale, their products with texts, the bias; labels of -1; the logarithm of the sigmoid, and its sum. And the gradients."""
    n, e = b * b, share.e
    scale, change, two = (
        elementwise("scale", share, b * w, e, e),
        elementwise("scale", share, n, e, e),
        elementwise("scale", share, n, 2 * e, e),
    )
    write, total = elementwise("zero", share, n, 0, e), elementwise("reduce", share, n, e, 0)
    sigmoid, back = elementwise("activation", share, n, e, e, 8.0), elementwise("activation", share, n, 2 * e, e, 8.0)
    forward: Kernels = (scale, Gemm(b, b, w, share.core), change, write, change, two, sigmoid, change, total)
    of_logits: Kernels = (write, change, back, two, total)
    of_features: Kernels = (
        Gemm(b, w, b, share.core, 1, "dgrad"),
        Gemm(b, w, b, share.core, 1, "dgrad"),
        scale,
        elementwise("scale", share, b * w, 2 * e, e),
    )
    return forward, (*of_logits, *of_features)
