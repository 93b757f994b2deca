"""Seconds of a depthwise convolution: memory bandwidth bounds cuDNN's kernels, integer instructions for indices bound PyTorch's own.

Maps whose channels lie side by side (NHWC), and maps of 16 bits, go to cuDNN: bytes at a share of the streaming rate. fp32 and tf32 maps in NCHW
go to kernels of PyTorch's own (aten/src/ATen/native/Convolution.cpp, use_cudnn_depthwise), whose work is seen in their source
(aten/src/ATen/native/cuda/DepthwiseConv2d.cu):

    fwd    a thread for each output value: its place by three divisions, then bounds, address and a product for each tap
    dgrad  the same for each input value
    wgrad  a block for each channel and tap, which walks all output values: place, bounds and two addresses for every one

so the weight's gradient takes kh kw times as many steps as the map has values, each longer than a tap of the others. Seconds: the larger of

    bytes / streaming rate          integer instructions / (SMs x clock x `lanes`)

TensorFlow's kernels are of the same kind (core/kernels/depthwise_conv_op_gpu.h). Parameters: `params/conv.toml`, `[own]`.
"""

from __future__ import annotations

from functools import cache

import msgspec

from sim.cost.device import table
from sim.cost.memory_bound import memory_bound_cost
from sim.work import BYTES, Conv, MemoryBound
from topologies.hardware import Gpu


class Own(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of 32-bit integer instructions in PyTorch's own kernels."""

    place: float
    """In each thread, to find batch, channel, row and column of its value."""
    tap: float
    """For each tap of the filter."""
    step: float
    """In the weight's gradient, for each output value and tap."""
    lanes: float
    """Instructions of one thread that an SM completes in one clock."""


@cache
def _own() -> Own:
    return table("conv", "own", Own)


def is_depthwise(work: Conv) -> bool:
    """True where every input channel is a group of its own."""
    return work.groups == work.c_in > 1


def depthwise_seconds(work: Conv, gpu: Gpu, share: float) -> float:
    """Seconds of all repeats. `share`: the part of the streaming rate that cuDNN's kernels reach."""
    moved = work.bytes / work.repeat
    if BYTES[work.dtype] < 4 or work.channels_last or not gpu.arch.startswith("sm"):
        return _streamed(work, moved / share, gpu) * work.repeat
    seconds = max(_streamed(work, moved, gpu), instructions(work) / (gpu.sms * gpu.clock * _own().lanes))
    return seconds * work.repeat


def _streamed(work: Conv, moved: float, gpu: Gpu) -> float:
    return memory_bound_cost(MemoryBound("depthwise", round(moved), 0, work.dtype), gpu)[0]


def instructions(work: Conv) -> float:
    """Integer instructions of one launch of PyTorch's own kernel."""
    own, taps, (oh, ow) = _own(), work.kh * work.kw, work.out
    outputs = work.batch * work.c_out * oh * ow
    if work.role == "wgrad":
        return own.step * taps * outputs
    values = work.batch * work.c_in * work.h * work.w if work.role == "dgrad" else outputs
    return (own.place + own.tap * taps) * values
