"""Points of a calibration as works, and where a convolution lies among them."""

from __future__ import annotations

import math

from sim.cost.calibration import Sample
from sim.work import Attention, Conv, Gemm

_APART = 4.0
"""Between kinds of convolution, in the measure of sizes' logarithms: as a fifty times larger one."""


def attention_name(work: Attention) -> str:
    """Of its row in the table of attention."""
    return ("bwd" if work.backward else "fwd") + ("" if work.causal else "_full")


def product_of(s: Sample) -> Gemm:
    """What was timed for a row of the table of products."""
    m, n, k = s.shape
    return Gemm(m, n, k, s.dtype, 1, s.name)


def attention_of(s: Sample) -> Attention:
    """What was timed for a row of the table of attention."""
    batch, heads, seq, d = s.shape
    way, _, full = s.name.partition("_")
    return Attention(batch, heads, heads, seq, seq, d, causal=not full, dtype=s.dtype, backward=way == "bwd")


def convolution_of(s: Sample) -> Conv:
    """What was timed for a row of the table of convolutions."""
    batch, c_in, h, w, c_out, kh, kw, stride, groups = s.shape
    return Conv(batch, c_in, h, w, c_out, kh, kw, stride, groups=groups, dtype=s.dtype, role=s.name)


def place_of(work: Conv) -> tuple[float, ...]:
    """Where a convolution lies among the measured ones, in logarithms: depth of the product, output channels, the root of the pixels. And, far
    apart, its kind: whether an output reads more than one pixel, whether outputs skip pixels, whether channels are grouped, or alone. Libraries
    have an algorithm for each kind (oneDNN: a product of matrices, Winograd's, a direct one)."""
    oh, ow = work.out
    kind = (work.kh * work.kw > 1, work.stride > 1, work.groups > 1, 1 < work.groups == work.c_in)
    size = math.log(work.c_in / work.groups * work.kh * work.kw), math.log(work.c_out), math.log(work.batch * oh * ow) / 2
    return *size, *(_APART * yes for yes in kind)
