"""Parts of convolutional networks as torch modules: blocks of named parts, batch norm with the ops that follow it, squeeze-and-excitation.

Parts have the names of `sim.model`; as a module's name cannot contain a dot, "__" stands for it (`part_name`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Parts(nn.Module):
    """A block whose parts run one after the other, in the order of registration."""

    def add(self, name: str, part: nn.Module) -> None:
        """Adds a part. `name`: its name, with dots."""
        self.add_module(name.replace(".", "__"), part)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            x = part(x)
        return x


def conv(into: int, out: int, kernel: int, stride: int = 1, padding: int = -1, groups: int = 1, bias: bool = False) -> nn.Conv2d:
    """A convolution; by default (`padding` < 0) it is padded so that only the stride reduces the map."""
    return nn.Conv2d(into, out, kernel, stride, kernel // 2 if padding < 0 else padding, groups=groups, bias=bias)


class Norm(nn.BatchNorm2d):
    """Batch norm, then the add of another map (`beside`) if given, then ReLU in place if `relu`."""

    def __init__(self, channels: int, relu: bool = True) -> None:
        super().__init__(channels)
        self.relu = relu

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        y = super().forward(x)
        if beside is not None:
            y += beside
        return F.relu(y, inplace=True) if self.relu else y


class Mean(nn.Module):
    """Mean over the map for each channel: (batch, channels)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


class Gate(nn.Module):
    """Squeeze-and-excitation by two 1 x 1 convolutions, with swish and sigmoid."""

    def __init__(self, channels: int, small: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, small, 1), nn.Conv2d(small, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale: Tensor = torch.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))))
        return scale * x


class DropPath(nn.Module):
    """Multiplies whole samples by 0 or 1 / (1 - rate) (Huang et al. 2016), drawn as in torchvision's StochasticDepth."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.rate):
            return x
        noise = torch.empty((x.shape[0], 1, 1, 1), dtype=x.dtype, device=x.device).bernoulli_(1 - self.rate)
        return x * noise.div_(1 - self.rate)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each place of a map."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Scale(nn.Module):
    """Multiplies each channel by a learned number; (batch, h, w, channels) becomes (batch, channels, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.full((channels, 1, 1), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        return self.by * x.permute(0, 3, 1, 2)
