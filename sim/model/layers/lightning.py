"""Lightning attention: linear attention whose state fades at a fixed rate for each head, computed in chunks (Qin et al. 2024, Lightning
Attention-2; MiniMax-01, section 2.2)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.check import divisible
from sim.model.layers.activation import sigmoid_gate
from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.layers.mamba import uncut
from sim.model.layers.norm import norm
from sim.model.parts import Part
from sim.model.share import Share
from sim.model.specs.decoder import Lightning
from sim.work import Gemm, MemoryBound, Work


def lightning(share: Share, hidden: int, spec: Lightning, *, fused: bool) -> list[Part]:
    """q, k, v and the gate; SiLU of q, k and v; chunked attention; a norm over all of this rank's heads, times the gate's sigmoid; out_proj
    (transformers' MiniMaxLightningAttention). Heads are split over tp; no linear has a bias."""
    uncut(share, "lightning attention")
    heads = divisible("lightning heads", spec.heads, "tp", share.tp)
    inner = heads * spec.head_dim
    return [
        linear(
            share, "lightning.in_proj", hidden, 4 * inner if fused else (3 * inner, inner), seam="tp.gather",
            seam_bytes=share.over_tp(hidden), stream=True, normed=True, saved_rows=share.srows, modules=2,
        ),
        _silu(share, 3 * inner),
        _chunks(share, spec, heads),
        replace(norm(share, "lightning.norm", share.rows, inner, "rmsnorm", after_residual=False, es=share.e), whole=()),  # split over tp
        sigmoid_gate(share, "lightning.gate", inner),
        linear(share, "lightning.out_proj", inner, hidden, seam="tp.reduce", seam_bytes=share.over_tp(hidden)),
    ]  # fmt: skip


def _silu(share: Share, columns: int) -> Part:
    e, n = share.e, share.rows * columns
    forward, backward = elementwise("activation", share, n, e, e, 4.0), elementwise("activation", share, n, 2 * e, e, 8.0)
    return Part(name="lightning.silu", forward=(forward,), backward=(backward,), cls="activation", saved=n * e)


def _chunks(share: Share, spec: Lightning, heads: int) -> Part:
    """Per chunk of c tokens and head: Q K^T, its faded product with V, K^T V, which goes into the state, and what Q reads from the state before.

    The state passes from chunk to chunk through one memory-bound kernel. Kept are queries, keys and values (LightningAttentionFunction saves
    nothing else); backward makes the states again, then each product's two gradients, and holds states and gradients in fp32.
    """
    c = min(spec.chunk, share.seq)
    chunks = share.micro * -(-share.seq // c)
    d, dtype, many = spec.head_dim, share.core, chunks * heads
    products = tuple(Gemm(m, n, k, dtype, many) for m, n, k in ((c, c, d), (c, d, c), (d, d, c), (c, d, d)))
    back = tuple(Gemm(w.m, w.k, w.n, dtype, w.batch, "dgrad") for w in products for _ in range(2))
    states = 4 * many * d * d
    passing: Work = MemoryBound("add", states, states, "fp32")
    whole = 3 * share.rows * heads * d * share.e
    return Part(
        name="lightning.attention",
        forward=(*products[:3], passing, products[3]),
        backward=(products[2], passing, *back, passing),
        cls="attention",
        saved=whole,
        working=whole + 2 * states,
    )
