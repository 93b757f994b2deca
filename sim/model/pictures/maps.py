"""Further parts of networks on feature maps: swish, gates, dropped paths, group norm, ways up, maps joined, and layer norms over channels.

As in `vision`: a convolution keeps its input. Under autocast PyTorch's group and layer norms return fp32 (torch.amp, "CUDA ops that autocast to
float32"), and what is added to them or follows them elementwise does so too, up to the next product, which casts.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import casts, elementwise
from sim.model.layers.linear import weight_casts
from sim.model.layers.norm import norm
from sim.model.parts import Part
from sim.model.pictures.vision import Map, convolution, mean, turned
from sim.model.share import Share
from sim.work import Conv, MemoryBound, Work


def swish(share: Share, name: str, n: int, *, in_place: bool = False, e: int = 0) -> Part:
    """x sigmoid(x) of `n` values; keeps its input (`in_place`: a clone of it, which autograd makes). A compiler has it in the kernel before."""
    if share.framework.compile:
        return Part(name=name, cls="activation")
    e = e or share.e
    clone = [elementwise("copy", share, n, e, e)] * in_place
    forward: list[Work] = [*clone, elementwise("activation", share, n, e, e, 5.0)]
    return Part(
        name=name, forward=tuple(forward), backward=(elementwise("activation", share, n, 2 * e, e, 10.0),), cls="activation", saved=n * e
    )


def gate(share: Share, name: str, x: Map, small: int) -> list[Part]:
    """Squeeze and excitation of a map (Hu et al. 2018) by two 1 x 1 convolutions with swish and sigmoid: mean, `small` channels, a factor for each.

    Backward multiplies the gradient by the factors and by the map, sums the second product over each channel, and adds the map's two gradients.
    """
    b, n, e, one = share.micro, share.micro * x.size, share.e, Map(x.channels, 1, 1)
    down, inner = convolution(share, f"{name}.down", one, small, 1, bias=True)
    up, _ = convolution(share, f"{name}.up", inner, x.channels, 1, bias=True)
    sigmoid = swish(share, f"{name}.sigmoid", b * x.channels)
    scale, product = elementwise("scale", share, n, e, e), elementwise("scale", share, n, 2 * e, e)
    total = MemoryBound("reduce", n * e, b * x.channels * e, share.act)
    add = elementwise("add", share, n, 2 * e, e)
    backward: tuple[Work, ...] = (scale, product, total, add)
    if share.framework.compile:  # the product in its sum, the factors in the add
        backward = (MemoryBound("reduce", 2 * n * e, b * x.channels * e, share.act), scale)
    last = Part(name=f"{name}.scale", forward=(scale,), backward=backward, cls="elementwise", saved=n * e)
    return [replace(mean(share, f"{name}.mean", x), modules=2), down, swish(share, f"{name}.act", b * small), up, sigmoid, last]


def drop_path(share: Share, name: str, n: int, e: int) -> Part:
    """Stochastic depth: each sample's map times 0 or 1 / keep, drawn by two kernels over so few values that their launch is all that they take."""
    if share.framework.compile:
        return Part(name=name, cls="elementwise")
    draw: Work = MemoryBound("zero", 0, share.micro * e, share.act)
    scale = elementwise("scale", share, n, e, e)
    few: Work = MemoryBound("scale", share.micro * e, share.micro * e, share.act)
    return Part(name=name, forward=(draw, few, scale), backward=(scale,), cls="elementwise", saved=share.micro * e)


def join(share: Share, name: str, n: int, e: int, *, fork: int = 0) -> Part:
    """The add of a block's input; backward adds the two gradients of that input, of `fork` values (0: `n`), where the block began."""
    forward = elementwise("add", share, n, 2 * e, e)
    return Part(name=name, forward=(forward,), backward=(elementwise("add", share, fork or n, 2 * e, e),), cls="elementwise", modules=0)


def cast_in(share: Share, name: str, n: int) -> list[Part]:
    """Before a product: what a norm left in fp32 becomes 16-bit, where it did."""
    if not share.autocast or share.framework.compile:
        return []
    up, down = casts(share, n)
    return [Part(name=name, forward=tuple(down), backward=tuple(up), cls="elementwise", modules=0)]


def wide(share: Share) -> int:
    """Bytes of a value that a group or layer norm returns; a compiler casts it in the norm's own kernel."""
    return 4 if share.autocast and not share.framework.compile else share.e


def widened(share: Share, part: Part, n: int) -> Part:
    """The norm `part`, which computes in fp32, on an input of 16 bits under autocast."""
    if not share.autocast or share.framework.compile:
        return part
    up, down = casts(share, n)
    return replace(part, forward=(*up, *part.forward), backward=(*part.backward, *down))


