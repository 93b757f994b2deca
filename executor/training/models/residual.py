"""ResNet, ResNeXt and SE-ResNeXt (He et al. 2015, Xie et al. 2016, Hu et al. 2018), with the stride on the 3 x 3 (v1.5)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.training.models.maps import Mean, Norm, Parts, conv
from sim.model.pictures.resnet import STAGES
from sim.model.pictures.vision import depth
from sim.model.specs.spec import Cnn

Named = Iterator[tuple[str, nn.Module]]


class Squeeze(nn.Module):
    """Squeeze-and-excitation: a factor for each channel, (batch, channels, 1, 1), by two small linears (reduction 16)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(channels, channels // 16), nn.Linear(channels // 16, channels)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1).flatten(1)))))
        return scale[:, :, None, None]


class Residual(nn.Module):
    """Two 3 x 3 convolutions, or the bottleneck 1 x 1, 3 x 3, 1 x 1. The input is added, through a 1 x 1 convolution if the shape
    changes."""

    def __init__(self, spec: Cnn, into: int, planes: int, stride: int) -> None:
        super().__init__()
        narrow = spec.depth < 50
        out = planes * (1 if narrow else 4)
        width = planes if narrow else planes * spec.width // 64 * spec.groups
        steps = (
            [(planes, 3, stride, 1), (planes, 3, 1, 1)] if narrow else [(width, 1, 1, 1), (width, 3, stride, spec.groups), (out, 1, 1, 1)]
        )
        before = into
        self.steps, self.out, self.squeezes, self.changes = len(steps), out, spec.se, stride > 1 or into != out
        for index, (channels, kernel, step, groups) in enumerate(steps, 1):
            self.add_module(f"conv{index}", conv(before, channels, kernel, step, groups=groups))
            if index < len(steps) or spec.se:
                self.add_module(f"bn{index}", Norm(channels, relu=index < len(steps)))
            before = channels
        if spec.se:
            self.se = Squeeze(out)
        if self.changes:
            self.add_module("downsample__conv", conv(into, out, 1, stride, 0))
            self.add_module("downsample__bn", Norm(out, relu=False))
        if not spec.se:  # the last batch norm also adds the other branch
            self.add_module(f"bn{len(steps)}", Norm(out))

    def forward(self, x: Tensor) -> Tensor:
        y, part = x, self.get_submodule
        for index in range(1, self.steps):
            y = part(f"bn{index}")(part(f"conv{index}")(y))
        y, last = part(f"conv{self.steps}")(y), part(f"bn{self.steps}")
        if self.squeezes:
            y = last(y)
            scale = self.se(y)
            return F.relu(torch.addcmul(self._beside(x), y, scale), inplace=True)
        out: Tensor = last(y, self._beside(x))
        return out

    def _beside(self, x: Tensor) -> Tensor:
        if not self.changes:
            return x
        out: Tensor = self.get_submodule("downsample__bn")(self.get_submodule("downsample__conv")(x))
        return out


def blocks(spec: Cnn) -> Named:
    """Name and module of each block: stem, S0.0 ..., head."""
    stem = Parts()
    stem.add("conv1", conv(3, 64, 7, 2))
    stem.add("bn1", Norm(64))
    stem.add("pool", nn.MaxPool2d(3, 2, 1))
    yield "stem", stem
    into = 64
    for stage, count in enumerate(depth(spec, STAGES)):
        for index in range(count):
            block = Residual(spec, into, 64 * 2**stage, 2 if stage and not index else 1)
            yield f"S{stage}.{index}", block
            into = block.out
    head = Parts()
    head.add("pool", Mean())
    head.add("fc", nn.Linear(into, spec.classes or 1000))
    yield "head", head
