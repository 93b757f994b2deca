"""The U-Net of Stable Diffusion (Rombach et al. 2021; SDXL: Podell et al. 2023), operator by operator as diffusers' UNet2DConditionModel runs it.

Its input are latents and a text's embedding that were made before (of pictures by the autoencoder, of captions by the text encoder).
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.diffusion.spatial import Text, transformer
from sim.model.diffusion.timestep import embedding_mlp, noised, squared_error, time_embedding
from sim.model.layers.begun import Way
from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear
from sim.model.layers.lora import freeze
from sim.model.parts import Block, Part, Shape, still
from sim.model.pictures.maps import beside, cast_in, divided, group_norm, join, nearest, swish, wide
from sim.model.pictures.vision import Blocks, Map, block, convolution
from sim.model.share import Share, share_of
from sim.model.specs.diffusion import DiffusionUNet
from sim.work import MemoryBound


class _Maker(NamedTuple):
    """What all blocks are made with."""

    spec: DiffusionUNet
    share: Share
    framework: Framework
    attention: str

    @property
    def time(self) -> int:
        """Width of the time's embedding (diffusers: four times the first level)."""
        return 4 * self.spec.widths[0]

    def attended(self, x: Map, level: int, layers: int) -> list[Part]:
        """The transformer after a residual block, where its level has one."""
        if not layers:
            return []
        rows = share_of(replace(self.share.shape, seq=x.h * x.w), self.framework, self.attention)
        text = Text(self.spec.text, self.spec.context)
        spec = self.spec
        return _named("tr", transformer(self.share, rows, x, spec.heads[level], layers, text, spec.linear_projection, spec.lora))


def ways(block: str, part: str) -> Way:
    """Of the maps, and of the tokens that a transformer makes of one; the text and the time need no gradient where adapters are trained."""
    name = part.removeprefix("res0.").removeprefix("res1.")
    if name.startswith("tr.t") and name != "tr.tokens":
        return Way(() if ".cross.kv" in name else ("tokens",), ("tokens",))
    if name in ("tr.in", "tr.tokens"):
        return Way(("map",), ("tokens",), opens=True)
    if name in ("tr.out", "tr.map"):
        return Way(("tokens",), ("map",))
    if name in ("time", "time.act") and block != "embed":
        return Way((), ())
    return Way(("map",), ("map",), stem=name == "shortcut", opens=name == "cat", adds=name in ("join", "tr.join"))


