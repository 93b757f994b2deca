"""Seconds of a 2-D convolution: an implicit GEMM with the convolution's own memory traffic.

    fwd    m = batch x pixels out,  n = c_out,            k = c_in kh kw
    dgrad  m = batch x pixels in,   n = c_in,             k = c_out kh kw
    wgrad  m = c_out,               n = c_in kh kw,       k = batch x pixels out

(cuDNN implicit precomputed GEMM; NVIDIA convolution user's guide.) 3 x 3 kernels of stride 1 in fp32 run by Winograd's algorithm, which
multiplies fewer numbers than the product has: in one kernel where channels are few, in kernels of its own where they are many, the
faster of the two (cuDNN's choices by shape: tensorflow issue 9322); gradients of weights in kernels of its own alone (cuDNN, bwd_filter
algorithms). 16-bit convolutions of three channels (pictures) run far below the rate of the GEMM, where that was measured.
Grouped convolutions are one GEMM per group; depthwise ones have a module of their own (`sim.cost.depthwise`).
Parameters: `params/conv.toml`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import msgspec

from sim.cost.depthwise import depthwise_seconds, is_depthwise
from sim.cost.device import peak_flops, table
from sim.cost.gemm import fit_of, sustained_clock
from sim.cost.memory_bound import memory_bound_cost
from sim.cost.price import Source
from sim.cost.tiles import GemmFit, gemm_seconds
from sim.work import BYTES, Conv, MemoryBound
from topologies.hardware import Gpu

_TILE = 4
"""Side of the output tile of F(4 x 4, 3 x 3)."""
_PLACES = 36
"""Values of a transformed tile: 6 x 6."""


class Odd(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of convolutions of 16-bit maps with an odd number of channels, whose layout tensor cores cannot load."""

    arch: tuple[str, ...]
    fwd: float
    """FLOP/s over the peak of the GPU's fp32 units; the same for `dgrad` and `wgrad`."""
    dgrad: float
    wgrad: float


class ConvFit(msgspec.Struct, frozen=True, kw_only=True):
    pointwise: float
    direct: float
    winograd: float
    depthwise: float


@cache
def _fit() -> tuple[ConvFit, int]:
    return table("conv", "share", ConvFit), table("conv", "align", dict[str, int])["channels"]


@cache
def _odd() -> Odd:
    return table("conv", "odd", Odd)


def conv_cost(work: Conv, gpu: Gpu, sustained: bool) -> tuple[float, Source]:
    """Seconds of all repeats; the source is always `assumed`, since rates are derived from GEMMs. Raises `Refused` for a dtype without units."""
    share, align = _fit()
    if is_depthwise(work):
        return depthwise_seconds(work, gpu, share.depthwise), "assumed"
    size = BYTES[work.dtype]
    product = _Rate(
        gpu, fit_of(gpu, work.dtype)[0], peak_flops(gpu, work.dtype), size, sustained_clock(gpu, work.dtype) if sustained else None
    )
    matrix = _matrix(work, align if size < 4 else 1)
    seconds = product.seconds(*matrix, _part(work, share), work.groups, work.bytes / work.repeat)
    if _saves(work):
        if work.role != "wgrad":
            seconds = min(seconds, product.seconds(*matrix, share.winograd, 1, work.bytes / work.repeat))
        seconds = min(seconds, _transformed(work, share, product))
    if size < 4 and work.groups == 1 and work.c_in % 2 and gpu.arch in _odd().arch:
        share_of_units: float = getattr(_odd(), work.role)
        seconds = max(seconds, work.flops / work.repeat / (share_of_units * peak_flops(gpu, "fp32")))
    return seconds * work.repeat, "assumed"


class _Rate(NamedTuple):
    """All that decides the rate of a GPU's GEMMs of one dtype: arguments of `gemm_seconds`."""

    gpu: Gpu
    fit: GemmFit
    peak: float
    size: float
    clock: float | None

    def seconds(self, m: int, n: int, k: int, part: float, batch: int, moved: float | None) -> float:
        return gemm_seconds(m, n, k, self.gpu, self.fit, self.peak * part, self.size, max(self.size, 2.0), batch, self.clock, moved)


def _saves(work: Conv) -> bool:
    """True where Winograd's algorithms apply: fp32, 3 x 3, stride 1, one group, NCHW (in NHWC Mask R-CNN in fp32 is slower: its README, known issues)."""
    plain = work.dtype == "fp32" and work.stride == 1 and work.groups == 1 and not work.channels_last
    return plain and work.kh == work.kw == 3


def _transformed(work: Conv, share: ConvFit, product: _Rate) -> float:
    """Seconds of Winograd's algorithm in kernels of its own, F(4 x 4, 3 x 3): both operands are transformed in tiles of 6 x 6, of which 4 x 4 are
    new, multiplied place by place (36 products), and the results transformed back."""
    oh, ow = work.out
    tiles = work.batch * -(-oh // _TILE) * -(-ow // _TILE)
    x, y, w = work.batch * work.c_in * work.h * work.w, work.batch * work.c_out * oh * ow, 9 * work.c_in * work.c_out
    places = {"x": tiles * work.c_in, "y": tiles * work.c_out, "w": work.c_in * work.c_out}
    into, back, matrix = {
        "fwd": ("xw", "y", (tiles, work.c_out, work.c_in)),
        "dgrad": ("yw", "x", (tiles, work.c_in, work.c_out)),
        "wgrad": ("xy", "w", (work.c_out, work.c_in, tiles)),
    }[work.role]
    plain = {"x": 4 * x, "y": 4 * y, "w": 4 * w}
    kernels = [MemoryBound("copy", plain[one], 4 * _PLACES * places[one], "fp32") for one in into]
    kernels.append(MemoryBound("copy", 4 * _PLACES * places[back], plain[back], "fp32"))
    moves = sum(memory_bound_cost(kernel, product.gpu)[0] for kernel in kernels)
    return moves + product.seconds(*matrix, share.pointwise, _PLACES, None)


def _part(work: Conv, share: ConvFit) -> float:
    return share.pointwise if work.kh * work.kw == 1 else share.direct


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
