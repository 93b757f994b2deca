"""SSD300 on a ResNet-50 backbone, as in NVIDIA's DeepLearningExamples (Detection/SSD): the backbone up to its third
stage with stride 1 there, five further stages, and a box and a class convolution on each of six maps (8732 boxes).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.parts import Block, Part
from sim.model.pictures.resnet import residual_block, stem
from sim.model.pictures.vision import Blocks, Map, block, convolution, normalised
from sim.model.share import Share
from sim.model.specs.spec import Cnn
from sim.work import MemoryBound, Work

_EXTRA = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
"""(inner, outer channels, stride, padding of the 3 x 3) of each further stage."""
_BOXES = (4, 6, 6, 6, 4, 4)


def blocks(spec: Cnn, share: Share) -> Blocks:
    """stem, the backbone's 13 residual blocks, five further stages, head (predictors and the multi-box loss)."""
    image, classes = spec.image or 300, spec.classes or 81
    bottleneck = Cnn(name=spec.name, arch="resnet", depth=50)
    parts, x = stem(share, image)
    found: list[tuple[str, Block]] = [("stem", block(share, "embed", parts, Map(3, image, image)))]
    for stage, count in enumerate((3, 4, 6)):
        for index in range(count):
            stride = 2 if stage == 1 and not index else 1
            parts, y = residual_block(bottleneck, share, x, 64 * 2**stage, stride)
            same = found[-1][1] if index > 1 else block(share, "layer", parts, x)
            found.append((f"S{stage}.{index}", same))
            x = y
    maps = [x]
    for index, (inner, outer, stride, padding) in enumerate(_EXTRA):
        before = x
        one, y = convolution(share, "conv1", x, inner, 1)
        two, x = convolution(share, "conv2", y, outer, 3, stride=stride, padding=padding)
        stage_parts = [one, normalised(share, "bn1", y), two, normalised(share, "bn2", x)]
        found.append((f"E{index}", block(share, "layer", stage_parts, before)))
        maps.append(x)
    return (*found, ("head", block(share, "head", _head(share, maps, classes), maps[0])))


def _head(share: Share, maps: list[Map], classes: int) -> list[Part]:
    parts: list[Part] = []
    total = 0
    for index, (x, boxes) in enumerate(zip(maps, _BOXES, strict=True)):
        total += boxes * x.h * x.w
        for name, width in (("loc", 4), ("conf", classes)):
            conv, _ = convolution(share, f"{name}{index}", x, boxes * width, 3, bias=True)
            keeps = name == "loc" and index == len(maps) - 1  # both read the same map, and so does the next stage, which keeps it
            parts.append(conv if keeps else replace(conv, saved=0))
    return [*parts, _multibox(share, total, classes)]


def _multibox(share: Share, boxes: int, classes: int) -> Part:
    """Smooth L1 on boxes, cross-entropy on classes, hard negatives found by two sorts (SSD paper, section 2.2)."""
    n, rows = share.micro * boxes * classes, share.micro * boxes
    soft: Work = MemoryBound("softmax", n * share.e, 4 * n, "fp32", 5.0 * n, 1, rows)
    sort: Work = MemoryBound("sort", 8 * rows, 12 * rows, "fp32", 1.0, 1, share.micro)
    box: Work = elementwise("activation", share, 4 * rows, 8, 4)
    back: Work = MemoryBound("softmax", 8 * n, share.e * n, "fp32", 2.0 * n, 1, rows)
    return Part(name="head.loss", forward=(box, soft, sort, sort), backward=(back, box), cls="loss", saved=4 * n + 32 * rows, modules=4)
