"""Inception v3 (Szegedy et al. 2015, table 1) as torchvision's models/inception.py builds it, with its auxiliary classifier.

Branches of a block read one map, which is kept once and whose gradients are summed; what they give, which ReLU keeps, is copied into one map
(torch.cat).
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.layers.ends import loss
from sim.model.layers.linear import linear
from sim.model.parts import Block, Part
from sim.model.pictures.vision import Blocks, Map, block, convolution, mean, normalised, pool
from sim.model.share import Share
from sim.model.specs.spec import Cnn
from sim.work import MemoryBound, Work

Step = tuple[int, int | tuple[int, int], int, int]
"""A convolution's channels, kernel, stride and padding (-1: half the kernel)."""
Branch = tuple[Step, ...]


def _one(out: int) -> Step:
    return (out, 1, 1, -1)


def _same(out: int, kernel: int | tuple[int, int]) -> Step:
    return (out, kernel, 1, -1)


_WIDE, _TALL, _HALF = (1, 7), (7, 1), ((1, 3), (3, 1))
_STEM: tuple[Step | None, ...] = ((32, 3, 2, 0), (32, 3, 1, 0), (64, 3, 1, -1), None, (80, 1, 1, -1), (192, 3, 1, 0), None)
"""None: max pooling of 3 with stride 2."""


def _a(after: int) -> tuple[Branch, ...]:
    return ((_one(64),), (_one(48), _same(64, 5)), (_one(64), _same(96, 3), _same(96, 3)), (_one(after),))


def _c(inner: int) -> tuple[Branch, ...]:
    long = (_one(inner), _same(inner, _TALL), _same(inner, _WIDE), _same(inner, _TALL), _same(192, _WIDE))
    return ((_one(192),), (_one(inner), _same(inner, _WIDE), _same(192, _TALL)), long, (_one(192),))


_B: tuple[Branch, ...] = (((384, 3, 2, 0),), (_one(64), _same(96, 3), (96, 3, 2, 0)))
_D: tuple[Branch, ...] = ((_one(192), (320, 3, 2, 0)), (_one(192), _same(192, _WIDE), _same(192, _TALL), (192, 3, 2, 0)))
_E: tuple[Branch, ...] = ((_one(320),), (_one(384),), (_one(448), _same(384, 3)), (_one(192),))
"""The second and the third end in two convolutions side by side, 1 x 3 and 3 x 1."""


def blocks(spec: Cnn, share: Share) -> Blocks:
    """stem, M0 ... M10 (the auxiliary classifier with the block that it reads), head."""
    image = Map(3, *(spec.image or 299,) * 2)
    parts, x = _stem(share, image)
    found: list[tuple[str, Block]] = [("stem", block(share, "embed", parts, image))]
    rows: list[tuple[tuple[Branch, ...], str]] = [(_a(32), "mean"), (_a(64), "mean"), (_a(64), "mean"), (_B, "max")]
    rows += [(_c(inner), "mean") for inner in (128, 160, 160, 192)] + [(_D, "max"), (_E, "mean"), (_E, "mean")]
    for index, (branches, pooled) in enumerate(rows):
        parts, y = _mixed(share, x, branches, pooled)
        if index == 7:
            parts += _aside(share, y, spec.classes or 1000)
        found.append((f"M{index}", block(share, "layer", parts, x)))
        x = y
    head = [mean(share, "pool", x), linear(share, "fc", x.channels, spec.classes or 1000, rows=share.micro, bias=True, low=False)]
    return (*found, ("head", block(share, "head", [*head, loss(share, spec.classes or 1000, rows=share.micro)], x)))


def _stem(share: Share, image: Map) -> tuple[list[Part], Map]:
    parts: list[Part] = []
    x = image
    for index, step in enumerate(_STEM):
        if step is None:
            part, x = pool(share, f"pool{index}", x, 3, 2)
            parts.append(part)
        else:
            some, x = _step(share, f"stem{index}", x, step, first=not index)
            parts += some
    return parts, x


