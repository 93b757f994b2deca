"""Depthwise convolutions: cuDNN's kernels stream, PyTorch's own are bound by their integers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.cost.depthwise import instructions, is_depthwise
from sim.cost.kernel import kernel_cost
from sim.work import Conv
from topologies.devices import gpu

A100 = gpu("a100-sxm-80gb")
MAPS = Conv(128, 144, 56, 56, 144, 3, 3, groups=144, dtype="tf32")
"""The first 3 x 3 of EfficientNet-B0's second stage, 128 pictures."""


def _seconds(work: Conv, name: str = "a100-sxm-80gb") -> float:
    return kernel_cost(work, gpu(name), sustained=False).seconds


def test_only_a_group_for_each_channel_is_depthwise() -> None:
    assert is_depthwise(MAPS) and is_depthwise(replace(MAPS, c_out=288))
    assert not is_depthwise(replace(MAPS, groups=72)) and not is_depthwise(Conv(8, 1, 28, 28, 16, 3, 3))


def test_a_kernel_of_its_own_walks_every_tap_and_for_the_weight_s_gradient_the_maps_once_for_each() -> None:
    values = 128 * 144 * 56 * 56
    assert instructions(MAPS) == instructions(replace(MAPS, role="dgrad")) == (60 + 9 * 6) * values
    assert instructions(replace(MAPS, role="wgrad")) == 9 * 32 * values
    halved = replace(MAPS, stride=2)
    assert instructions(halved) == instructions(MAPS) / 4  # a thread for each output
    assert instructions(replace(halved, role="dgrad")) == instructions(MAPS)  # for each input
    assert instructions(replace(halved, role="wgrad")) == instructions(replace(MAPS, role="wgrad")) / 4


def test_integers_bind_the_weight_s_gradient_and_wide_kernels() -> None:
    wgrad = replace(MAPS, role="wgrad")
    assert _seconds(wgrad) == pytest.approx(instructions(wgrad) / (108 * A100.clock * 64), rel=1e-6)
    assert _seconds(replace(wgrad, kh=5, kw=5)) == pytest.approx(25 / 9 * _seconds(wgrad), rel=1e-6)
    assert 2 < _seconds(wgrad) / _seconds(MAPS) < 3


def test_few_taps_are_bound_by_the_bytes_where_these_are_slow() -> None:
    narrow, p4 = replace(MAPS, kh=1, kw=1, dtype="fp32"), gpu("p4")
    slow = replace(p4, bandwidth=p4.bandwidth / 4)
    seconds = kernel_cost(narrow, slow, sustained=False).seconds
    assert seconds > narrow.bytes / slow.bandwidth > instructions(narrow) / (20 * p4.clock * 64)


@pytest.mark.parametrize(
    "streamed", [replace(MAPS, channels_last=True), replace(MAPS, dtype="bf16"), replace(MAPS, dtype="fp16", channels_last=True)]
)
def test_what_cudnn_runs_takes_as_long_for_every_role(streamed: Conv) -> None:
    """Side by side or of 16 bits: the bytes alone."""
    assert _seconds(streamed) == _seconds(replace(streamed, role="wgrad")) == pytest.approx(_seconds(replace(streamed, role="dgrad")))
    assert _seconds(streamed) < _seconds(replace(MAPS, role="wgrad"))


def test_other_makers_gpus_have_other_kernels() -> None:
    work = replace(MAPS, dtype="fp32", role="wgrad", kh=7, kw=7)
    assert _seconds(work, "mi210") == pytest.approx(_seconds(replace(work, channels_last=True), "mi210"))


def test_repeats_add_up() -> None:
    assert _seconds(replace(MAPS, repeat=3)) == pytest.approx(3 * _seconds(MAPS))
