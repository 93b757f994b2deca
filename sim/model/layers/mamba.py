"""The Mamba-2 mixer: a state space layer computed in chunks as small matrix products (Dao & Gu 2024, section 6).

Convolution, scan and gated norm are one function of autograd (MambaSplitConv1dScanCombinedFn in mamba_ssm/ops/triton/ssd_combined.py, which
Megatron-Core's and transformers' mixers call): it keeps what in_proj made and the scan's result, and makes the rest again in backward.
"""

from __future__ import annotations

from sim.model.check import divisible
from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.parts import Part
from sim.model.share import Share
from sim.model.specs.decoder import Mamba
from sim.work import Gemm, MemoryBound, Work
from topologies.errors import Refused


def mixer(share: Share, hidden: int, spec: Mamba) -> list[Part]:
    """in_proj, causal convolution, chunked scan, gated norm, out_proj; heads and groups are split over tp."""
    uncut(share, "Mamba-2")
    heads = divisible("mamba heads", spec.heads, "tp", share.tp)
    groups = max(1, spec.groups // share.tp)
    inner, channels = heads * spec.head_dim, heads * spec.head_dim + 2 * groups * spec.state
    projected = inner + channels + heads
    conv = convolution(share, channels, spec.conv)
    return [
        linear(
            share, "mamba.in_proj", hidden, projected, seam="tp.gather", seam_bytes=share.over_tp(hidden), stream=True,
            normed=True, saved_rows=share.srows, modules=2,
        ),
        conv,
        _scan(share, spec, heads, groups, conv.forward),
        _gated_norm(share, inner),
        linear(share, "mamba.out_proj", inner, hidden, seam="tp.reduce", seam_bytes=share.over_tp(hidden)),
    ]  # fmt: skip


def uncut(share: Share, what: str) -> None:
    """Raises `Refused` where context parallelism would cut the sequence: the state's way from rank to rank is not described."""
    if share.shape.cp > 1:
        raise Refused(
            f"cp = {share.shape.cp}: {what} passes its state along the sequence; to pass it from rank to rank is not supported. Set cp = 1"
        )


def convolution(share: Share, channels: int, kernel: int, name: str = "mamba.conv", *, bias: bool = True) -> Part:
    """A depthwise convolution along the sequence with SiLU, one kernel (causal_conv1d): reads and writes each element once."""
    e, n = share.e, share.rows * channels
    return Part(
        name=name,
        forward=(elementwise("activation", share, n, e, e, 2.0 * kernel),),
        backward=(elementwise("activation", share, n, 2 * e, e, 4.0 * kernel),),
        cls="elementwise",
        tensors=(channels * kernel, channels) if bias else (channels * kernel,),
        saved=n * e,
    )


def _scan(share: Share, spec: Mamba, heads: int, groups: int, conv: tuple[Work, ...]) -> Part:
    """Per chunk of q tokens: C B^T (q x q, for a group), its product with X, the chunk's state, and C times the state before.

    Backward runs the convolution again, C B^T and the states (_mamba_chunk_scan_combined_bwd), then each product's two gradients. Between chunks
    the states pass through one memory-bound kernel. Kept is dt alone: the convolution keeps its input, the norm the result. Backward holds the
    convolution's result, gradients of it, of z and of the scan's result, and in fp32 the states and C B^T, each with its gradient.
    """
    q = min(spec.chunk, share.seq)
    chunks = share.micro * -(-share.seq // q)
    d, s, dtype, e = spec.head_dim, spec.state, share.core, share.e
    products = (
        Gemm(q, q, s, dtype, chunks * groups),
        Gemm(q, d, q, dtype, chunks * heads),
        Gemm(d, s, q, dtype, chunks * heads),
        Gemm(q, d, s, dtype, chunks * heads),
    )
    states, scores = 4 * chunks * heads * d * s, 4 * chunks * groups * q * q
    passing: Work = MemoryBound("add", states, states, "fp32")
    back = tuple(Gemm(w.m, w.k, w.n, dtype, w.batch, "dgrad") for w in products for _ in range(2))
    return Part(
        name="mamba.scan",
        forward=(*products[:3], passing, products[3]),
        backward=(*conv, products[0], products[2], passing, *back, passing),
        cls="attention",
        tensors=(heads, heads, heads),
        saved=share.rows * heads * e,
        working=share.rows * (4 * heads * d + 4 * groups * s) * e + 2 * (states + scores),
    )


def _gated_norm(share: Share, inner: int) -> Part:
    """norm(y silu(z)): one kernel each way, with partial sums of the weight's gradient. Both inputs are kept
    (mamba_ssm/ops/triton/layernorm_gated.py)."""
    e, n = share.e, share.rows * inner
    return Part(
        name="mamba.norm",
        forward=(elementwise("rmsnorm", share, n, 2 * e, e, 13.0, share.rows),),
        backward=(elementwise("rmsnorm", share, n, 3 * e, 2 * e, 26.0, share.rows), MemoryBound("reduce", n // 8, 4 * inner, share.act)),
        cls="norm",
        tensors=(inner,),
        saved=2 * n * e + 4 * share.rows,
    )
