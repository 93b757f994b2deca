"""U-Net for segmentation (Ronneberger et al. 2015) with padded convolutions and batch norms."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from executor.training.models.maps import Norm, Parts, conv
from sim.model.specs.pictures import UNet


def _double(block: Parts, into: int, out: int) -> None:
    """Adds twice a 3 x 3 convolution, batch norm and ReLU to `block`."""
    for index, channels in enumerate((into, out), 1):
        block.add(f"conv{index}", conv(channels, out, 3))
        block.add(f"bn{index}", Norm(out))


class Up(Parts):
    """One level of the way up: upsamples, concatenates the map of the same level from the way down (`skip`), and convolves twice."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.add("up", nn.ConvTranspose2d(into, out, 2, 2))
        _double(self, 2 * out, out)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:  # type: ignore[override]
        up, *rest = self.children()
        y = torch.cat((skip, up(x)), 1)
        for part in rest:
            y = part(y)
        return y


def blocks(spec: UNet) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of each block: stem (the first level), D1 ... down, U1 ... up, head."""
    stem = Parts()
    _double(stem, spec.channels, spec.width)
    yield "stem", stem
    for level in range(1, spec.levels + 1):
        down = Parts()
        down.add("pool", nn.MaxPool2d(2, 2))
        _double(down, spec.width << (level - 1), spec.width << level)
        yield f"D{level}", down
    for level in range(spec.levels, 0, -1):
        yield f"U{spec.levels + 1 - level}", Up(spec.width << level, spec.width << (level - 1))
    head = Parts()
    head.add("out", conv(spec.width, spec.classes, 1, bias=True))
    yield "head", head


def run(children: list[nn.Module], levels: int, x: Tensor) -> Tensor:
    """Runs all blocks: each level of the way up also reads the map of the same level from the way down."""
    *body, head = children
    maps = [x]
    for block in body[: levels + 1]:
        maps.append(block(maps[-1]))
    y = maps.pop()
    for block in body[levels + 1 :]:
        y = block(y, maps.pop())
    out: Tensor = head(y)
    return out
