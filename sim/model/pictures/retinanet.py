"""RetinaNet (Lin et al. 2017, focal loss) as MLPerf Training's reference builds and trains it (mlcommons/training, single_stage_detector/ssd:
model/retinanet.py, engine.py; torchvision's code): the backbone's last three stages, a pyramid from P3 to P7, two small networks on all its levels.

The loss takes the anchors of one photograph after the other, without those that neither hit an object nor miss them all, and is written out: each
operator is a kernel over anchors x classes, and what autograd keeps of it lives until backward. In a CUDA graph the loss is one kernel, and the input path
hands out pictures that are scaled and anchors that are matched (NVIDIA's submissions: --apex-focal-loss, --dali-matched-idxs).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.parts import Block, Part
from sim.model.pictures.frozen import backbone, convolved
from sim.model.pictures.pyramid import WIDTH, again, pyramid, relu
from sim.model.pictures.regions import python, small
from sim.model.pictures.vision import Blocks, Map, block, convolution
from sim.model.share import Share
from sim.model.specs.openimages import OBJECTS
from sim.model.specs.spec import Cnn
from sim.work import MemoryBound, Work

_ANCHORS = 9
"""Of each place of a map: three sizes of three aspect ratios."""


def blocks(spec: Cnn, share: Share) -> Blocks:
    """stem, one block per residual block, pyramid, classes, boxes, losses. Raises `UnknownName` for a depth, `Refused` for CUDA graphs."""
    side, classes = spec.image or 800, spec.classes or 264
    found, maps = backbone(spec, share, _scaled(spec, share, side), Map(3, side, side))
    parts, levels = _levels(share, maps[1:])
    found.append(("fpn", block(share, "layer", parts, maps[-1])))
    for name, width in (("classes", classes), ("boxes", 4)):
        parts = _subnet(share, levels, width, keeps=name == "classes")
        found.append((name, block(share, "head", parts, levels[0])))
    anchors = _ANCHORS * sum(x.h * x.w for x in levels)
    losses = [_focal(share, anchors, classes), _offsets(share, anchors)]
    if not share.framework.cuda_graphs:  # they are printed before backward
        losses = [_matched(share, anchors, levels), *losses, Part(name="losses", cls="loss", detached=True, reads=True, modules=12)]
    logits = share.micro * anchors * (classes + 4) * share.e
    found.append(("loss", Block(kind="head", parts=tuple(losses), saved_input=logits)))
    return tuple(found)


def _scaled(spec: Cnn, share: Share, side: int) -> Part:
    """Normalised as it is, scaled, and put beside the others, on the device, image by image; boxes that are none are looked for (a read)."""
    raw, size = spec.input_bytes(1), 12 * side * side
    if share.framework.cuda_graphs:
        ready: Work = MemoryBound("copy", size * share.micro, 3 * side * side * share.e * share.micro, "fp32")
        return Part(name="scaled", forward=(ready,), cls="elementwise")
    scale: Work = MemoryBound("scale", raw, raw, "fp32")
    one = (scale, scale, MemoryBound("gather", 4 * size, size, "fp32"), MemoryBound("copy", size, size, "fp32"), *small(12))
    return Part(name="scaled", forward=one * share.micro, cls="elementwise", reads=True, modules=python(16, 1) * share.micro)


def _levels(share: Share, maps: list[Map]) -> tuple[list[Part], list[Map]]:
    """P3 to P5, and two more by convolutions with stride 2: P6 of P5, P7 of what ReLU passes on of P6 (LastLevelP6P7)."""
    parts, levels = pyramid(share, maps, 3, still=False)
    p6, x = convolution(share, "outer6", levels[-1], WIDTH, 3, stride=2, bias=True)
    p7, y = convolution(share, "outer7", x, WIDTH, 3, stride=2, bias=True)
    p6, passed = (_rejoined(share, one, at) for one, at in ((p6, levels[-1]), (relu(share, "relu6", share.micro * x.size), x)))
    return [*parts, p6, passed, p7], [*levels, x, y]


def _rejoined(share: Share, part: Part, x: Map) -> Part:
    """It reads a map that others read and keep, too: the gradients are added."""
    add = elementwise("add", share, share.micro * x.size, 2 * share.e, share.e)
    return replace(part, saved=0, backward=(*part.backward, add))


def _subnet(share: Share, levels: list[Map], width: int, *, keeps: bool) -> list[Part]:
    """Four 3 x 3 convolutions and a last one to `width` numbers an anchor, on each level by the same weights; then all in the anchors' order.
    `keeps`: the first of two that read the levels.

    The last convolution's map lies in that order already where its layout is channels-last; elsewhere it is copied, and its gradient always.
    """
    parts: list[Part] = []
    total: list[Work] = []
    for level, x in enumerate(levels, 3):
        found, y = [], x
        for index in range(5):
            conv, y = convolution(share, f"conv{level}.{index}", y, WIDTH if index < 4 else _ANCHORS * width, 3, bias=True)
            conv = conv if keeps or index else _rejoined(share, conv, x)
            found += [again(conv) if level > 3 else conv, *[relu(share, f"relu{level}.{index}", share.micro * y.size)] * (index < 4)]
        parts += [_without_adds(part) for part in found] if convolved(share) else found
        total.append(elementwise("permute", share, share.micro * y.size, share.e, share.e))
    n = share.micro * _ANCHORS * width * sum(x.h * x.w for x in levels)
    copy, maps = elementwise("copy", share, n, share.e, share.e), share.framework.maps
    last = maps.channels_last or (share.e < 4 and not maps.planar)
    backward: list[Work] = [copy] if last else total
    return [*parts, Part(name="joined", forward=(*([] if last else total), copy), backward=tuple(backward), cls="elementwise", modules=0)]


def _without_adds(part: Part) -> Part:
    """Bias and ReLU as the convolution writes its map."""
    return replace(part, forward=tuple(work for work in part.forward if not isinstance(work, MemoryBound) or work.what == "cast"))


def _matched(share: Share, anchors: int, levels: list[Map]) -> Part:
    """Anchors of all levels, the same for all images; then image by image the overlap of each with each object, its best object, and each
    object's best anchors (box_iou, Matcher): some twenty kernels, most over all pairs, and a read of how many these are."""
    pairs = round(OBJECTS * anchors)
    over: Work = MemoryBound("scale", 8 * pairs, 4 * pairs, "fp32")
    corners: Work = MemoryBound("scale", 8 * pairs, 8 * pairs, "fp32")
    best: Work = MemoryBound("reduce", 4 * pairs, 12 * anchors, "fp32")
    label: Work = MemoryBound("activation", 8 * anchors, 8 * anchors, "fp32")
    one = (*[corners] * 4, *[over] * 5, best, *[label] * 6, best, over, *small(8))
    grid: tuple[Work, ...] = (MemoryBound("copy", 16 * anchors, 16 * anchors, "fp32"),) * 2
    return Part(
        name="matched",
        forward=(*small(9 * len(levels)), *grid, *one * share.micro),
        cls="regions",
        detached=True,
        shapeless=True,
        reads=True,
        modules=python(9) * len(levels) + python(len(one), 1) * share.micro,
    )


