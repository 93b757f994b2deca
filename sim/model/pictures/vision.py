"""Parts of convolutional networks: convolution, batch norm with its activation, pooling, squeeze-and-excitation.

Saved: a convolution its input, a batch norm its input and statistics; an in-place ReLU keeps its output, which is
the next convolution's input and counted there. Under autocast convolutions and batch norms stay 16-bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.layers.linear import linear, weight_casts
from sim.model.parts import Block, Part
from sim.model.share import Share
from sim.model.specs.spec import Cnn
from sim.work import Conv, MemoryBound, Work
from topologies.errors import BadInput, UnknownName

Blocks = tuple[tuple[str, Block], ...]
_COUNT = MemoryBound("scale_", 8, 8, "fp32")
"""One number of 64 bits, changed where it lies."""


class Map(NamedTuple):
    """A feature map: channels and side lengths."""

    channels: int
    h: int
    w: int

    @property
    def size(self) -> int:
        return self.channels * self.h * self.w

    def of(self, name: str, before: Map) -> Map:
        """This map, which `name` made of the one `before`. Raises `BadInput` where it has no places."""
        if min(self.h, self.w) < 1:
            raise BadInput(f"the picture is too small: {name} leaves nothing of a map of {before.h} x {before.w}. Use a larger image")
        return self


def convolution(
    share: Share,
    name: str,
    x: Map,
    out: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int = -1,
    groups: int = 1,
    bias: bool = False,
    first: bool = False,
) -> tuple[Part, Map]:
    """`kernel`: of both sides, or its height and width. `first`: the input is the image and needs no gradient. Raises `BadInput` for too small
    a map."""
    high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
    shape = (share.micro, *x, out, high, wide, stride, padding, groups, share.core)
    last = share.framework.maps.channels_last
    work = Conv(*shape, channels_last=last)
    y = Map(out, *work.out).of(name, x)
    if first and share.framework.maps.padded:
        work = replace(work, c_in=x.channels + x.channels % 2)
    weight = out * (x.channels // groups) * high * wide
    tensors = (weight, out) if bias else (weight,)
    down, up = weight_casts(share, tensors)
    n = share.micro * y.size * share.e
    turns = turned(share, x, y, groups)
    add: list[Work] = [MemoryBound("add", n, n, share.act)] if bias else []
    total: list[Work] = [MemoryBound("reduce", n, out * share.e, share.act)] if bias else []
    part = Part(
        name=name,
        forward=(*down, *turns, work, *add),
        backward=() if first else (*turns, Conv(*shape, "dgrad", channels_last=last)),
        wgrad=(*turns, replace(work, role="wgrad"), *total, *up),
        cls="conv",
        tensors=tensors,
        saved=share.micro * x.size * share.e,
    )
    return part, y


def turned(share: Share, x: Map, y: Map, groups: int = 1) -> list[Work]:
    """Both maps of a convolution copied from one layout to the other, where maps are NCHW: tensor cores' kernels take NHWC alone, so that cuDNN
    turns round what it reads and writes: input and output, or (backward) their gradients, of which one or both are read.

    At the rate of a copy (nchwToNhwcKernel; NVIDIA's convolution user's guide, section on tensor layouts: automatic transposes; apex issue
    1445: 200 images of ResNet-50 take 139 ms in NCHW and 93 in NHWC on A100). Depthwise convolutions take no tensor cores.
    """
    planar = (share.core == "tf32" and not share.framework.maps.channels_last) or (share.e < 4 and share.framework.maps.planar)
    if not planar or groups == x.channels > 1:
        return []
    return [elementwise("copy", share, share.micro * size, share.e, share.e) for size in (x.size, y.size)]


def normalised(share: Share, name: str, y: Map, *, relu: bool = True, fork: Map | None = None) -> Part:
    """Batch norm, the residual add where the block's input forked (`fork`), and ReLU: one kernel each, or one together
    (fused_activation, compile).

    Training reads the input twice (statistics, then scaling) and in backward input and gradient twice; torch's module counts its batches first,
    on the device (nn.modules.batchnorm, num_batches_tracked). What ReLU passed on is a bit for each element in the fused kernels of cuDNN and
    MXNet (the reserve space of BN_ACTIVATION), the output itself where a compiler fuses.
    """
    n, e = share.micro * y.size, share.e
    counted = eager(share)
    fused = share.framework.elementwise.fused_activation or share.framework.compile
    passed = 0.0 if not (fused and relu) else e if share.framework.compile else 1 / 8
    join = fork is not None
    extra, kind = fused and join, "batchnorm_fused" if fused else "batchnorm"
    forward: list[Work] = [elementwise(kind, share, n, (2 + extra) * e, e, 8.0, y.channels)]
    backward: list[Work] = [elementwise(kind, share, n, 4 * e + passed, (1 + extra) * e, 16.0, y.channels)]
    if not fused:
        forward += [elementwise("add", share, n, 2 * e, e)] * join + [elementwise("activation", share, n, e, e)] * relu
        backward = [elementwise("activation", share, n, 2 * e, e)] * relu + backward
    if fork is not None:  # the two gradients of the block's input are summed
        backward.append(elementwise("add", share, share.micro * fork.size, 2 * e, e))
    return Part(
        name=name,
        forward=(*(_COUNT,) * counted, *forward),
        backward=tuple(backward),
        cls="norm",
        tensors=(y.channels, y.channels),
        saved=n * e + 8 * y.channels,
        modules=1 + relu,
        untracked=counted,
    )


def convolved(share: Share, norm: Part, joined: Map | None = None) -> Part:
    """A norm whose sums come out of the convolution before it: one small kernel makes scales and offsets of them. What reads the map applies
    these: the next convolution, or the kernel that adds the block's input to the last map (`joined`) and applies ReLU, which reads each once.

    cuDNN's fused operations, as MXNet's NormConvolution, BNStatsFinalize and ScaleBiasAddRelu call them (symbols/resnet-v1b-mainloop-fl.py
    in mlcommons/training_results_v2.1). Backward: as the norm has it; what is joined there the scripts do not say.
    """
    forward: list[Work] = [elementwise("batchnorm", share, norm.tensors[0], 16.0, 24.0)]
    if joined is not None:
        forward.append(elementwise("add", share, share.micro * joined.size, 2 * share.e, share.e))
    return replace(norm, forward=tuple(forward))


def pool(share: Share, name: str, x: Map, kernel: int, stride: int, padding: int = 0) -> tuple[Part, Map]:
    """Max pooling; keeps its input and an index for each output. Raises `BadInput` for too small a map."""
    y = Map(x.channels, (x.h + 2 * padding - kernel) // stride + 1, (x.w + 2 * padding - kernel) // stride + 1).of(name, x)
    read, written, e = share.micro * x.size, share.micro * y.size, share.e
    forward: Work = MemoryBound("pool", read * e, written * (e + 8), share.act)
    backward: Work = MemoryBound("pool_backward", written * (e + 8), read * e, share.act)
    return Part(name=name, forward=(forward,), backward=(backward,), cls="elementwise", saved=read * e + written * 8), y


def mean(share: Share, name: str, x: Map) -> Part:
    """Average over the whole map, one number a channel."""
    n, e = share.micro * x.size, share.e
    forward: Work = MemoryBound("reduce", n * e, share.micro * x.channels * e, share.act)
    backward: Work = MemoryBound("copy", share.micro * x.channels * e, n * e, share.act)
    return Part(name=name, forward=(forward,), backward=(backward,), cls="elementwise")


def squeeze(share: Share, x: Map) -> list[Part]:
    """Squeeze and excitation (Hu et al. 2018, reduction 16): mean, two small linears, and each channel scaled.

    Backward multiplies the gradient by the scales and by the map, sums the second product over each channel, and adds the two gradients
    of the map, its mean's and its scaling's: one kernel each, or (compile) the products in the sums that take them.

    Eager PyTorch scales and adds the block's input at once (torch.addcmul), multiplies the map by addcmul's factor in backward, and writes
    the mean's gradient in rows (NCHW), whatever the map's layout: under AMP, where maps are channels-last, the sum of the two gradients
    transposes one of them (aten operators and strides of this block, recorded by a dispatch mode; DeepLearningExamples' ConvNets, resnet.py).
    A compiler scales, adds and applies ReLU at once; what ReLU passed on is then read by all that takes the block's gradient.
    """
    small = x.channels // 16
    n, e = share.micro * x.size, share.e
    scale: Work = elementwise("scale", share, n, e, e)
    forward: Work = scale
    if eager(share):
        forward = elementwise("add", share, n, 2 * e, e)
        total: list[Work] = [scale, elementwise("scale", share, n, 2 * e, e)]
        total.append(MemoryBound("reduce", n * e, share.micro * x.channels * e, share.act))
        joined: list[Work] = [scale, elementwise("permute" if e < 4 else "add", share, n, 2 * e, e)]
    elif share.framework.compile:
        forward = elementwise("add", share, n, 2 * e, e)
        total = [MemoryBound("reduce", 3 * n * e, share.micro * x.channels * e, share.act)]
        joined = [elementwise("scale", share, n, 2 * e, e)]
    else:
        total = [elementwise("scale", share, n, 2 * e, e), MemoryBound("reduce", n * e, share.micro * x.channels * e, share.act)]
        joined = [scale, elementwise("add", share, n, 2 * e, e)]
    return [
        mean(share, "se.mean", x),
        linear(share, "se.down", x.channels, small, rows=share.micro, bias=True, low=False, modules=2),
        linear(share, "se.up", small, x.channels, rows=share.micro, bias=True, low=False, modules=2),
        Part(name="se.scale", forward=(forward,), backward=(*total, *joined), cls="elementwise", saved=n * e),
    ]


def eager(share: Share) -> bool:
    """Does PyTorch run operator by operator? Then the scaling and the add of squeeze-and-excitation are one kernel (`squeeze`), and batch norms
    count their batches (`normalised`)."""
    return share.framework.host == "python" and not share.framework.compile


def block(share: Share, kind: str, parts: list[Part], x: Map) -> Block:
    """A block of `parts` whose input is the map `x`."""
    return Block(kind=kind, parts=tuple(parts), saved_input=share.micro * x.size * share.e)


def depth(spec: Cnn, table: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Blocks of each stage for the network's depth. Raises `UnknownName` for one that nobody trains."""
    if spec.depth not in table:
        raise UnknownName(f"{spec.arch} depth", str(spec.depth), map(str, table))
    return table[spec.depth]
