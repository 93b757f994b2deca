"""The backbone of detectors: a ResNet or ResNeXt whose batch norms are constants (FrozenBatchNorm2d of maskrcnn-benchmark and torchvision alike),
and whose stem and first stage stay as they were pre-trained.

Under autocast the maps between its convolutions are fp32: rsqrt is one of the functions that autocast runs in fp32 (torch.amp, operators that
autocast to float32), so the scale and the offset made with it are fp32, and an fp16 map times an fp32 scale is fp32. Each convolution casts its
input down, and backward casts twice: to fp32 behind the convolution, to fp16 behind the scale.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.parts import Block, Part, still
from sim.model.pictures.regions import small
from sim.model.pictures.vision import Map, block, convolution, depth, pool
from sim.model.share import Share
from sim.model.specs.spec import Cnn
from sim.work import MemoryBound, Work
from topologies.errors import Refused

_STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def carried(share: Share) -> int:
    """Bytes of one element that is carried from convolution to convolution."""
    return 4 if share.autocast and not convolved(share) else share.e


def convolved(share: Share) -> bool:
    """Are norms of constants, biases and ReLU part of the convolutions (apex.contrib's Bottleneck and ConvBiasReLU on cuDNN's fused operations)?"""
    return share.framework.elementwise.norm_kernels == "convolved"


def _cast(share: Share, n: int, read: int, written: int) -> list[Work]:
    """One kernel between two widths; a compiler fuses it into the scaling."""
    return [elementwise("cast", share, n, read, written)] if read != written and not share.framework.compile else []


def narrowed(share: Share, conv: Part, x: Map) -> Part:
    """A convolution that casts its input, and backward its input's gradient."""
    n, wide = share.micro * x.size, carried(share)
    back = _cast(share, n, share.e, wide) if conv.backward else []
    return replace(conv, forward=(*_cast(share, n, wide, share.e), *conv.forward), backward=(*conv.backward, *back))


def fixed(share: Share, name: str, x: Map, *, relu: bool = True, fork: Map | None = None, joins: bool = False) -> Part:
    """A batch norm whose statistics and weights are constants: four small kernels make a scale and an offset of them, one
    multiplies, one adds. Nothing of it is kept but what ReLU passed on, in 16 bits the next convolution's input. A compiler makes one kernel of
    it all. `convolved`: the convolution before it reads what is added, the next one's gradient of its input passes ReLU and scale, but at the
    block's end.

    `joins`: the residual add follows; `fork`: the block's input, whose two gradients are summed. Two calls reshape scale and offset; under
    autocast four more ask whether the constants are fp16, and the variance is cast.
    """
    n, e, wide, typed = share.micro * x.size, share.e, carried(share), share.autocast
    if convolved(share):
        forward: list[Work] = [elementwise("add", share, n, e, 0)] * joins
        backward: list[Work] = [elementwise("scale", share, n, 2 * e, e, 2.0)] * joins
    elif share.framework.compile:
        forward = [elementwise("scale", share, n, e + joins * wide, wide, 3.0)]
        backward = [elementwise("scale", share, n, (1 + relu) * wide, e, 2.0)]
    else:
        one = elementwise("scale", share, n, wide, wide)
        two = elementwise("activation", share, n, 2 * wide, wide)
        forward = [*small(4 + typed), elementwise("scale", share, n, e, wide), one]
        forward += [elementwise("add", share, n, 2 * wide, wide)] * joins + [one] * relu
        backward = [*[two] * relu, one, *_cast(share, n, wide, e)]
    if fork is not None:
        backward.append(summed(share, fork))
    calls = 4 if typed else 1  # of 5.5 us each, in modules of 8 (params/host.toml)
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        cls="norm",
        modules=1 + relu + calls,
        saved=n * wide if relu and wide > e else 0,
    )


def summed(share: Share, x: Map) -> MemoryBound:
    """Two gradients of a map that two parts read."""
    wide = carried(share)
    return elementwise("add", share, share.micro * x.size, 2 * wide, wide)


def backbone(spec: Cnn, share: Share, scaled: Part, image: Map) -> tuple[list[tuple[str, Block]], list[Map]]:
    """Of what `scaled` makes: the stem, one block per residual block, and the maps after each of the four stages. Raises `UnknownName` for a depth,
    `Refused` for CUDA graphs, which detectors' losses do not allow, but RetinaNet's in one kernel."""
    if share.framework.cuda_graphs and not (spec.arch == "retinanet" and share.framework.loss.fused):
        raise Refused(
            f"{spec.name or spec.arch}: how many regions there are depends on the data, so no CUDA graph holds its step; set cuda_graphs = false"
        )
    conv, x = convolution(share, "conv1", image, 64, 7, stride=2, padding=3, first=True)
    pooled, y = pool(replace(share, e=carried(share)), "pool", x, 3, 2, 1)
    parts = [still(part) for part in (scaled, narrowed(share, conv, image), fixed(share, "bn1", x), pooled)]
    found: list[tuple[str, Block]] = [("stem", block(share, "embed", parts, image))]
    maps: list[Map] = []
    x = y
    for stage, count in enumerate(depth(spec, _STAGES)):
        for index in range(count):
            parts, y = _bottleneck(spec, share, x, 64 * 2**stage, 2 if stage and not index else 1, opens=stage == 1 and not index)
            if index < 2:
                same = block(share, "layer", parts, x) if stage else block(share, "embed", [still(part) for part in parts], x)
            found.append((f"S{stage}.{index}", same))
            x = y
        maps.append(x)
    return found, maps


def _bottleneck(spec: Cnn, share: Share, x: Map, planes: int, stride: int, *, opens: bool) -> tuple[list[Part], Map]:
    """1 x 1, 3 x 3 (with the stride), 1 x 1. `opens`: the first block that is trained, whose input needs no gradient."""
    width = planes * spec.width // 64 * spec.groups
    one, y = convolution(share, "conv1", x, width, 1, first=opens)
    two, z = convolution(share, "conv2", y, width, 3, stride=stride, groups=spec.groups)
    three, out = convolution(share, "conv3", z, 4 * planes, 1)
    parts = [narrowed(share, one, x), fixed(share, "bn1", y), narrowed(share, two, y), fixed(share, "bn2", z), narrowed(share, three, z)]
    if stride > 1 or x.channels != out.channels:
        down, _ = convolution(share, "downsample.conv", x, 4 * planes, 1, stride=stride, padding=0, first=opens)
        down = narrowed(share, down if carried(share) > share.e else replace(down, saved=0), x)  # casts make a copy for each reader
        parts += [down, fixed(share, "downsample.bn", out, relu=False)]
    return [*parts, fixed(share, "bn3", out, fork=None if opens else x, joins=True)], out
