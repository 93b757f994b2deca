"""Mask R-CNN (He et al. 2017) on a ResNet with a feature pyramid (Lin et al. 2017), as torchvision's maskrcnn_resnet50_fpn and maskrcnn-benchmark
build and train it: the stem and the first stage stay as they were pre-trained, and so do all batch norms, which are a product and a sum then.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.activation import activation
from sim.model.layers.elementwise import elementwise
from sim.model.layers.ends import loss
from sim.model.layers.linear import linear
from sim.model.parts import Block, Part, still
from sim.model.pictures import regions
from sim.model.pictures.frozen import bottleneck, carried, fixed, narrowed, summed
from sim.model.pictures.maps import up_convolution
from sim.model.pictures.vision import Blocks, Map, block, convolution, depth, pool
from sim.model.share import Share
from sim.model.specs.coco import OBJECTS, POSITIVE, padded
from sim.model.specs.spec import Cnn
from sim.work import MemoryBound, Work
from topologies.errors import Refused

_STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_WIDTH = 256
"""Channels of the pyramid and of the heads."""
_HIDDEN = 1024
_MASK = 14


def blocks(spec: Cnn, share: Share) -> Blocks:
    """stem, one block per residual block, pyramid, proposals, box head, mask head. Raises `UnknownName` for a depth, `Refused` for CUDA graphs."""
    if share.framework.cuda_graphs:
        raise Refused(
            f"{spec.name}: how many regions there are depends on the data, so no CUDA graph holds its step; set cuda_graphs = false"
        )
    classes = spec.classes or 91
    parts, x = _stem(spec, share)
    found: list[tuple[str, Block]] = [("stem", block(share, "embed", parts, Map(3, 4 * x.h, 4 * x.w)))]
    maps: list[Map] = []
    for stage, count in enumerate(depth(spec, _STAGES)):
        for index in range(count):
            parts, y = bottleneck(share, x, 64 * 2**stage, 2 if stage and not index else 1, opens=stage == 1 and not index)
            if index < 2:
                same = block(share, "layer", parts, x) if stage else block(share, "embed", [still(part) for part in parts], x)
            found.append((f"S{stage}.{index}", same))
            x = y
        maps.append(x)
    parts, levels = _pyramid(share, maps)
    found.append(("fpn", block(share, "layer", parts, maps[-1])))
    found.append(("rpn", block(share, "head", _rpn(share, levels), levels[0])))
    found.append(("box", block(share, "head", _boxes(share, levels[:-1], classes), levels[0])))
    found.append(("mask", block(share, "head", _masks(share, levels[:-1], classes), levels[0])))
    return tuple(found)


def _stem(spec: Cnn, share: Share) -> tuple[list[Part], Map]:
    """Scaled, normalised and padded on the device, image by image; 7 x 7 of stride 2, norm, pooling."""
    h, w = padded(spec.image, share.micro)
    raw, size = spec.input_bytes(1), 3 * h * w
    one: list[Work] = [MemoryBound("cast", raw, 4 * raw, "fp32"), MemoryBound("gather", 4 * raw, 4 * size, "fp32")]
    one += [MemoryBound("scale", 4 * size, 4 * size, "fp32")] * 4 + [MemoryBound("copy", 4 * size, 4 * size, "fp32")]
    scaled = Part(name="scaled", forward=tuple(one * share.micro), cls="elementwise", modules=4 * share.micro)
    conv, x = convolution(share, "conv1", Map(3, h, w), 64, 7, stride=2, padding=3, first=True)
    pooled, y = pool(replace(share, e=carried(share)), "pool", x, 3, 2, 1)
    return [still(part) for part in (scaled, narrowed(share, conv, Map(3, h, w)), fixed(share, "bn1", x), pooled)], y


def _pyramid(share: Share, maps: list[Map]) -> tuple[list[Part], list[Map]]:
    """From the smallest map up: a 1 x 1 of each stage, plus the level below at twice its size, and a 3 x 3. One more level by every other place."""
    parts: list[Part] = []
    found: list[Map] = []
    for index in reversed(range(len(maps))):
        level, last = index + 2, index == len(maps) - 1
        inner, x = convolution(share, f"inner{level}", maps[index], _WIDTH, 1, bias=True, first=not index)
        inner = narrowed(share, inner if last or carried(share) > share.e else replace(inner, saved=0), maps[index])
        if index and not last:  # the next stage reads the same map, and keeps it
            inner = replace(inner, backward=(*inner.backward, summed(share, maps[index])))
        parts.append(inner)
        if not last:
            parts.append(_doubled(share, f"sum{level}", x))
        outer, y = convolution(share, f"outer{level}", x, _WIDTH, 3, bias=True)
        parts.append(outer)
        found.insert(0, y)
    top, y = pool(share, "outer6", found[-1], 1, 2)
    return [*parts, replace(top, saved=0)], [*found, y]


def _doubled(share: Share, name: str, x: Map) -> Part:
    """The smaller map at twice its size, added; backward sums four places, and adds that to the smaller map's own gradient."""
    e, n = share.e, share.micro * x.size
    forward = (elementwise("copy", share, n, e / 4, e), elementwise("add", share, n, 2 * e, e))
    backward = (elementwise("reduce", share, n, e, e / 4), elementwise("add", share, n // 4, 2 * e, e))
    return Part(name=name, forward=forward, backward=backward, cls="elementwise", modules=2)


def _relu(share: Share, name: str, n: int) -> Part:
    """Its output is kept as the next product's input."""
    return replace(activation(share, name, 1, n, "relu"), saved=0)


def _shared(part: Part) -> Part:
    """The same weights once more: cast already, and their gradient is added to the one before."""
    size = sum(part.tensors)
    works = [tuple(work for work in found if getattr(work, "what", "") != "cast") for found in (part.forward, part.wgrad)]
    add = MemoryBound("add", 8 * size, 4 * size, "fp32")
    return replace(part, forward=works[0], wgrad=(*works[1], add), tensors=(), matrices=())


def _rpn(share: Share, maps: list[Map]) -> list[Part]:
    """One small network over all levels, proposals without a gradient, and the losses of sampled anchors."""
    parts: list[Part] = []
    for level, x in enumerate(maps, 2):
        conv, y = convolution(share, f"conv{level}", x, _WIDTH, 3, bias=True)
        score, _ = convolution(share, f"score{level}", y, regions.ANCHORS, 1, bias=True)
        offset, _ = convolution(share, f"offset{level}", y, 4 * regions.ANCHORS, 1, bias=True)
        found = [conv, score, replace(offset, saved=0)]
        if level > 2:
            found = [_shared(part) for part in found]
        parts += [found[0], _relu(share, f"relu{level}", share.micro * y.size), *found[1:]]
    parts.append(regions.anchors(share, maps))
    parts += [regions.proposals(share, level, x) for level, x in enumerate(maps, 2)]
    total = sum(regions.ANCHORS * x.h * x.w for x in maps)
    return [*parts, regions.select(share), regions.matched(share, "rpn.matched", total), regions.scores_loss(share, maps)]


def _boxes(share: Share, maps: list[Map], classes: int) -> list[Part]:
    """512 regions of 7 x 7 an image through two linears of 1024; classes, and four offsets for each class."""
    rows, side = regions.SAMPLED * share.micro, 7
    sampled = regions.matched(share, "box.matched", regions.PROPOSALS + round(OBJECTS))
    parts = [sampled, regions.pooled(share, "box.pooled", maps, rows, side)]
    for name, width in (("fc6", _WIDTH * side * side), ("fc7", _HIDDEN)):
        parts.append(linear(share, name, width, _HIDDEN, rows=rows, bias=True, low=False))
        parts.append(_relu(share, f"{name}.relu", rows * _HIDDEN))
    parts.append(linear(share, "predictor", _HIDDEN, (classes, 4 * classes), rows=rows, bias=True, low=False))
    smooth = elementwise("zero", share, 4 * classes * rows, 0, share.e)
    offsets = Part(name="box.offsets", forward=regions.small(14), backward=(*regions.small(9), smooth), cls="loss", reads=True)
    return [*parts, loss(share, classes, rows=rows, name="box.loss"), offsets]


def _masks(share: Share, maps: list[Map], classes: int) -> list[Part]:
    """Positive regions of 14 x 14 through four 3 x 3 convolutions, doubled by a transposed one, and a mask for each class."""
    count = round(OBJECTS * POSITIVE) * share.micro
    alone = replace(share, shape=replace(share.shape, micro=count))
    x = Map(_WIDTH, _MASK, _MASK)
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
        conv, x = convolution(alone, f"fcn{index}", x, _WIDTH, 3, bias=True)
        parts += [conv, _relu(share, f"relu{index}", count * x.size)]
    up, x = up_convolution(alone, "fcn5", x, x.channels)
    logits, y = convolution(alone, "logits", x, classes, 1, bias=True)
    parts += [up, _relu(share, "relu5", count * x.size), logits, regions.targets(share, count)]
    chosen = elementwise("zero", share, count * y.size, 0, share.e)
    part = Part(name="mask.loss", forward=regions.small(10), backward=(*regions.small(4), chosen), cls="loss", saved=4 * count * y.h * y.w)
    read = Part(name="losses", cls="loss", detached=True, reads=True, modules=12)  # both trainers print what they have read before backward
    return [*parts, part, read]