def blocks_of(spec: DiffusionUNet, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed, D0.0 ... (down), M (middle), U3.0 ... (up), head. Raises `Refused` for tp, cp or ep."""
    data_parallel_only(spec.name or "diffusion-unet", "a diffusion U-Net", shape, chain=False)
    share = share_of(replace(shape, seq=1), framework, attention)
    make = _Maker(spec, replace(share, es=share.e), framework, attention)
    parts, x = _embed(make)
    found: list[tuple[str, Block]] = [("embed", Block(kind="embed", parts=tuple(parts)))]
    skips = [x]
    x = _down(make, x, skips, found)
    res = _named("res0", _residual(make, x, x.channels)[0])
    again = _named("res1", _residual(make, x, x.channels)[0])
    middle = [*res, *make.attended(x, -1, spec.middle), *again]
    found.append(("M", block(make.share, "layer", middle, x)))
    x = _up(make, x, skips, found)
    found.append(("head", block(make.share, "head", _head(make, x), x)))
    if spec.lora is None:
        return tuple(found)
    return tuple((name, replace(made, parts=tuple(freeze(list(made.parts))))) for name, made in found)


def _named(name: str, parts: list[Part]) -> list[Part]:
    return [replace(part, name=f"{name}.{part.name}") for part in parts]


def _embed(make: _Maker) -> tuple[list[Part], Map]:
    """Noise, the time's embedding (and what is added to it), the first convolution."""
    spec, share = make.spec, make.share
    latents = Map(spec.channels, spec.side, spec.side)
    parts = [noised(share, share.micro * latents.size), *time_embedding(share, spec.widths[0], make.time)]
    if spec.added:
        add = elementwise("add", share, share.micro * make.time, 2 * share.e, share.e)
        parts += [*embedding_mlp(share, "added", spec.added, make.time), Part(name="added", forward=(add,), cls="elementwise", modules=0)]
    conv, x = convolution(share, "conv", latents, spec.widths[0], 3, bias=True, first=True)
    return [*parts, conv], x


def _down(make: _Maker, x: Map, skips: list[Map], found: list[tuple[str, Block]]) -> Map:
    spec, share = make.spec, make.share
    for level, width in enumerate(spec.widths):
        for at in range(spec.blocks):
            before = x
            parts, x = _residual(make, x, width)
            found.append((f"D{level}.{at}", block(share, "layer", [*parts, *make.attended(x, level, spec.transformers[level])], before)))
            skips.append(x)
        if level < len(spec.widths) - 1:
            conv, y = convolution(share, "down", x, width, 3, stride=2, padding=1, bias=True)
            found.append((f"D{level}.down", block(share, "layer", [conv], x)))
            x = y
            skips.append(x)
    return x


def _up(make: _Maker, x: Map, skips: list[Map], found: list[tuple[str, Block]]) -> Map:
    spec, share = make.spec, make.share
    for level in reversed(range(len(spec.widths))):
        for at in range(spec.blocks + 1):
            before = x
            cat, y = beside(share, "cat", x, skips.pop())
            if len(skips) < _before_adapters(spec):  # the skip needs no gradient, and what is left is a view
                cat = replace(cat, backward=())
            parts, x = _residual(make, y, spec.widths[level])
            found.append(
                (f"U{level}.{at}", block(share, "layer", [cat, *parts, *make.attended(x, level, spec.transformers[level])], before))
            )
        if level:
            large, y = nearest(share, "nearest", x)
            conv, y = convolution(share, "conv", y, x.channels, 3, bias=True)
            found.append((f"U{level}.up", block(share, "layer", [large, conv], x)))
            x = y
    return x


def _before_adapters(spec: DiffusionUNet) -> int:
    """Maps that the way up reads from the way down and that no adapter is before."""
    if spec.lora is None:
        return 0
    plain = next((level for level, layers in enumerate(spec.transformers) if layers), len(spec.transformers))
    return 1 + plain * (spec.blocks + 1) - (plain == len(spec.transformers))


def _swished(share: Share, name: str, x: Map) -> list[Part]:
    """Group norm, swish, and what a convolution takes of it."""
    n = share.micro * x.size
    return [group_norm(share, f"{name}.norm", x), swish(share, f"{name}.act", n, e=wide(share)), *cast_in(share, f"{name}.cast", n)]


def _residual(make: _Maker, x: Map, out: int) -> tuple[list[Part], Map]:
    """ResnetBlock2D: norm, swish, convolution, the time added; norm, swish, convolution; the input added, by a 1 x 1 convolution where widths differ."""
    share, b, e = make.share, make.share.micro, make.share.e
    one, y = convolution(share, "conv1", x, out, 3, bias=True)
    two, _ = convolution(share, "conv2", y, out, 3, bias=True)
    n = b * y.size
    act = swish(share, "time.act", b * make.time)
    fork = elementwise("add", share, b * make.time, 2 * e, e)  # the time's gradients of all blocks are summed
    add, total = elementwise("add", share, n, e, e), MemoryBound("reduce", n * e, b * out * e, share.act)
    time = linear(share, "time", make.time, out, rows=b, bias=True, low=False)
    timed = [replace(act, backward=(*act.backward, fork)), time]
    timed.append(Part(name="time.add", forward=(add,), backward=(total,), cls="elementwise", modules=0))
    if make.spec.lora is not None:  # frozen, the time needs no gradient
        timed = [still(timed[0]), still(timed[1]), replace(timed[2], backward=())]
    parts = [*_swished(share, "in", x), one, *timed]
    parts += [*_swished(share, "out", y), two]
    if x.channels != out:
        short = convolution(share, "shortcut", x, out, 1, bias=True)[0]
        parts.append(
            short if wide(share) != e else replace(short, saved=0)
        )  # the norm keeps the same map, but where it keeps 32 bits of it
    return [*parts, join(share, "join", n, e, fork=b * x.size), *divided(share, "scale", n)], y


def _head(make: _Maker, x: Map) -> list[Part]:
    conv, y = convolution(make.share, "conv", x, make.spec.channels, 3, bias=True)
    return [*_swished(make.share, "last", x), conv, squared_error(make.share, make.share.micro * y.size)]
