"""Convolutional networks: which is built by which file, and the simple stacks VGG, AlexNet and CIFAR."""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.layers.activation import activation
from sim.model.layers.ends import loss
from sim.model.layers.linear import linear
from sim.model.parts import Block, Part, Shape
from sim.model.pictures import inception, mask_rcnn, resnet, retinanet, ssd
from sim.model.pictures.vision import Blocks, Map, block, convolution, depth, normalised, pool
from sim.model.share import Share, share_of
from sim.model.specs.spec import Cnn

VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def blocks_of(spec: Cnn, shape: Shape, framework: Framework) -> Blocks:
    """stem, one block per residual block (or stage), head. Raises `Refused` for tp or cp, `UnknownName` for a depth."""
    data_parallel_only(spec.name or spec.arch, "a convolutional network", shape, chain=spec.chain)
    share = share_of(replace(shape, seq=1), framework)
    # Convolutional networks have no fp32 residual stream under autocast: convolutions and batch norms stay 16-bit.
    share = replace(share, es=share.e)
    if spec.arch == "vgg":
        return _vgg(spec, share)
    if spec.arch == "alexnet":
        return _alexnet(spec, share)
    if spec.arch == "inception-v3":
        return inception.blocks(spec, share)
    if spec.arch == "cifar":
        return _cifar(spec, share)
    if spec.arch == "ssd300":
        return ssd.blocks(spec, share)
    if spec.arch == "mask-rcnn":
        return mask_rcnn.blocks(spec, share)
    if spec.arch == "retinanet":
        return retinanet.blocks(spec, share)
    return resnet.blocks(spec, share)


def _vgg(spec: Cnn, share: Share) -> Blocks:
    """Stages of 3 x 3 convolutions, each ended by pooling; three linears (Simonyan & Zisserman 2014)."""
    image, classes = spec.image or 224, spec.classes or 1000
    x = Map(3, image, image)
    blocks: list[tuple[str, Block]] = []
    for stage, count in enumerate(depth(spec, VGG)):
        before, parts = x, []
        for index in range(count):
            first = not stage and not index
            conv, x = convolution(share, f"conv{index}", x, min(512, 64 * 2**stage), 3, bias=True, first=first)
            parts.append(conv)
            parts.append(normalised(share, f"bn{index}", x) if spec.batch_norm else _relu(share, f"relu{index}", x))
        pooled, x = pool(share, "pool", x, 2, 2)
        blocks.append((f"S{stage}", block(share, "embed" if not stage else "layer", [*parts, pooled], before)))
    return (*blocks, ("head", _three_linears(share, Map(512, 7, 7), classes)))  # adaptive average pooling


def _three_linears(share: Share, x: Map, classes: int) -> Block:
    b = share.micro
    head = [linear(share, "fc1", x.size, 4096, rows=b, bias=True, low=False), activation(share, "relu1", b, 4096, "relu")]
    head += [linear(share, "fc2", 4096, 4096, rows=b, bias=True, low=False), activation(share, "relu2", b, 4096, "relu")]
    head += [linear(share, "fc3", 4096, classes, rows=b, bias=True, low=False), _loss(share, classes)]
    return block(share, "head", head, x)


ALEXNET: tuple[tuple[int, int, int, int, bool], ...] = (
    # channels, kernel, stride, padding, and whether max pooling of 3 with stride 2 follows (torchvision, models/alexnet.py: Krizhevsky 2014)
    (64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False), (256, 3, 1, 1, False), (256, 3, 1, 1, True),
)  # fmt: skip


def _alexnet(spec: Cnn, share: Share) -> Blocks:
    image = spec.image or 224
    x = Map(3, image, image)
    blocks: list[tuple[str, Block]] = []
    for index, (out, kernel, stride, padding, pooled) in enumerate(ALEXNET):
        before = x
        conv, x = convolution(share, "conv", x, out, kernel, stride=stride, padding=padding, bias=True, first=not index)
        parts = [conv, _relu(share, "relu", x)]
        if pooled:
            last, x = pool(share, "pool", x, 3, 2)
            parts.append(last)
        blocks.append((f"S{index}", block(share, "embed" if not index else "layer", parts, before)))
    return (*blocks, ("head", _three_linears(share, Map(256, 6, 6), spec.classes or 1000)))


def _cifar(spec: Cnn, share: Share) -> Blocks:
    """The small network of PyTorch's CIFAR-10 tutorial: two 5 x 5 convolutions with pooling, three linears."""
    image, classes, b = spec.image or 32, spec.classes or 10, share.micro
    one, x = convolution(share, "conv1", Map(3, image, image), 6, 5, padding=0, bias=True, first=True)
    pool1, y = pool(share, "pool1", x, 2, 2)
    two, z = convolution(share, "conv2", y, 16, 5, padding=0, bias=True)
    pool2, last = pool(share, "pool2", z, 2, 2)
    stem_block = block(share, "embed", [one, _relu(share, "relu1", x), pool1], Map(3, image, image))
    body = block(share, "layer", [two, _relu(share, "relu2", z), pool2], y)
    head = [linear(share, "fc1", last.size, 120, rows=b, bias=True, low=False), activation(share, "relu3", b, 120, "relu")]
    head += [linear(share, "fc2", 120, 84, rows=b, bias=True, low=False), activation(share, "relu4", b, 84, "relu")]
    head += [linear(share, "fc3", 84, classes, rows=b, bias=True, low=False), _loss(share, classes)]
    return (("stem", stem_block), ("S0", body), ("head", block(share, "head", head, last)))


def _relu(share: Share, name: str, x: Map) -> Part:
    """In place: what it keeps is the next convolution's input."""
    return replace(activation(share, name, 1, share.micro * x.size, "relu"), saved=0)


def _loss(share: Share, classes: int) -> Part:
    return loss(share, classes, rows=share.micro)
