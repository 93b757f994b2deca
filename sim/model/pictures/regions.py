"""Regions of an image: anchors, proposals, sampling, RoIAlign, mask targets. Most of it is small kernels on the way between host and device.

What depends on the data is counted by rule: kernels and reads of each image and pyramid level as maskrcnn-benchmark launches them, in the version of
NVIDIA's DeepLearningExamples (PyTorch/Segmentation/MaskRCNN: modeling/rpn, modeling/roi_heads, csrc/cuda), sizes as its configuration sets them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.model.layers.elementwise import elementwise
from sim.model.parts import Part
from sim.model.pictures.vision import Map
from sim.model.share import Share
from sim.model.specs.coco import OBJECTS
from sim.work import MemoryBound, Work

ANCHORS = 3
"""Of each place of a map: three aspect ratios."""
CANDIDATES = 2000
"""Of each level and image, the best before suppression (PRE_NMS_TOP_N_TRAIN)."""
PROPOSALS = 1000
"""Of each image after it (FPN_POST_NMS_TOP_N_TRAIN: 8000 for 8 images)."""
SAMPLED = 512
"""Regions of each image that train the box head (BATCH_SIZE_PER_IMAGE)."""
_WORDS = -(-CANDIDATES // 64)
"""64-bit words of overlaps of one candidate with all others."""
_PASSES = 16
"""Of a radix selection over fp32 keys, two bits each (SortingRadixSelect.cuh)."""
_CALL = 0.6
"""Module calls' worth of Python around each kernel: 12-14 us a kernel with all that the host does, 8 of them its launch (params/host.toml)."""
_READ = 2
"""The same for each further read, which waits for one small kernel and its copy."""
_WALK = 12
"""The same for the walk over 2,000 rows of overlaps on the CPU, some 0.1 ms (assumed)."""


def small(count: float) -> tuple[Work, ...]:
    """Kernels over so few values that their launch is all that they take."""
    return (MemoryBound("copy", 4096, 4096, "fp32"),) * round(count)


def python(kernels: float, reads: int = 0) -> int:
    """Module calls that stand for the Python of so many kernels and reads."""
    return round(_CALL * kernels + _READ * reads)


def anchors(share: Share, maps: Sequence[Map]) -> Part:
    """Boxes around each place of each map, and for each image which of them lie inside (anchor_generator.py)."""
    works: tuple[Work, ...] = ()
    for x in maps:
        n = ANCHORS * x.h * x.w
        works += (*small(9), MemoryBound("copy", 16 * n, 16 * n, "fp32"))
        works += (MemoryBound("activation", 8 * n, n, "fp32"),) * 7 * share.micro
    return Part(
        name="rpn.anchors", forward=works, cls="regions", detached=True, shapeless=True, modules=python(7) * len(maps) * share.micro
    )


def proposals(share: Share, level: int, x: Map) -> Part:
    """The best candidates of one level, decoded in one kernel for all images; then, image by image, sorted and suppressed.

    Suppression compares all pairs on the device, copies their bits to the host, which walks over them and copies the survivors back (nms.cu).
    """
    n, b = ANCHORS * x.h * x.w, share.micro
    kept = min(CANDIDATES, n)
    best = MemoryBound("topk", 4 * n * b * _PASSES, 12 * kept * b, "fp32", 2.0 * n * b, 1, b)
    works: list[Work] = [elementwise("activation", share, n * b, share.e, share.e), best, *small(6)]
    works += [MemoryBound("copy", 16 * n * b, 16 * n * b, "fp32"), MemoryBound("gather", 36 * kept * b, 16 * kept * b, "fp32")]
    pairs = MemoryBound("topk", 20 * kept, 8 * kept * _WORDS, "fp32", 16.0 * kept * kept)
    works += [*small(28), pairs] * b
    return Part(
        name=f"rpn.proposals{level}",
        forward=tuple(works),
        cls="regions",
        detached=True,
        shapeless=True,
        reads=True,
        read_bytes=8 * kept * _WORDS * b,
        modules=(python(29, 4) + _WALK) * b,
    )


def select(share: Share) -> Part:
    """The best over all levels, and the annotated boxes beside them (select_over_all_levels, add_gt_proposals)."""
    return Part(
        name="rpn.select",
        forward=small(8 + 12 * share.micro),
        cls="regions",
        detached=True,
        shapeless=True,
        reads=True,
        modules=python(12, 1) * share.micro,
    )


