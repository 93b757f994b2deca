"""ConvNeXt (Liu et al. 2022), operator by operator as torchvision runs it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from executor.training.models.maps import ChannelNorm, DropPath, Mean, Parts, Scale, conv
from executor.training.models.parts import Activation
from sim.model.specs.pictures import ConvNext


class Layer(Parts):
    """One block: 7 x 7 depthwise convolution, norm, MLP of four times the width, a learned scale for each channel, stochastic depth,
    residual."""

    def __init__(self, c: int, rate: float) -> None:
        super().__init__()
        self.add("depthwise", conv(c, c, 7, groups=c, bias=True))
        self.add("norm", Rows(c))
        self.add("mlp.up", nn.Linear(c, 4 * c))
        self.add("mlp.act", Activation("gelu"))
        self.add("mlp.down", nn.Linear(4 * c, c))
        self.add("scale", Scale(c))
        if rate:
            self.add("drop", DropPath(rate))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


class Rows(nn.LayerNorm):
    """LayerNorm over channels; returns (batch, h, w, channels), so that the channels of each place are a row."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1))


def blocks(spec: ConvNext) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of each block: stem, S0.0 ..., D1, S1.0 ..., head."""
    into = spec.widths[0]
    stem = Parts()
    stem.add("conv", conv(spec.channels, into, 4, 4, 0, bias=True))
    stem.add("norm", ChannelNorm(into))
    yield "stem", stem
    for stage, (count, width) in enumerate(zip(spec.depths, spec.widths, strict=True)):
        if stage:
            halved = Parts()
            halved.add("norm", ChannelNorm(into))
            halved.add("conv", conv(into, width, 2, 2, 0, bias=True))
            yield f"D{stage}", halved
        for at in range(count):
            yield f"S{stage}.{at}", Layer(width, spec.drop_path if stage or at else 0.0)
        into = width
    head = Parts()
    head.add("pool", Mean())
    head.add("norm", nn.LayerNorm(into))
    head.add("fc", nn.Linear(into, spec.classes))
    yield "head", head
