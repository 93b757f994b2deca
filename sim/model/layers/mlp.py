"""The dense MLP of a transformer, plain or gated, split over tp."""

from __future__ import annotations

from sim.model.check import divisible
from sim.model.layers.activation import activation
from sim.model.layers.linear import linear
from sim.model.parts import Part
from sim.model.share import Share
from sim.model.specs.fields import GATED


def mlp(
    share: Share,
    hidden: int,
    ffn: int,
    kind: str,
    *,
    bias: bool = False,
    fused: bool = True,
    frozen: bool = False,
    prefix: str = "mlp",
    local: bool = False,
) -> list[Part]:
    """up (with gate), activation, down. Column-parallel then row-parallel (Shoeybi et al. 2019, section 3). `local`: others gather its input and
    sum its output."""
    inner = divisible(f"{prefix} width", ffn, "tp", share.tp)
    gated = kind in GATED
    widths: int | tuple[int, ...] = inner
    if gated:
        widths = 2 * inner if fused else (inner, inner)
    seam_bytes = 0 if local else share.over_tp(hidden)
    joined = share.framework.elementwise.fused_activation and share.framework.elementwise.quantising_activation
    up = linear(
        share, f"{prefix}.up", hidden, widths, bias=bias, seam="tp.gather", seam_bytes=seam_bytes, stream=True,
        normed=prefix == "mlp", fused_bias=joined, fused_grad=joined, saved_rows=share.srows, frozen=frozen, modules=2,
    )  # fmt: skip
    act = activation(
        share, f"{prefix}.act", share.rows, inner, kind, halves=fused and share.framework.linears.joins_gradients,
        reread=not (share.fp8 or frozen),
    )  # fmt: skip
    down = linear(
        share, f"{prefix}.down", inner, hidden, bias=bias, seam="tp.reduce", seam_bytes=seam_bytes,
        fused_input=joined, frozen=frozen,
    )  # fmt: skip
    return [up, act, down]