def _step(share: Share, name: str, x: Map, step: Step, *, first: bool = False, keeps: bool = True) -> tuple[list[Part], Map]:
    """Convolution, batch norm and ReLU. `keeps`: no other branch keeps the same input."""
    out, kernel, stride, padding = step
    conv, y = convolution(share, name, x, out, kernel, stride=stride, padding=padding, first=first)
    return [conv if keeps else replace(conv, saved=0), normalised(share, f"{name}.bn", y)], y


def _mixed(share: Share, x: Map, branches: tuple[Branch, ...], pooled: str) -> tuple[list[Part], Map]:
    """The branches; the last begins with a mean over 3 x 3 (`mean`), or one more is max pooling of stride 2 (`max`)."""
    parts: list[Part] = []
    ends: list[Map] = []
    for at, branch in enumerate(branches):
        y, smooth = x, pooled == "mean" and at == len(branches) - 1
        if smooth:
            parts.append(_smoothed(share, f"b{at}.mean", x))
        for index, step in enumerate(branch):
            some, y = _step(share, f"b{at}.{index}", y, step, keeps=smooth or not at or index > 0)
            parts += some
        if branches is _E and at in (1, 2):
            for index, kernel in enumerate(_HALF):
                some, z = _step(share, f"b{at}.half{index}", y, _same(384, kernel), keeps=not index)
                parts += some
                ends.append(z)
            parts.append(_summed(share, f"b{at}.fork", y, 1))
        else:
            ends.append(y)
    kept = share.micro * sum(end.size for end in ends) * share.e
    if pooled == "max":
        part, y = pool(share, "pool", x, 3, 2)
        parts.append(replace(part, saved=part.saved - share.micro * x.size * share.e))
        ends.append(y)
    whole = Map(sum(end.channels for end in ends), ends[0].h, ends[0].w)
    copy: Work = elementwise("copy", share, share.micro * whole.size, share.e, share.e)
    joined = Part(name="cat", forward=(copy,), cls="elementwise", saved=kept, modules=0)
    return [*parts, _summed(share, "fork", x, len(branches) - (pooled != "max")), joined], whole


def _summed(share: Share, name: str, x: Map, times: int) -> Part:
    """Gradients of a map that several branches read are added, one after the other."""
    add: Work = elementwise("add", share, share.micro * x.size, 2 * share.e, share.e)
    return Part(name=name, backward=(add,) * times, cls="elementwise", modules=0)


def _smoothed(share: Share, name: str, x: Map) -> Part:
    """A mean over 3 x 3 places with stride 1. Its input is kept by the other branches."""
    n = share.micro * x.size * share.e
    return Part(
        name=name,
        forward=(MemoryBound("pool", n, n, share.act),),
        backward=(MemoryBound("pool_backward", n, n, share.act),),
        cls="elementwise",
    )


def _aside(share: Share, x: Map, classes: int) -> list[Part]:
    """The auxiliary classifier: a mean over 5 x 5 with stride 3 of the map that the next block keeps, two convolutions, a mean over
    what is left (one place for 299 pixels), a linear, and a loss of its own."""
    side = (x.h - 5) // 3 + 1
    small = Map(x.channels, side, side).of("aux.mean", x)
    read, written = share.micro * x.size * share.e, share.micro * small.size * share.e
    down: Work = MemoryBound("pool", read, written, share.act)
    up: Work = MemoryBound("pool_backward", written, read, share.act)
    first = Part(name="aux.mean", forward=(down,), backward=(up,), cls="elementwise")
    one, y = _step(share, "aux.conv0", small, _one(128))
    two, z = _step(share, "aux.conv1", y, (768, 5, 1, 0))
    last = linear(share, "aux.fc", z.channels, classes, rows=share.micro, bias=True, low=False)
    return [
        first,
        *one,
        *two,
        mean(share, "aux.pool", z),
        last,
        replace(loss(share, classes, rows=share.micro), name="aux.loss"),
        _summed(share, "aux.fork", x, 1),
    ]
