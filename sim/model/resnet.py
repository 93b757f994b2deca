"""ResNet, ResNeXt and SE-ResNeXt (He et al. 2015, Xie et al. 2016, Hu et al. 2018), and the simpler stacks VGG and CIFAR."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from sim.framework import Framework
from sim.model.ends import loss
from sim.model.layers import activation, linear
from sim.model.parts import Block, Part, Shape
from sim.model.share import Share, share_of
from sim.model.spec import Cnn
from sim.model.vision import Map, convolution, mean, normalised, pool, squeeze
from topologies.errors import Refused, UnknownName

Blocks = tuple[tuple[str, Block], ...]
STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def blocks_of(spec: Cnn, shape: Shape, framework: Framework) -> Blocks:
    """stem, one block per residual block (or stage), head. Raises `Refused` for tp or cp, `UnknownName` for a depth."""
    if shape.tp * shape.cp * shape.ep > 1:
        raise Refused(
            f"{spec.name or spec.arch}: a convolutional network is split by data or pipeline parallelism only; set tp = cp = ep = 1"
        )
    share = share_of(replace(shape, seq=1), framework)
    # Convolutional networks have no fp32 residual stream under autocast: convolutions and batch norms stay 16-bit.
    share = replace(share, es=share.e)
    if spec.arch == "vgg":
        return _vgg(spec, share)
    if spec.arch == "cifar":
        return _cifar(spec, share)
    if spec.arch == "ssd300":
        from sim.model.ssd import blocks

        return blocks(spec, share)
    return _resnet(spec, share)


def depth(spec: Cnn, table: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Blocks of each stage for the network's depth. Raises `UnknownName` for one that nobody trains."""
    if spec.depth not in table:
        raise UnknownName(f"{spec.arch} depth", str(spec.depth), map(str, table))
    return table[spec.depth]


def block(share: Share, kind: str, parts: list[Part], x: Map) -> Block:
    """A block of `parts` whose input is the map `x`."""
    return Block(kind=kind, parts=tuple(parts), saved_input=share.micro * x.size * share.e)


def stem(share: Share, image: int) -> tuple[list[Part], Map]:
    """7 x 7 of stride 2, norm, 3 x 3 pooling of stride 2."""
    conv, x = convolution(share, "conv1", Map(3, image, image), 64, 7, stride=2, padding=3, first=True)
    pooled, y = pool(share, "pool", x, 3, 2, 1)
    return [conv, normalised(share, "bn1", x), pooled], y


def residual_block(spec: Cnn, share: Share, x: Map, planes: int, stride: int) -> tuple[list[Part], Map]:
    """Two 3 x 3 convolutions, or the bottleneck 1 x 1, 3 x 3, 1 x 1 with the stride on the 3 x 3 (v1.5)."""
    narrow = spec.depth < 50
    out = planes * (1 if narrow else 4)
    width = planes if narrow else planes * spec.width // 64 * spec.groups
    steps = [(planes, 3, stride, 1), (planes, 3, 1, 1)] if narrow else [(width, 1, 1, 1), (width, 3, stride, spec.groups), (out, 1, 1, 1)]
    parts: list[Part] = []
    y = x
    for index, (channels, kernel, step, groups) in enumerate(steps, 1):
        conv, y = convolution(share, f"conv{index}", y, channels, kernel, stride=step, groups=groups)
        last = index == len(steps)
        parts.append(conv)
        if not last:
            parts.append(normalised(share, f"bn{index}", y))
            continue
        joined = normalised(share, f"bn{index}", y, relu=True, fork=x)
        parts += [normalised(share, f"bn{index}", y, relu=False), *squeeze(share, "se", y), _join(joined)] if spec.se else [joined]
    if stride > 1 or x.channels != out:
        conv, z = convolution(share, "downsample.conv", x, out, 1, stride=stride, padding=0)
        parts[-1:-1] = [replace(conv, saved=0), normalised(share, "downsample.bn", z, relu=False)]
    return parts, y


def _join(joined: Part) -> Part:
    """The add and ReLU that follow squeeze-and-excitation: the joined norm without its norm."""
    keep = [tuple(work for work in works if getattr(work, "what", "") != "batchnorm") for works in (joined.forward, joined.backward)]
    return replace(joined, name="join", forward=keep[0], backward=keep[1], cls="elementwise", tensors=(), saved=0)


def _resnet(spec: Cnn, share: Share) -> Blocks:
    image, classes = spec.image or 224, spec.classes or 1000
    parts, x = stem(share, image)
    blocks: list[tuple[str, Block]] = [("stem", block(share, "embed", parts, Map(3, image, image)))]
    for stage, count in enumerate(depth(spec, STAGES)):
        planes, same = 64 * 2**stage, None
        for index in range(count):
            if index < 2:  # the first changes the shape; all others are equal
                parts, y = residual_block(spec, share, x, planes, 2 if stage and not index else 1)
                same, x = block(share, "layer", parts, x), y
            assert same is not None
            blocks.append((f"S{stage}.{index}", same))
    head = [mean(share, "pool", x), linear(share, "fc", x.channels, classes, rows=share.micro, bias=True, low=False), _loss(share, classes)]
    return (*blocks, ("head", block(share, "head", head, x)))


def _loss(share: Share, classes: int) -> Part:
    return loss(share, classes, rows=share.micro)


def _vgg(spec: Cnn, share: Share) -> Blocks:
    """Stages of 3 x 3 convolutions, each ended by pooling; three linears (Simonyan & Zisserman 2014)."""
    image, classes = spec.image or 224, spec.classes or 1000
    x = Map(3, image, image)
    blocks: list[tuple[str, Block]] = []
    for stage, count in enumerate(depth(spec, _VGG)):
        before, parts = x, []
        for index in range(count):
            first = not stage and not index
            conv, x = convolution(share, f"conv{index}", x, min(512, 64 * 2**stage), 3, bias=True, first=first)
            parts.append(conv)
            parts.append(normalised(share, f"bn{index}", x) if spec.batch_norm else _relu(share, f"relu{index}", x))
        pooled, x = pool(share, "pool", x, 2, 2)
        blocks.append((f"S{stage}", block(share, "embed" if not stage else "layer", [*parts, pooled], before)))
    b = share.micro
    x = Map(512, 7, 7)  # adaptive average pooling
    head = [linear(share, "fc1", x.size, 4096, rows=b, bias=True, low=False), activation(share, "relu1", b, 4096, "relu")]
    head += [linear(share, "fc2", 4096, 4096, rows=b, bias=True, low=False), activation(share, "relu2", b, 4096, "relu")]
    head += [linear(share, "fc3", 4096, classes, rows=b, bias=True, low=False), _loss(share, classes)]
    return (*blocks, ("head", block(share, "head", head, x)))


def _relu(share: Share, name: str, x: Map) -> Part:
    """In place: what it keeps is the next convolution's input."""
    return replace(activation(share, name, 1, share.micro * x.size, "relu"), saved=0)


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
