"""Attention of words on pictures in layers of its own, with gates (transformers' MllamaCrossAttentionDecoderLayer)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sim.model.layers.attention import core
from sim.model.layers.elementwise import elementwise, scaled
from sim.model.layers.heads import split_heads
from sim.model.layers.linear import casts, linear
from sim.model.layers.norm import norm
from sim.model.parts import Part, Seam
from sim.model.share import Share


def crossed(share: Share, seen: Share, hidden: int, heads: int, kv: int, d: int, *, fused: bool) -> list[Part]:
    """Queries of words, keys and values of pictures (`seen`: whose tokens are a sequence), norms of queries and keys, core, proj, gate.

    The mask that says which words see which pictures counts as nothing: all words see all. Pictures' tokens are kept once for all layers, whose
    gradients of them are summed.
    """
    local = split_heads(share, heads, kv, d)
    q, k, split = local.q * d, local.kv * d, share.tp > 1
    seam: Seam = "tp.gather" if split else ""
    words, tokens = share.rows * hidden * share.e * split, seen.rows * hidden * seen.e * split
    fork = () if share.framework.compile else (elementwise("add", seen, seen.srows * hidden, 2 * seen.es, seen.es),)
    read = linear(seen, "attn.kv", hidden, 2 * k if fused else (k, k), seam=seam, seam_bytes=tokens, stream=True, saved_rows=seen.srows)
    return gated(
        share,
        "attn",
        hidden,
        [
            linear(share, "attn.q", hidden, q, seam=seam, seam_bytes=words, stream=True, normed=True, saved_rows=share.srows, modules=2),
            norm(share, "attn.q_norm", share.rows * local.q, d, "rmsnorm", after_residual=False, es=share.e),
            replace(read, backward=(*read.backward, *fork), saved=read.saved if casts(seen) else 0),
            norm(seen, "attn.k_norm", seen.rows * local.kv, d, "rmsnorm", after_residual=False, es=seen.e),
            core(share, local, causal=False, mask=True, kv_seq=seen.shape.seq),
            linear(share, "attn.proj", q, hidden, seam="tp.reduce" if split else "", seam_bytes=words),
        ],
    )


def gated(share: Share, name: str, hidden: int, parts: Sequence[Part]) -> list[Part]:
    """A mixer's parts, and the learned number that scales what they make; an MLP's rows of words that see no picture are zeroed before."""
    gate = scaled(share, f"{name}.scale", hidden, 1)
    if name == "mlp":
        zeroed = elementwise("scale", share, share.srows * hidden, share.e, share.e)
        gate = replace(gate, forward=(zeroed, *gate.forward), backward=(*gate.backward, zeroed))
    return [*parts, gate]
