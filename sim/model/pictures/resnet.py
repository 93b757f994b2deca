"""ResNet, ResNeXt and SE-ResNeXt (He et al. 2015, Xie et al. 2016, Hu et al. 2018)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.ends import loss
from sim.model.layers.linear import linear
from sim.model.parts import Block, Part
from sim.model.pictures.vision import Blocks, Map, block, convolution, convolved, depth, eager, mean, normalised, pool, squeeze
from sim.model.share import Share
from sim.model.specs.spec import Cnn
from sim.work import MemoryBound

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


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
        parts += [normalised(share, f"bn{index}", y, relu=False), *squeeze(share, y), _join(share, joined)] if spec.se else [joined]
    if stride > 1 or x.channels != out:
        conv, z = convolution(share, "downsample.conv", x, out, 1, stride=stride, padding=0)
        parts[-1:-1] = [replace(conv, saved=0), normalised(share, "downsample.bn", z, relu=False)]
    if share.framework.elementwise.norm_kernels == "convolved" and not spec.se:
        *inner, end = parts
        parts = [*(_convolved(share, part) for part in inner), convolved(share, end, y)]
    return parts, y


def _convolved(share: Share, part: Part) -> Part:
    """A norm that convolutions sum and apply (`convolved`); a convolution that applies one keeps nothing, for the norm has its map."""
    if part.cls == "norm":
        return convolved(share, part)
    return part if part.name == "conv1" else replace(part, saved=0)


def _join(share: Share, joined: Part) -> Part:
    """The add and ReLU that follow squeeze-and-excitation (`squeeze`): the joined norm without its norm."""
    drop = (("batchnorm", "scale_", *(("add",) if eager(share) else ())), ("batchnorm",))
    keep = [
        tuple(work for work in works if not getattr(work, "what", "").startswith(gone))
        for works, gone in zip((joined.forward, joined.backward), drop, strict=True)
    ]
    if share.framework.compile:
        keep[1] = tuple(replace(work, read=work.read + work.written) for work in keep[1] if isinstance(work, MemoryBound))
    return replace(joined, name="join", forward=keep[0], backward=keep[1], cls="elementwise", tensors=(), saved=0, untracked=0)


def blocks(spec: Cnn, share: Share) -> Blocks:
    """stem, one block per residual block, head. Raises `UnknownName` for a depth that nobody trains."""
    image, classes = spec.image or 224, spec.classes or 1000
    parts, x = stem(share, image)
    found: list[tuple[str, Block]] = [("stem", block(share, "embed", parts, Map(3, image, image)))]
    for stage, count in enumerate(depth(spec, STAGES)):
        planes, same = 64 * 2**stage, None
        for index in range(count):
            if index < 2:  # the first changes the shape; all others are equal
                parts, y = residual_block(spec, share, x, planes, 2 if stage and not index else 1)
                same, x = block(share, "layer", parts, x), y
            assert same is not None
            found.append((f"S{stage}.{index}", same))
    head = [
        mean(share, "pool", x),
        linear(share, "fc", x.channels, classes, rows=share.micro, bias=True, low=False),
        loss(share, classes, rows=share.micro),
    ]
    return (*found, ("head", block(share, "head", head, x)))
