"""Mask R-CNN (He et al. 2017) on a ResNet with a feature pyramid (Lin et al. 2017), as torchvision's maskrcnn_resnet50_fpn and maskrcnn-benchmark
build and train it: the stem and the first stage stay as they were pre-trained, and so do all batch norms, which are a product and a sum then.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.layers.ends import loss
from sim.model.layers.linear import linear
from sim.model.parts import Part
from sim.model.pictures import regions
from sim.model.pictures.frozen import backbone
from sim.model.pictures.maps import up_convolution
from sim.model.pictures.pyramid import WIDTH, again, pyramid, relu
from sim.model.pictures.vision import Blocks, Map, block, convolution, pool
from sim.model.share import Share
from sim.model.specs.coco import OBJECTS, POSITIVE, padded
from sim.model.specs.spec import Cnn
from sim.work import MemoryBound, Work

_HIDDEN = 1024
_MASK = 14


def blocks(spec: Cnn, share: Share) -> Blocks:
    """stem, one block per residual block, pyramid, proposals, box head, mask head. Raises `UnknownName` for a depth, `Refused` for CUDA graphs."""
    classes = spec.classes or 91
    found, maps = backbone(spec, share, _scaled(spec, share), Map(3, *padded(spec.image, share.micro)))
    parts, levels = pyramid(share, maps, 2, still=True)
    top, y = pool(share, "outer6", levels[-1], 1, 2)
    levels.append(y)
    found.append(("fpn", block(share, "layer", [*parts, replace(top, saved=0)], maps[-1])))
    found.append(("rpn", block(share, "head", _rpn(share, levels), levels[0])))
    found.append(("box", block(share, "head", _boxes(share, levels[:-1], classes), levels[0])))
    found.append(("mask", block(share, "head", _masks(share, levels[:-1], classes), levels[0])))
    return tuple(found)


def _scaled(spec: Cnn, share: Share) -> Part:
    """Scaled, normalised and padded on the device, image by image."""
    h, w = padded(spec.image, share.micro)
    raw, size = spec.input_bytes(1), 3 * h * w
    one: list[Work] = [MemoryBound("cast", raw, 4 * raw, "fp32"), MemoryBound("gather", 4 * raw, 4 * size, "fp32")]
    one += [MemoryBound("scale", 4 * size, 4 * size, "fp32")] * 4 + [MemoryBound("copy", 4 * size, 4 * size, "fp32")]
    return Part(name="scaled", forward=tuple(one * share.micro), cls="elementwise", modules=4 * share.micro)


def _rpn(share: Share, maps: list[Map]) -> list[Part]:
    """One small network over all levels, proposals without a gradient, and the losses of sampled anchors."""
    parts: list[Part] = []
    for level, x in enumerate(maps, 2):
        conv, y = convolution(share, f"conv{level}", x, WIDTH, 3, bias=True)
        score, _ = convolution(share, f"score{level}", y, regions.ANCHORS, 1, bias=True)
        offset, _ = convolution(share, f"offset{level}", y, 4 * regions.ANCHORS, 1, bias=True)
        found = [conv, score, replace(offset, saved=0)]
        if level > 2:
            found = [again(part) for part in found]
        parts += [found[0], relu(share, f"relu{level}", share.micro * y.size), *found[1:]]
    parts.append(regions.anchors(share, maps))
    parts += [regions.proposals(share, level, x) for level, x in enumerate(maps, 2)]
    total = sum(regions.ANCHORS * x.h * x.w for x in maps)
    return [*parts, regions.select(share), regions.matched(share, "rpn.matched", total), regions.scores_loss(share, maps)]


def _boxes(share: Share, maps: list[Map], classes: int) -> list[Part]:
    """512 regions of 7 x 7 an image through two linears of 1024; classes, and four offsets for each class."""
    rows, side = regions.SAMPLED * share.micro, 7
    sampled = regions.matched(share, "box.matched", regions.PROPOSALS + round(OBJECTS))
    parts = [sampled, regions.pooled(share, "box.pooled", maps, rows, side)]
    for name, width in (("fc6", WIDTH * side * side), ("fc7", _HIDDEN)):
        parts.append(linear(share, name, width, _HIDDEN, rows=rows, bias=True, low=False))
        parts.append(relu(share, f"{name}.relu", rows * _HIDDEN))
    parts.append(linear(share, "predictor", _HIDDEN, (classes, 4 * classes), rows=rows, bias=True, low=False))
    smooth = elementwise("zero", share, 4 * classes * rows, 0, share.e)
    offsets = Part(name="box.offsets", forward=regions.small(14), backward=(*regions.small(9), smooth), cls="loss", reads=True)
    return [*parts, loss(share, classes, rows=rows, name="box.loss"), offsets]


def _masks(share: Share, maps: list[Map], classes: int) -> list[Part]:
    """Positive regions of 14 x 14 through four 3 x 3 convolutions, doubled by a transposed one, and a mask for each class."""
    count = round(OBJECTS * POSITIVE) * share.micro
    alone = replace(share, shape=replace(share.shape, micro=count))
    x = Map(WIDTH, _MASK, _MASK)
    positive = Part(
        name="positive",
        forward=regions.small(8 * share.micro),
        cls="regions",
        detached=True,
        shapeless=True,
        reads=True,
        modules=3 * share.micro,
    )
    parts = [positive, regions.pooled(share, "mask.pooled", maps, count, _MASK)]
    for index in range(1, 5):
        conv, x = convolution(alone, f"fcn{index}", x, WIDTH, 3, bias=True)
        parts += [conv, relu(share, f"relu{index}", count * x.size)]
    up, x = up_convolution(alone, "fcn5", x, x.channels)
    logits, y = convolution(alone, "logits", x, classes, 1, bias=True)
    parts += [up, relu(share, "relu5", count * x.size), logits, regions.targets(share, count)]
    chosen = elementwise("zero", share, count * y.size, 0, share.e)
    part = Part(name="mask.loss", forward=regions.small(10), backward=(*regions.small(4), chosen), cls="loss", saved=4 * count * y.h * y.w)
    read = Part(name="losses", cls="loss", detached=True, reads=True, modules=12)  # both trainers print what they have read before backward
    return [*parts, part, read]
