"""ConvNeXt (Liu et al. 2022), operator by operator as torchvision's models/convnext.py runs it.

Norms and linears read each place's channels as a row (NHWC). The residual stream is fp32 under autocast: the scale of a layer is an
fp32 parameter.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.activation import activation
from sim.model.layers.elementwise import elementwise
from sim.model.layers.ends import loss
from sim.model.layers.linear import linear
from sim.model.parts import Block, Part
from sim.model.pictures.maps import cast_in, channel_norm, drop_path, join
from sim.model.pictures.vision import Blocks, Map, block, convolution, mean
from sim.model.share import Share
from sim.model.specs.pictures import ConvNext
from sim.work import MemoryBound, Work


def blocks(spec: ConvNext, share: Share) -> Blocks:
    """stem, for each stage its blocks (after the first stage: a norm and a convolution that halve the map), head."""
    stream = replace(share, es=4 if share.autocast else share.e)
    image = Map(spec.channels, spec.image, spec.image)
    conv, x = convolution(share, "conv", image, spec.widths[0], 4, stride=4, padding=0, bias=True, first=True)
    found: list[tuple[str, Block]] = [("stem", block(share, "embed", [conv, channel_norm(share, x)], image))]
    for stage, (count, width) in enumerate(zip(spec.depths, spec.widths, strict=True)):
        if stage:
            parts, y = _halved(share, x, width)
            found.append((f"D{stage}", _block(stream, parts, x)))
            x = y
        same = _block(stream, _layer(stream, x, bool(spec.drop_path)), x)
        for at in range(count):
            opens = not stage and not at and spec.drop_path  # nothing of the first block is dropped
            found.append((f"S{stage}.{at}", _block(stream, _layer(stream, x, False), x) if opens else same))
    head = [
        mean(stream, "pool", x),
        channel_norm(stream, Map(x.channels, 1, 1), es=stream.es),
        linear(stream, "fc", x.channels, spec.classes, rows=share.micro, bias=True, low=False, stream=True),
        loss(share, spec.classes, rows=share.micro),
    ]
    return (*found, ("head", _block(stream, head, x, "head")))


def _block(share: Share, parts: list[Part], x: Map, kind: str = "layer") -> Block:
    return Block(kind=kind, parts=tuple(parts), saved_input=share.micro * x.size * share.es)


def _halved(share: Share, x: Map, width: int) -> tuple[list[Part], Map]:
    conv, y = convolution(share, "conv", x, width, 2, stride=2, padding=0, bias=True)
    return [channel_norm(share, x, es=share.es), *cast_in(share, "cast", share.micro * x.size), conv], y


def _layer(share: Share, x: Map, drops: bool) -> list[Part]:
    """7 x 7 depthwise, norm, four times as wide and back, scaled for each channel, dropped for some pictures, added."""
    n, c = share.micro * x.size, x.channels
    places = share.micro * x.h * x.w
    conv, y = convolution(share, "depthwise", x, c, 7, groups=c, bias=True)
    parts = [
        *cast_in(share, "cast", n),
        conv,
        channel_norm(share, y),
        linear(share, "mlp.up", c, 4 * c, rows=places, bias=True, stream=True),
        activation(share, "mlp.act", places, 4 * c, "gelu"),
        linear(share, "mlp.down", 4 * c, c, rows=places, bias=True),
        _scaled(share, n, c),
    ]
    if drops:
        parts.append(drop_path(share, "drop", n, share.es))
    return [*parts, join(share, "join", n, share.es)]


def _scaled(share: Share, n: int, channels: int) -> Part:
    """Times a learned number for each channel. Backward: the gradient times it, and the gradient times the input, summed for each channel. A
    compiler multiplies in the add's kernel, and sums the products as they are made."""
    e, es = share.e, share.es
    scale: Work = elementwise("scale", share, n, e, es)
    back: list[Work] = [
        elementwise("scale", share, n, es, e),
        elementwise("scale", share, n, es + e, es),
        elementwise("reduce", share, n, es, 0),
    ]
    if share.framework.compile:
        back = [back[0], MemoryBound("reduce", n * (es + e), 4 * channels, share.act)]
    forward = () if share.framework.compile else (scale,)
    return Part(name="scale", forward=forward, backward=tuple(back), cls="elementwise", tensors=(channels,), saved=n * e, modules=0)
