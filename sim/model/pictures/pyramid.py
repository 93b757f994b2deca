"""A feature pyramid (Lin et al. 2017), and what heads need that read all of its levels: the same weights again and again.

torchvision's FeaturePyramidNetwork, which maskrcnn-benchmark's equals.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.activation import activation
from sim.model.layers.elementwise import elementwise
from sim.model.parts import Part
from sim.model.pictures.frozen import carried, narrowed, summed
from sim.model.pictures.vision import Map, convolution
from sim.model.share import Share
from sim.work import MemoryBound

WIDTH = 256
"""Channels of the pyramid and of the heads."""


def pyramid(share: Share, maps: list[Map], lowest: int, *, still: bool) -> tuple[list[Part], list[Map]]:
    """From the smallest map up: a 1 x 1 of each stage, plus the level below at twice its size, and a 3 x 3. `lowest`: the number of the largest
    map's level. `still`: nothing is trained before that map, which needs no gradient."""
    parts: list[Part] = []
    found: list[Map] = []
    for index in reversed(range(len(maps))):
        level, last, first = index + lowest, index == len(maps) - 1, still and not index
        inner, x = convolution(share, f"inner{level}", maps[index], WIDTH, 1, bias=True, first=first)
        inner = narrowed(share, inner if last or carried(share) > share.e else replace(inner, saved=0), maps[index])
        if not first and not last:  # the next stage reads the same map, and keeps it
            inner = replace(inner, backward=(*inner.backward, summed(share, maps[index])))
        parts.append(inner)
        if not last:
            parts.append(_doubled(share, f"sum{level}", x))
        outer, y = convolution(share, f"outer{level}", x, WIDTH, 3, bias=True)
        parts.append(outer)
        found.insert(0, y)
    return parts, found


def _doubled(share: Share, name: str, x: Map) -> Part:
    """The smaller map at twice its size, added; backward sums four places, and adds that to the smaller map's own gradient."""
    e, n = share.e, share.micro * x.size
    forward = (elementwise("copy", share, n, e / 4, e), elementwise("add", share, n, 2 * e, e))
    backward = (elementwise("reduce", share, n, e, e / 4), elementwise("add", share, n // 4, 2 * e, e))
    return Part(name=name, forward=forward, backward=backward, cls="elementwise", modules=2)


def relu(share: Share, name: str, n: int) -> Part:
    """Its output is kept as the next product's input."""
    return replace(activation(share, name, 1, n, "relu"), saved=0)


def again(part: Part) -> Part:
    """The same weights once more: cast already, and their gradient is added to the one before."""
    size = sum(part.tensors)
    works = [tuple(work for work in found if getattr(work, "what", "") != "cast") for found in (part.forward, part.wgrad)]
    add = MemoryBound("add", 8 * size, 4 * size, "fp32")
    return replace(part, forward=works[0], wgrad=(*works[1], add), tensors=(), matrices=())
