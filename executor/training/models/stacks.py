"""Plain stacks of convolutions: VGG, AlexNet, and the network of PyTorch's CIFAR-10 tutorial."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from executor.training.models.maps import Norm, Parts, conv
from sim.model.pictures.cnn import ALEXNET, VGG
from sim.model.pictures.vision import depth
from sim.model.specs.spec import Cnn

Named = Iterator[tuple[str, nn.Module]]


def vgg(spec: Cnn) -> Named:
    """VGG (Simonyan & Zisserman 2014): stages of 3 x 3 convolutions, each followed by pooling, then three linears."""
    into = 3
    for stage, count in enumerate(depth(spec, VGG)):
        block, out = Parts(), min(512, 64 * 2**stage)
        for index in range(count):
            block.add(f"conv{index}", conv(into, out, 3, bias=True))
            if spec.batch_norm:
                block.add(f"bn{index}", Norm(out))
            else:
                block.add(f"relu{index}", nn.ReLU(inplace=True))
            into = out
        block.add("pool", nn.MaxPool2d(2, 2))
        yield f"S{stage}", block
    yield "head", _three_linears(into, 7, (4096, 4096, spec.classes or 1000))


def alexnet(spec: Cnn) -> Named:
    """torchvision's AlexNet (Krizhevsky 2014)."""
    into = 3
    for index, (out, kernel, stride, padding, pooled) in enumerate(ALEXNET):
        block = Parts()
        block.add("conv", conv(into, out, kernel, stride, kernel // 2 if padding < 0 else padding, bias=True))
        block.add("relu", nn.ReLU(inplace=True))
        if pooled:
            block.add("pool", nn.MaxPool2d(3, 2))
        yield f"S{index}", block
        into = out
    yield "head", _three_linears(into, 6, (4096, 4096, spec.classes or 1000))


def cifar(spec: Cnn) -> Named:
    """PyTorch's CIFAR-10 tutorial: two 5 x 5 convolutions with pooling, then three linears."""
    for index, (into, out) in enumerate(((3, 6), (6, 16)), 1):
        block = Parts()
        block.add(f"conv{index}", conv(into, out, 5, padding=0, bias=True))
        block.add(f"relu{index}", nn.ReLU(inplace=True))
        block.add(f"pool{index}", nn.MaxPool2d(2, 2))
        yield ("stem" if index == 1 else "S0"), block
    side = (((spec.image or 32) - 4) // 2 - 4) // 2
    yield "head", _three_linears(16, side, (120, 84, spec.classes or 10), first=3)


def _three_linears(channels: int, side: int, widths: tuple[int, int, int], first: int = 1) -> Parts:
    head = Parts()
    head.add("pool", nn.AdaptiveAvgPool2d(side))
    head.add("flat", nn.Flatten())
    into = channels * side * side
    for index, width in enumerate(widths, 1):
        head.add(f"fc{index}", nn.Linear(into, width))
        if index < len(widths):
            head.add(f"relu{first + index - 1}", nn.ReLU(inplace=True))
        into = width
    return head
