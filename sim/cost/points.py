"""Turns the points of a calibration into works, and convolutions into coordinates between which distances are taken."""

from __future__ import annotations

import math

from sim.cost.calibration import Sample
from sim.work import Attention, Conv, Gemm

_APART = 4.0
"""Distance between kinds of convolution, in natural logarithms of sizes: as far as a size that is fifty times larger."""


def attention_name(work: Attention) -> str:
    """The name of the work's rows in the table of attention."""
    return ("bwd" if work.backward else "fwd") + ("" if work.causal else "_full")


def product_of(s: Sample) -> Gemm:
    """The GEMM that was timed for a row of the table of products."""
    m, n, k = s.shape
    return Gemm(m, n, k, s.dtype, 1, s.name)


def attention_of(s: Sample) -> Attention:
    """The attention that was timed for a row of its table."""
    batch, heads, seq, d = s.shape
    way, _, full = s.name.partition("_")
    return Attention(batch, heads, heads, seq, seq, d, causal=not full, dtype=s.dtype, backward=way == "bwd")


def convolution_of(s: Sample) -> Conv:
    """The convolution that was timed for a row of its table."""
    batch, c_in, h, w, c_out, kh, kw, stride, groups = s.shape
    return Conv(batch, c_in, h, w, c_out, kh, kw, stride, groups=groups, dtype=s.dtype, role=s.name)


def place_of(work: Conv) -> tuple[float, ...]:
    """Coordinates of a convolution. Three are logarithms: of the depth k of its GEMM, of the output channels, of the square root of the output
    pixels of the batch. The others tell its kind, and are `_APART` or 0: kernels larger than 1 x 1, a stride above 1, groups, depthwise. Libraries
    have an algorithm for each kind (oneDNN: a product of matrices, Winograd's, a direct one)."""
    oh, ow = work.out
    kind = (work.kh * work.kw > 1, work.stride > 1, work.groups > 1, 1 < work.groups == work.c_in)
    size = math.log(work.c_in / work.groups * work.kh * work.kw), math.log(work.c_out), math.log(work.batch * oh * ow) / 2
    return *size, *(_APART * yes for yes in kind)