def group_norm(share: Share, name: str, x: Map, groups: int = 32) -> Part:
    """Mean and variance of each group of channels of each picture (Wu & He 2018), read first; then the values again. Backward reads both
    the input and the gradient twice (aten/src/ATen/native/cuda/group_norm_kernel.cu: RowwiseMoments and ComputeInternalGradients apart)."""
    n, e, rows = share.micro * x.size, wide(share), share.micro * groups
    forward: Work = elementwise("groupnorm", share, n, 2 * e, e, 8.0, rows)
    backward: Work = elementwise("groupnorm", share, n, 4 * e, e, 16.0, rows)
    kept = n * e + 8 * rows
    part = Part(name=name, forward=(forward,), backward=(backward,), cls="norm", tensors=(x.channels, x.channels), saved=kept)
    return widened(share, part, n)


def channel_norm(share: Share, x: Map, *, es: int = 0) -> Part:
    """Layer norm over the channels of each place. Its input is a product's, of 16 bits under autocast, or has `es` bytes."""
    rows = share.micro * x.h * x.w
    part = norm(share, "norm", rows, x.channels, "layernorm", after_residual=False, es=es or wide(share), modules=2)
    return part if es else widened(share, part, share.micro * x.size)


def up_convolution(share: Share, name: str, x: Map, out: int) -> tuple[Part, Map]:
    """A transposed convolution, 2 x 2 of stride 2 with biases: it is the gradient of the convolution the other way (torch.nn.ConvTranspose2d)."""
    y = Map(out, 2 * x.h, 2 * x.w)
    shape = (share.micro, *y, x.channels, 2, 2, 2, 0, 1, share.core)
    last, n, turns = share.framework.maps.channels_last, share.micro * y.size * share.e, turned(share, x, y)
    tensors = (4 * x.channels * out, out)
    down, up = weight_casts(share, tensors)
    add: Work = MemoryBound("add", n, n, share.act)
    total: Work = MemoryBound("reduce", n, out * share.e, share.act)
    part = Part(
        name=name,
        forward=(*down, *turns, Conv(*shape, "dgrad", channels_last=last), add),
        backward=(*turns, Conv(*shape, channels_last=last)),
        wgrad=(*turns, Conv(*shape, "wgrad", channels_last=last), total, *up),
        cls="conv",
        tensors=tensors,
        saved=share.micro * x.size * share.e,
    )
    return part, y


def line_convolution(
    share: Share,
    name: str,
    length: int,
    c_in: int,
    c_out: int,
    kernel: int,
    stride: int,
    *,
    groups: int = 1,
    padding: int = 0,
    bias: bool = False,
    first: bool = False,
) -> Part:
    """A convolution along one axis: of a picture of one row (torch.nn.Conv1d runs conv2d so). `first`: its input needs no gradient. With groups
    its weight is a direction and a length (weight_norm), which a kernel makes one of in each pass."""
    b, e = share.micro, share.e
    shape = (b, c_in, 1, length, c_out, 1, kernel, stride, padding, groups, share.core)
    size = c_in // groups * c_out * kernel
    tensors = (size, *(kernel,) * (groups > 1), *(c_out,) * bias)
    down, up = weight_casts(share, tensors)
    n = b * c_out * Conv(*shape).out[1] * e
    add: list[Work] = [MemoryBound("add", n, n, share.act)] * bias
    total: list[Work] = [MemoryBound("reduce", n, c_out * e, share.act)] * bias
    directed: list[Work] = [elementwise("scale", share, size, 2 * e, e)] * (groups > 1)
    return Part(
        name=name,
        forward=(*down, *directed, Conv(*shape), *add),
        backward=() if first else (Conv(*shape, "dgrad"),),
        wgrad=(Conv(*shape, "wgrad"), *directed, *total, *up),
        cls="conv",
        tensors=tensors,
        saved=b * c_in * length * e,
    )


def nearest(share: Share, name: str, x: Map, factor: int = 2) -> tuple[Part, Map]:
    """Each value `factor` x `factor` times (interpolate, mode = nearest)."""
    y = Map(x.channels, x.h * factor, x.w * factor)
    small, large = share.micro * x.size * share.e, share.micro * y.size * share.e
    forward, backward = MemoryBound("copy", small, large, share.act), MemoryBound("copy", large, small, share.act)
    return Part(name=name, forward=(forward,), backward=(backward,), cls="elementwise"), y


def beside(share: Share, name: str, x: Map, skip: Map) -> tuple[Part, Map]:
    """Channels of both maps in one (torch.cat). Its gradient's halves are views; that of `skip` is added to its other one's."""
    n, e = share.micro * (x.size + skip.size), share.e
    add: Work = elementwise("add", share, share.micro * skip.size, 2 * e, e)
    joined: Work = elementwise("copy", share, n, e, e)
    return Part(name=name, forward=(joined,), backward=(add,), cls="elementwise", modules=0), Map(x.channels + skip.channels, x.h, x.w)


def divided(share: Share, name: str, n: int) -> list[Part]:
    """By a factor that is 1 (diffusers' output_scale_factor and rescale_output_factor): a kernel all the same, where nothing compiles it."""
    if share.framework.compile:
        return []
    scale = elementwise("scale", share, n, share.e, share.e)
    return [Part(name=name, forward=(scale,), backward=(scale,), cls="elementwise", modules=0)]