def _focal(share: Share, anchors: int, classes: int) -> Part:
    """Focal loss of all anchors and classes of each image, and five reads of how many anchors count (sigmoid_focal_loss; retinanet.py,
    RetinaNetClassificationHead.compute_loss). Backward stacks the gradients of all images.

    Autocast computes cross-entropy, power and sum in fp32 (torch.amp, operators that autocast to float32). A compiler makes one kernel each way
    of it; fused ones take all images at once, and keep the gradient that they have made (apex.contrib.focal_loss).
    """
    b, e, n = share.micro, share.e, anchors * classes
    if share.framework.loss.fused:
        made, scaled = elementwise("activation", share, n * b, e, e, 20.0), elementwise("scale", share, n * b, e, e)
        return Part(name="focal", forward=(made,), backward=(scaled,), cls="loss", saved=n * e * b, modules=2)
    if share.framework.compile:
        forward: tuple[Work, ...] = (elementwise("activation", share, n, e, e, 20.0),)
        backward: tuple[Work, ...] = (elementwise("scale", share, n, e, e),)
        kept = n * e
    else:
        forward, backward = _written_out(share, n)
        kept = n * ((4 * e + 20) if share.autocast else 8 * e)
    stacked = elementwise("copy", share, n * b, e, e)
    calls = python(len(forward) + 14, 5) * b
    return Part(
        name="focal",
        forward=(*forward, *small(14)) * b,
        backward=(*backward * b, stacked),
        cls="loss",
        saved=kept * b,
        working=2 * e * n * b + 12 * n,  # all images' gradients and their stack, and what one image's are made of
        shapeless=True,
        reads=True,
        modules=calls,
    )


def _written_out(share: Share, n: int) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """Of one image, an operator a kernel: zeros for targets, anchors picked; cross-entropy; p_t = p t + (1 - p) (1 - t); (1 - p_t)^2; alpha's."""
    e = share.e
    w = 4 if share.autocast else e
    up, down = ([elementwise("cast", share, n, *sizes)] * (w != e) for sizes in ((e, w), (w, e)))
    zero, pick = elementwise("zero", share, n, 0, e), elementwise("gather", share, n, e, e)
    one, two = elementwise("scale", share, n, e, e), elementwise("scale", share, n, 2 * e, e)
    wide, both = elementwise("scale", share, n, w, w), elementwise("scale", share, n, 2 * w, w)
    sigmoid, log = elementwise("activation", share, n, e, e, 5.0), elementwise("activation", share, n, w, w, 8.0)
    crossed: list[Work] = [*up, *up, wide, both, log, both]
    forward = [zero, pick, pick, sigmoid, *crossed, two, one, one, two, two, one, *up, wide, both, one, one, one, two]
    forward += [elementwise("scale", share, n, e + w, w), elementwise("reduce", share, n, w, 0)]
    powered: list[Work] = [wide, wide, both, *down]
    backward = [elementwise("scale", share, n, e, w), both, both, *powered, one, two, two, one, two]
    backward += [elementwise("activation", share, n, 2 * e, e, 3.0), log, both, both, *down, two]
    backward += [zero, elementwise("scatter", share, n, 2 * e, e)]
    return tuple(forward), tuple(backward)


def _offsets(share: Share, anchors: int) -> Part:
    """Offsets of the anchors that hit an object, against those that they should have; backward puts their gradients among zeros."""
    b = share.micro
    if share.framework.cuda_graphs:
        one = elementwise("scale", share, 4 * anchors * b, 2 * share.e, share.e)
        return Part(name="offsets", forward=(one, one, *small(4)), backward=(one, one), cls="loss", saved=4 * anchors * b * share.e)
    zero = elementwise("zero", share, 4 * anchors, 0, share.e)
    stacked = elementwise("copy", share, 4 * anchors * b, share.e, share.e)
    return Part(
        name="offsets",
        forward=small(34) * b,
        backward=(*(*small(6), zero) * b, stacked),
        cls="loss",
        shapeless=True,
        reads=True,
        modules=python(34, 1) * b,
    )
