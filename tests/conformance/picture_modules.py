"""Models of pictures in plain PyTorch, written from the papers' tables: EfficientNet, ConvNeXt and U-Net, each with its loss.

Each takes images alone and returns the loss, so that it can be captured, counted and compared with what `sim.model` describes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F


def _rounded(channels: float) -> int:
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


class Activated(nn.Module):
    """Convolution, batch norm and, unless it is the last of a block, swish in place."""

    def __init__(self, into: int, out: int, kernel: int, stride: int = 1, groups: int = 1, swish: bool = True) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(out)
        self.act = nn.SiLU(inplace=True) if swish else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.bn(self.conv(x)))  # type: ignore[no-any-return]


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, small: int) -> None:
        super().__init__()
        self.mean, self.down, self.up = nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, small, 1), nn.Conv2d(small, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.up(F.silu(self.down(self.mean(x))))) * x


def _dropped(x: torch.Tensor, rate: float) -> torch.Tensor:
    noise = torch.empty((x.shape[0], 1, 1, 1), dtype=x.dtype, device=x.device).bernoulli_(1 - rate)
    noise.div_(1 - rate)
    return x * noise


class Bottleneck(nn.Module):
    """One inverted bottleneck; `fused`: EfficientNetV2's."""

    def __init__(self, into: int, out: int, kernel: int, stride: int, expand: int, fused: bool) -> None:
        super().__init__()
        inner = _rounded(into * expand)
        layers: list[nn.Module] = []
        if fused:
            layers += [Activated(into, inner if expand > 1 else out, kernel, stride)]
        else:
            layers += [Activated(into, inner, 1)] if expand > 1 else []
            layers += [Activated(inner, inner, kernel, stride, inner), Gate(inner, max(1, into // 4))]
        layers += [Activated(inner, out, 1, swish=False)] if expand > 1 or not fused else []
        self.body, self.adds = nn.Sequential(*layers), stride == 1 and into == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return _dropped(y, 0.2) + x if self.adds else y  # type: ignore[no-any-return]


class EfficientNet(nn.Module):
    """`stages`: (fused, expand, kernel, stride, channels, layers)."""

    def __init__(self, stages: Sequence[tuple[bool, int, int, int, int, int]], first: int, last: int, classes: int = 1000) -> None:
        super().__init__()
        self.stem = Activated(3, first, 3, 2)
        layers, into = [], first
        for fused, expand, kernel, stride, out, count in stages:
            for at in range(count):
                layers.append(Bottleneck(into, out, kernel, 1 if at else stride, expand, fused))
                into = out
        self.layers, self.top = nn.ModuleList(layers), Activated(into, last, 1)
        self.mean, self.drop, self.fc = nn.AdaptiveAvgPool2d(1), nn.Dropout(0.2), nn.Linear(last, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return _loss(self.fc(self.drop(self.mean(self.top(x)).flatten(1))))


def _loss(scores: torch.Tensor) -> torch.Tensor:
    places = (scores.shape[0], *scores.shape[2:])
    return F.cross_entropy(scores, torch.zeros(places, dtype=torch.int64, device=scores.device))


def efficientnet(width: float = 1.0, depth: float = 1.0) -> nn.Module:
    """B0, or wider and deeper."""
    table = (
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )
    stages = [(False, e, k, s, _rounded(c * width), math.ceil(n * depth)) for e, k, s, c, n in table]
    return EfficientNet(stages, _rounded(32 * width), 4 * stages[-1][4])


def efficientnet_v2_s() -> nn.Module:
    """The small one of the second version."""
    fused = [(True, 1, 3, 1, 24, 2), (True, 4, 3, 2, 48, 4), (True, 4, 3, 2, 64, 4)]
    return EfficientNet([*fused, (False, 4, 3, 2, 128, 6), (False, 6, 3, 1, 160, 9), (False, 6, 3, 2, 256, 15)], 24, 1280)


class ChannelNorm(nn.LayerNorm):
    """Over the channels of a map."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextLayer(nn.Module):
    """One block of ConvNeXt."""

    def __init__(self, c: int, rate: float) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c)
        self.up, self.down, self.scale, self.rate = nn.Linear(c, 4 * c), nn.Linear(4 * c, c), nn.Parameter(torch.ones(c, 1, 1)), rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return (_dropped(y, self.rate) if self.rate else y) + x


class ConvNext(nn.Module):
    """Its tiny size, unless `depths` and `widths` say otherwise."""

    def __init__(self, depths: Sequence[int] = (3, 3, 9, 3), widths: Sequence[int] = (96, 192, 384, 768), classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0]))
        layers: list[nn.Module] = []
        for stage, (count, width) in enumerate(zip(depths, widths, strict=True)):
            if stage:
                layers.append(nn.Sequential(ChannelNorm(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, 2)))
            layers += [NextLayer(width, 0.1 if stage or at else 0.0) for at in range(count)]
        self.layers, self.mean = nn.ModuleList(layers), nn.AdaptiveAvgPool2d(1)
        self.norm, self.fc = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return _loss(self.fc(self.norm(self.mean(x).flatten(1))))


class Double(nn.Module):
    """Twice a convolution, batch norm and ReLU, after what `before` does."""

    def __init__(self, into: int, out: int, before: nn.Module | None = None) -> None:
        super().__init__()
        self.before = before or nn.Identity()
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(self.before(x))), inplace=True)
        return F.relu(self.bn2(self.conv2(y)), inplace=True)


class Up(nn.Module):
    """A level up, joined with its own on the way down."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.up, self.pair = nn.ConvTranspose2d(into, out, 2, 2), Double(2 * out, out)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.pair(torch.cat((skip, self.up(x)), 1))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Pictures to a class for each pixel."""

    def __init__(self, width: int = 64, levels: int = 4, classes: int = 2) -> None:
        super().__init__()
        self.stem = Double(3, width)
        self.layers = nn.ModuleList(
            [Double(width << i, width << (i + 1), nn.MaxPool2d(2)) for i in range(levels)]
            + [Up(width << (levels - i), width << (levels - i - 1)) for i in range(levels)]
        )
        self.levels, self.out = levels, nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = [self.stem(x)]
        for layer in self.layers[: self.levels]:
            maps.append(layer(maps[-1]))
        y = maps.pop()
        for layer in self.layers[self.levels :]:
            y = layer(y, maps.pop())
        return _loss(self.out(y))
