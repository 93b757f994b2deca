"""The gated delta rule mixer: linear attention whose state forgets and corrects itself, computed in chunks (Yang et al. 2024)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.check import divisible
from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.layers.mamba import convolution, uncut
from sim.model.layers.norm import norm
from sim.model.parts import Part, everywhere
from sim.model.share import Share
from sim.model.specs.decoder import Delta
from sim.work import Gemm, MemoryBound, Work


def delta_rule(share: Share, hidden: int, spec: Delta) -> list[Part]:
    """q, k, v and the gate z; decay and step for each head; causal convolution; chunked rule; gated norm; out_proj (Qwen3NextGatedDeltaNet). With rates
    for each channel (fla's KimiDeltaAttention) these and the gate are made apart.

    Heads are split over tp. The convolution has no bias.
    """
    uncut(share, "the delta rule")
    keys, values = (divisible("delta heads", heads, "tp", share.tp) for heads in (spec.key_heads, spec.value_heads))
    k, v = keys * spec.key_dim, values * spec.value_dim
    into = linear(
        share, "delta.in_proj", hidden, 2 * k + v * (1 if spec.channels else 2), seam="tp.gather", seam_bytes=share.over_tp(hidden), stream=True,
        normed=True, saved_rows=share.srows, modules=2,
    )  # fmt: skip
    return [
        into,
        *(_by_channel(share, hidden, spec, keys, values) if spec.channels else [_beside(share, hidden, "delta.rates", 2 * values)]),
        convolution(share, 2 * k + v, spec.conv, "delta.conv", bias=False),
        _rule(share, spec, keys, values),
        _gated_norm(share, values, spec.value_dim),
        linear(share, "delta.out_proj", v, hidden, seam="tp.reduce", seam_bytes=share.over_tp(hidden)),
    ]


def _beside(share: Share, hidden: int, name: str, width: int | tuple[int, ...]) -> Part:
    """A narrow projection in 16 bits of what in_proj reads and keeps: two gradients of one input."""
    small = linear(share, name, hidden, width, low=False, stream=True)
    join = elementwise("add", share, share.srows * hidden, 2 * share.e, share.e)
    return replace(small, saved=0, backward=(*small.backward, join))


def _by_channel(share: Share, hidden: int, spec: Delta, keys: int, values: int) -> list[Part]:
    """Bottlenecks of the rates and the gate, whole on each rank of tp; the step of each head; what comes out of the bottlenecks; the rates in fp32,
    summed up within each chunk (kda_gate_fwd, chunk_local_cumsum)."""
    narrow, seam_bytes = spec.value_dim, share.over_tp(spec.value_dim)
    k, v, e = keys * spec.key_dim, values * spec.value_dim, share.e
    n = share.rows * values * spec.key_dim  # heads of keys are repeated
    return [
        everywhere(_beside(share, hidden, "delta.down", (narrow, narrow))),
        _beside(share, hidden, "delta.step", values),
        linear(share, "delta.rates", narrow, k, seam="tp.copy", seam_bytes=seam_bytes, low=False),
        linear(share, "delta.gate", narrow, v, seam="tp.copy", seam_bytes=seam_bytes, low=False),
        Part(
            name="delta.decay",
            forward=(elementwise("activation", share, n, e, 4, 4.0), elementwise("add", share, n, 4, 4)),
            backward=(elementwise("add", share, n, 4, 4), elementwise("activation", share, n, 4 + e, e, 8.0)),
            cls="elementwise",
            tensors=(values, k),
            saved=n * 4,
        ),
    ]


def _rule(share: Share, spec: Delta, keys: int, values: int) -> Part:
    """Per chunk of c tokens and value head: K K^T and its triangular inverse (as a product of c x c), the inverse times K and V, Q K^T, its product
    with the corrected values, and three products with the state: what K and Q read from it, and what is written
    (Yang et al. 2024, section 3.3; fla's chunk_gated_delta_rule). Queries and keys are normalised first; key heads are repeated.

    Backward first makes again what the inverse times K and V is, and the states (chunk_gated_delta_rule_bwd), then does each product's two
    gradients. The state passes from chunk to chunk through one memory-bound kernel. Kept are queries, keys and values of all value heads, the
    inverse, decay and step (ChunkGatedDeltaRuleFunction); backward holds states, what the products made of keys and values, and their gradients.
    """
    c = min(spec.chunk, share.seq)
    chunks = share.micro * -(-share.seq // c)
    dk, dv, dtype, e = spec.key_dim, spec.value_dim, share.core, share.e
    many = chunks * values
    sizes = ((c, c, dk), (c, c, c), (c, dk, c), (c, dv, c), (c, c, dk), (c, dv, c), (c, dv, dk), (c, dv, dk), (dk, dv, c))
    products = tuple(Gemm(m, n, k, dtype, many) for m, n, k in sizes)
    back = tuple(Gemm(w.m, w.k, w.n, dtype, w.batch, "dgrad") for w in products for _ in range(2))
    states, again = 4 * many * dk * dv, (products[2], products[3], products[6], products[8])
    passing: Work = MemoryBound("add", states, states, "fp32")
    unit = elementwise("rmsnorm", share, 2 * share.rows * keys * dk, e, e, 8.0, 2 * share.rows * keys)
    ununit = elementwise("rmsnorm", share, 2 * share.rows * keys * dk, 2 * e, e, 16.0, 2 * share.rows * keys)
    return Part(
        name="delta.rule",
        forward=(unit, *products, passing),
        backward=(*again, passing, passing, *back, ununit),
        cls="attention",
        tensors=() if spec.channels else (values, values),
        saved=share.rows * values * ((2 * dk + dv + c) * e + 4 + e),
        working=share.rows * values * 3 * (dk + dv) * e + 2 * many * dk * dv * e,
    )


def _gated_norm(share: Share, heads: int, width: int) -> Part:
    """norm(y) x silu(z) over each head, with one weight for all heads."""
    e, n = share.e, share.rows * heads * width
    part = norm(share, "delta.norm", share.rows * heads, width, "rmsnorm", after_residual=False, es=e)
    forward, backward = elementwise("glu", share, n, 2 * e, e, 5.0), elementwise("glu", share, n, 3 * e, 2 * e, 10.0)
    return replace(part, forward=(*part.forward, forward), backward=(backward, *part.backward), saved=part.saved + 2 * n * e)
