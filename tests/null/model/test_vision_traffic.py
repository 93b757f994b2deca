"""Bytes of batch norm with its ReLU, and of squeeze and excitation, as the framework's kernels move them."""

from __future__ import annotations

import msgspec
import pytest

from sim.framework.framework import load_framework
from sim.model.parts import Part, Shape
from sim.model.pictures.maps import up_convolution
from sim.model.pictures.resnet import residual_block
from sim.model.pictures.vision import Map, convolution, normalised, squeeze
from sim.model.share import Share, share_of
from sim.model.specs.spec import Cnn
from sim.work import MemoryBound

MAP = Map(256, 56, 56)
RESNET = Cnn(arch="resnet", depth=50)
ELEMENTS = 32 * 256 * 56 * 56


def share(**changes: object) -> Share:
    framework = load_framework("pytorch-native-amp").but(**changes)
    found = share_of(Shape(micro=32, seq=1, precision="fp16"), framework, "math")
    return msgspec.structs.replace(found, es=found.e)


def moved(part: Part, backward: bool) -> float:
    """Bytes for each element of the map."""
    works = part.backward if backward else part.forward
    return sum(work.bytes for work in works if isinstance(work, MemoryBound)) / ELEMENTS


@pytest.mark.parametrize(
    ("changes", "forward", "backward"),
    [
        ({}, 3 * 2 + 2 * 2, 5 * 2 + 3 * 2),  # norm, then ReLU
        ({"elementwise": {"fused_activation": True}}, 3 * 2, 5 * 2 + 1 / 8),  # a bit tells what passed
        ({"compile": True}, 3 * 2, 6 * 2),  # the output tells
    ],
)
def test_batch_norm_and_relu(changes: dict[str, bool], forward: float, backward: float) -> None:
    part = normalised(share(**changes), "bn", MAP)
    assert (moved(part, False), moved(part, True)) == (pytest.approx(forward), pytest.approx(backward))


def test_squeeze_and_excitation_in_kernels_of_its_own_or_fused() -> None:
    def total(found: list[Part]) -> float:
        return sum(moved(part, backward) for part in found if part.name.endswith(("mean", "scale")) for backward in (False, True))

    eager, fused = total(squeeze(share(), MAP)), total(squeeze(share(compile=True), MAP))
    assert eager == pytest.approx(16 * 2, rel=0.01)  # forward 1 + 3 (with the residual); backward 1 + 2 + 3 + 1 + 2 + 3 passes of 2 bytes
    assert fused == pytest.approx(11 * 2, rel=0.01)  # 1 + 3; 1 + 3 + 3: ReLU's output is read where the gradient is


@pytest.mark.parametrize(("precision", "kernel"), [("fp16", "permute"), ("fp32", "add")])
def test_the_mean_s_gradient_is_transposed_where_maps_are_channels_last(precision: str, kernel: str) -> None:
    found = share_of(Shape(micro=32, seq=1, precision=precision), load_framework("pytorch-native-amp"), "math")
    last = squeeze(found, MAP)[-1].backward[-1]
    assert isinstance(last, MemoryBound) and last.what == kernel


@pytest.mark.parametrize(
    ("precision", "habits", "turned"),
    [
        ("fp16", {}, False),
        ("fp16", {"maps": {"planar": True}}, True),
        ("fp32", {"maps": {"planar": True}}, False),  # no tensor cores
        ("tf32", {}, True),
        ("tf32", {"maps": {"channels_last": True}}, False),
    ],
)
def test_tensor_cores_take_maps_whose_channels_lie_side_by_side(precision: str, habits: dict[str, bool], turned: bool) -> None:
    """NCHW maps are copied: input and output forward, both gradients backward, input and gradient for the weights."""
    habit = load_framework("pytorch-native-amp").but(**habits)
    found = share_of(Shape(micro=32, seq=1, precision=precision), habit, "math")
    for part, y in (convolution(found, "conv", MAP, 512, 3, stride=2), up_convolution(found, "up", MAP, 128)):
        for works in (part.forward, part.backward, part.wgrad):
            copied = [work.bytes for work in works if isinstance(work, MemoryBound) and work.what == "copy"]
            assert copied == ([2 * found.e * ELEMENTS, 2 * found.e * 32 * y.size] if turned else [])
    depthwise, _ = convolution(found, "conv", MAP, 256, 3, groups=256)
    assert not any(isinstance(work, MemoryBound) and work.what == "copy" for work in depthwise.backward)


def test_norms_that_convolutions_sum_and_apply() -> None:
    """A bottleneck of 4 x 64 channels: its two narrow norms read and write nothing of their maps, the last one adds in one reading of each."""
    habits = load_framework("mlperf-mxnet")
    fused, plain = (
        {
            part.name: part
            for part in residual_block(RESNET, share_of(Shape(micro=32, seq=1, precision="fp16"), framework, "math"), MAP, 64, 1)[0]
        }
        for framework in (habits.but(elementwise={"norm_kernels": "convolved"}), habits)
    )
    assert list(fused) == list(plain) == ["conv1", "bn1", "conv2", "bn2", "conv3", "bn3"]
    assert moved(plain["bn1"], False) == pytest.approx(3 * 2 / 4) and moved(plain["bn3"], False) == pytest.approx(4 * 2)
    assert moved(fused["bn1"], False) == moved(fused["bn2"], False) < 0.001
    assert moved(fused["bn3"], False) == pytest.approx(3 * 2, rel=1e-3)
    assert all(moved(fused[name], True) == moved(plain[name], True) for name in fused)
    assert [fused[name].saved for name in ("conv2", "conv3")] == [0, 0]
    assert all(fused[name].saved == plain[name].saved for name in ("conv1", "bn1", "bn2", "bn3"))


def test_the_first_bottleneck_s_shortcut_is_scaled_where_it_is_added() -> None:
    framework = load_framework("mlperf-mxnet-mainloop")
    found = share_of(Shape(micro=32, seq=1, precision="fp16"), framework, "math")
    parts = {part.name: part for part in residual_block(RESNET, found, Map(64, 56, 56), 64, 1)[0]}
    assert list(parts)[-3:] == ["downsample.conv", "downsample.bn", "bn3"]
    assert moved(parts["downsample.bn"], False) < 0.001
    assert moved(parts["bn3"], False) == pytest.approx(3 * 2, rel=1e-3)
