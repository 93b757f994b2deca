"""Seconds of a 2-D convolution: an implicit GEMM with the convolution's own memory traffic.

    fwd    m = batch x pixels out,  n = c_out,            k = c_in kh kw
    dgrad  m = batch x pixels in,   n = c_in,             k = c_out kh kw
    wgrad  m = c_out,               n = c_in kh kw,       k = batch x pixels out

(cuDNN implicit precomputed GEMM; NVIDIA convolution user's guide.) 3 x 3 kernels of stride 1 in fp32 run by Winograd's algorithm, which
multiplies fewer numbers than the product has: they pass its rate. Grouped convolutions are one GEMM per group;
depthwise ones read and write at a share of streaming bandwidth. Parameters: `params/conv.toml`.
"""

from __future__ import annotations

from functools import cache

import msgspec

from sim.cost.device import document, peak_flops
from sim.cost.gemm import fit_of, sustained_clock
from sim.cost.memory_bound import memory_bound_cost
from sim.cost.price import Source
from sim.cost.tiles import gemm_seconds
from sim.work import BYTES, Conv, MemoryBound
from topologies.hardware import Gpu


class ConvFit(msgspec.Struct, frozen=True, kw_only=True):
    pointwise: float
    direct: float
    winograd: float
    planar: float
    depthwise: float


@cache
def _fit() -> tuple[ConvFit, int]:
    text = document("conv")
    align = msgspec.convert(text["align"], dict[str, int])["channels"]
    return msgspec.convert(text["share"], ConvFit), align


def conv_cost(work: Conv, gpu: Gpu, sustained: bool = True) -> tuple[float, Source]:
    """Seconds of all repeats, always `assumed`: rates follow from GEMMs. Raises `Refused` for a dtype without units."""
    share, align = _fit()
    if work.groups == work.c_in and work.c_in > 1:
        return _depthwise(work, gpu, share.depthwise), "assumed"
    peak = peak_flops(gpu, work.dtype)
    size = BYTES[work.dtype]
    m, n, k = _matrix(work, align if size < 4 else 1)
    fit, _ = fit_of(gpu, work.dtype)
    part = _part(work, share)
    clock = sustained_clock(gpu, work.dtype) if sustained else None
    moved = work.bytes / work.repeat
    seconds = gemm_seconds(m, n, k, gpu, fit, peak * part, size, max(size, 2.0), work.groups, clock, moved)
    return seconds * work.repeat, "assumed"


def _part(work: Conv, share: ConvFit) -> float:
    if work.dtype == "tf32" and not work.channels_last:
        return share.planar
    if work.kh * work.kw == 1:
        return share.pointwise
    saves = work.dtype == "fp32" and work.kh == work.kw == 3 and work.stride == 1 and work.groups == 1
    return share.winograd if saves else share.direct


def _matrix(work: Conv, align: int) -> tuple[int, int, int]:
    """(m, n, k) of one group's GEMM."""
    oh, ow = work.out
    c_in = -(-(work.c_in // work.groups) // align) * align
    c_out = -(-(work.c_out // work.groups) // align) * align
    window = work.kh * work.kw
    if work.role == "dgrad":
        return work.batch * work.h * work.w, c_in, max(1, c_out * window // work.stride**2)
    if work.role == "wgrad":
        return c_out, c_in * window, work.batch * oh * ow
    return work.batch * oh * ow, c_out, c_in * window


def _depthwise(work: Conv, gpu: Gpu, share: float) -> float:
    moved = round(work.bytes / work.repeat / share)
    seconds, _ = memory_bound_cost(MemoryBound("depthwise", moved, 0, work.dtype), gpu)
    return seconds * work.repeat
