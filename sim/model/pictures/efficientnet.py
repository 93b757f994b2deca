"""EfficientNet (Tan & Le 2019) and EfficientNetV2 (Tan & Le 2021), operator by operator as torchvision's models/efficientnet.py runs them."""

from __future__ import annotations

import math
from typing import NamedTuple

from sim.model.layers.elementwise import elementwise
from sim.model.layers.ends import loss
from sim.model.layers.linear import linear
from sim.model.parts import Block, Part
from sim.model.pictures.maps import drop_path, gate, join, swish
from sim.model.pictures.vision import Blocks, Map, block, convolution, mean, normalised
from sim.model.share import Share
from sim.model.specs.pictures import EfficientNet


class Stage(NamedTuple):
    """Equal blocks: only the first has the stride."""

    expand: int
    kernel: int
    stride: int
    out: int
    layers: int
    fused: bool = False
    """v2: one convolution in place of the expanding and the depthwise one, and no gate."""


V1 = (
    Stage(1, 3, 1, 16, 1), Stage(6, 3, 2, 24, 2), Stage(6, 5, 2, 40, 2), Stage(6, 3, 2, 80, 3), Stage(6, 5, 1, 112, 3), Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)  # fmt: skip
V2 = {
    "v2-s": (
        Stage(1, 3, 1, 24, 2, True), Stage(4, 3, 2, 48, 4, True), Stage(4, 3, 2, 64, 4, True), Stage(4, 3, 2, 128, 6), Stage(6, 3, 1, 160, 9),
        Stage(6, 3, 2, 256, 15),
    ),
    "v2-m": (
        Stage(1, 3, 1, 24, 3, True), Stage(4, 3, 2, 48, 5, True), Stage(4, 3, 2, 80, 5, True), Stage(4, 3, 2, 160, 7), Stage(6, 3, 1, 176, 14),
        Stage(6, 3, 2, 304, 18), Stage(6, 3, 1, 512, 5),
    ),
    "v2-l": (
        Stage(1, 3, 1, 32, 4, True), Stage(4, 3, 2, 64, 7, True), Stage(4, 3, 2, 96, 7, True), Stage(4, 3, 2, 192, 10), Stage(6, 3, 1, 224, 19),
        Stage(6, 3, 2, 384, 25), Stage(6, 3, 1, 640, 7),
    ),
}  # fmt: skip
"""Tan & Le 2019, table 1; 2021, table 4, with M and L as the authors' code has them (automl/efficientnetv2/effnetv2_configs.py)."""


def rounded(channels: float) -> int:
    """To eights, and never a tenth less (the authors' round_filters)."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


def plan_of(spec: EfficientNet) -> tuple[tuple[Stage, ...], int, int]:
    """Its stages, and the channels of the first and of the last convolution."""
    if spec.variant != "v1":
        return V2[spec.variant], V2[spec.variant][0].out, 1280
    stages = tuple(s._replace(out=rounded(s.out * spec.width), layers=math.ceil(s.layers * spec.depth)) for s in V1)
    return stages, rounded(32 * spec.width), 4 * stages[-1].out


def blocks(spec: EfficientNet, share: Share) -> Blocks:
    """stem, one block per inverted bottleneck, head."""
    stages, wide, last = plan_of(spec)
    image = Map(spec.channels, spec.side, spec.side)
    first, x = activated(share, "conv", image, wide, 3, stride=2, first=True)
    found: list[tuple[str, Block]] = [("stem", block(share, "embed", first, image))]
    for index, stage in enumerate(stages):
        same = None
        for at in range(stage.layers):
            if at < 2:  # the first changes the shape; all others are equal
                parts, y = _bottleneck(spec, share, x, stage._replace(stride=1) if at else stage)
                same, x = block(share, "layer", parts, x), y
            assert same is not None
            found.append((f"S{index}.{at}", same))
    return (*found, ("head", block(share, "head", _head(spec, share, x, last), x)))


def activated(
    share: Share, name: str, x: Map, out: int, kernel: int, *, stride: int = 1, groups: int = 1, first: bool = False
) -> tuple[list[Part], Map]:
    """Convolution, batch norm, swish (in place)."""
    conv, y = convolution(share, name, x, out, kernel, stride=stride, groups=groups, first=first)
    return [conv, normalised(share, f"{name}.bn", y, relu=False), swish(share, f"{name}.act", share.micro * y.size, in_place=True)], y


def _bottleneck(spec: EfficientNet, share: Share, x: Map, stage: Stage) -> tuple[list[Part], Map]:
    inner = rounded(x.channels * stage.expand)
    parts: list[Part] = []
    y = x
    if stage.fused:
        if inner == x.channels:  # one convolution is all
            parts, y = activated(share, "conv", x, stage.out, stage.kernel, stride=stage.stride)
            return [*parts, *_joined(spec, share, x, y, stage)], y
        parts, y = activated(share, "expand", x, inner, stage.kernel, stride=stage.stride)
    else:
        if inner != x.channels:
            parts, y = activated(share, "expand", x, inner, 1)
        deep, y = activated(share, "depthwise", y, inner, stage.kernel, stride=stage.stride, groups=inner)
        parts = [*parts, *deep, *gate(share, "se", y, max(1, x.channels // 4))]
    conv, y = convolution(share, "project", y, stage.out, 1)
    return [*parts, conv, normalised(share, "project.bn", y, relu=False), *_joined(spec, share, x, y, stage)], y


def _joined(spec: EfficientNet, share: Share, x: Map, y: Map, stage: Stage) -> list[Part]:
    """The block's input is added where the shape is the same."""
    if stage.stride > 1 or x.channels != y.channels:
        return []
    n = share.micro * y.size
    return [*([drop_path(share, "drop", n, share.e)] if spec.drop_path else []), join(share, "join", n, share.e)]


def _head(spec: EfficientNet, share: Share, x: Map, wide: int) -> list[Part]:
    parts, y = activated(share, "conv", x, wide, 1)
    parts.append(mean(share, "pool", y))
    if spec.dropout:
        n, e = share.micro * wide, share.e
        drop, back = elementwise("dropout", share, n, e, e + 1, 2.0), elementwise("dropout", share, n, e + 1, e, 2.0)
        parts.append(Part(name="dropout", forward=(drop,), backward=(back,), cls="elementwise", saved=n))
    fc = linear(share, "fc", wide, spec.classes, rows=share.micro, bias=True, low=False)
    return [*parts, fc, loss(share, spec.classes, rows=share.micro)]