def matched(share: Share, name: str, boxes: int) -> Part:
    """Boxes matched with the annotated ones and sampled, image by image: overlaps, labels, targets, two random permutations (each a sort),
    four reads of counts (matcher.py, balanced_positive_negative_sampler.py)."""
    iou = MemoryBound("gather", 16 * boxes, round(4 * OBJECTS * boxes), "fp32")
    match = MemoryBound("reduce", round(8 * OBJECTS * boxes), 16 * boxes, "fp32")
    label = MemoryBound("activation", 8 * boxes, 4 * boxes, "fp32")
    encode = MemoryBound("gather", 48 * boxes, 16 * boxes, "fp32")
    order = MemoryBound("sort", 8 * 8 * boxes, 8 * 8 * boxes, "fp32")
    one: list[Work] = [iou, match, *[label] * 12, encode, encode, order, order, *small(30)]
    calls = python(len(one), 4)
    return Part(
        name=name, forward=tuple(one * share.micro), cls="regions", detached=True, shapeless=True, reads=True, modules=calls * share.micro
    )


def scores_loss(share: Share, maps: Sequence[Map]) -> Part:
    """Scores and offsets of all levels brought into the anchors' order, and the losses of the 256 sampled of each image (rpn/loss.py)."""
    b = share.micro
    forward: list[Work] = []
    for x in maps:
        n = ANCHORS * x.h * x.w * b
        forward += [elementwise("permute", share, size, share.e, share.e) for size in (n, 4 * n)]
    total = 5 * sum(ANCHORS * x.h * x.w for x in maps) * b
    joined = elementwise("copy", share, total, share.e, share.e)
    zero = elementwise("zero", share, total, 0, share.e)
    backward = [*small(14), zero, joined, *forward]
    return Part(
        name="rpn.loss",
        forward=(*forward, joined, *small(18)),
        backward=tuple(backward),
        cls="loss",
        saved=8 * 256 * b,
        reads=True,
        shapeless=True,
        modules=python(30, 1),
    )


def pooled(share: Share, name: str, maps: Sequence[Map], regions: int, side: int) -> Part:
    """RoIAlign: each of side x side values of a region is the mean of four samples, each between four places (He et al. 2017, section 3).

    In fp32, whatever the maps are in (custom_fwd of layers/roi_align.py), level by level, with a read of how many regions lie in each. Its 16 places
    are read through L2, twice as fast as memory (params/memory.toml); backward adds to them there, a read and a write each.
    """
    n, e, levels = regions * maps[0].channels * side * side, share.e, len(maps)
    part = n // levels
    forward: list[Work] = [elementwise("zero", share, n, 0, e)]
    backward: list[Work] = []
    for x in maps:
        size = share.micro * x.size
        widen = [elementwise("cast", share, size, e, 4)] * (e < 4)
        narrow = [elementwise("cast", share, part, 4, e)] * (e < 4)
        forward += [*widen, *small(6), MemoryBound("gather", 16 * 4 * part // 2, 4 * part, "fp32"), *narrow]
        forward.append(elementwise("gather", share, part, e, e))
        adds = [MemoryBound("zero", 0, 4 * size, "fp32"), MemoryBound("scatter", 4 * part + 16 * 4 * part // 2, 16 * 4 * part // 2, "fp32")]
        back = [elementwise("cast", share, part, e, 4), elementwise("cast", share, size, 4, e)] if e < 4 else []
        backward += [elementwise("gather", share, part, e, e), *back[:1], *adds, *back[1:]]
        backward.append(elementwise("add", share, size, 2 * e, e))  # to the map's other gradients
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        cls="regions",
        shapeless=True,
        saved=20 * regions,
        working=(4 + 2 * e)
        * share.micro
        * sum(x.size for x in maps),  # its gradient of all maps, as it is made and as it is added to another's
        reads=True,
        modules=python(10, 1) * levels,
    )


def targets(share: Share, regions: int) -> Part:
    """Outlines of the objects drawn into each region, image by image: lists of polygons on the host, then four kernels
    (project_masks_on_boxes, generate_mask_targets.cu). An object has 1.4 polygons (assumed); three host calls each.

    The lists are indexed by a tensor on the device, twice: a read for each region and time (SegmentationMask.__getitem__).
    """
    calls = round((1.4 * 3 + 2 * _READ) * regions) + python(28, 2) * share.micro
    return Part(
        name="mask.targets", forward=small(28 * share.micro), cls="regions", detached=True, shapeless=True, reads=True, modules=calls
    )
