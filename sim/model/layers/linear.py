"""Linear layers, for one rank: their GEMMs, and the casts, quantisation and weight gradients around them.

A linear keeps its input for backward (PyTorch's autograd). Rows x width count elements.
"""

from __future__ import annotations

from sim.model.layers.elementwise import elementwise
from sim.model.parts import Part, Seam
from sim.model.share import Share
from sim.work import ALIGNED, BYTES, Gemm, MemoryBound, Work

PLAIN = ("fp8", "rowfp8")
"""8-bit formats whose scales are fp32 numbers of their own, not of blocks."""
FROM_BEFORE = ("delayed", "shared")
"""Scales that are known before the tensor is."""


def weight_casts(share: Share, tensors: tuple[int, ...], always: bool = False) -> tuple[list[Work], list[Work]]:
    """autocast: fp32 weights become 16-bit at each use, and their gradients fp32 again (torch autocast, one kernel a tensor). `always`: these are,
    though others are not."""
    if not (share.autocast or always):
        return [], []
    down: list[Work] = [MemoryBound("cast", 4 * n, 2 * n, share.act) for n in tensors]
    up: list[Work] = [MemoryBound("cast", 2 * n, 4 * n, share.act) for n in tensors]
    return down, up


def quantised(share: Share, elements: int, found: bool = False, tensors: int = 1) -> list[Work]:
    """What makes the 8-bit operand of 16 bits: a cast beside its transpose (Hopper's fp8 GEMM takes TN only), or blocks with their scales both
    ways. Current scaling reads all for the largest value first, unless the kernel before has `found` it, and makes a scale of it. With a scale
    for each row, another for each column: a row is scaled in one kernel, columns in two."""
    if BYTES[share.gemm] < 1:
        return _transformed(share, elements)
    if share.gemm not in PLAIN:
        return [MemoryBound("quantise", 2 * elements, 2 * elements, share.act)]
    cast: Work = MemoryBound("cast" if share.framework.compile else "cast_transpose", 2 * elements, 2 * elements, share.act)
    if share.framework.linears.fp8_scaling in FROM_BEFORE:
        return [cast]
    largest = MemoryBound("reduce", 2 * elements, 0, share.act)
    if share.gemm == "rowfp8":
        line = MemoryBound("cast", 2 * elements, elements, share.act)
        return [line, largest, line]
    return [*([] if found else [largest]), MemoryBound("scale", 4 * tensors, 4 * tensors, "fp32"), cast]


def _transformed(share: Share, elements: int) -> list[Work]:
    """NVFP4: the largest values before and after a random Hadamard transform of the columns, then rows without it, then columns with it, each in
    a pass of its own, with a byte's scale for 16 values (TransformerEngine's quantizer.cpp, NVFP4Quantizer::quantize_impl: with_rht)."""
    line = MemoryBound("quantise", 2 * elements, round((BYTES[share.gemm] + 1 / 16) * elements), share.act)
    return [MemoryBound("reduce", 2 * elements, 0, share.act), line, line]


def narrowing(share: Share, elements: int, tensors: int) -> list[Work]:
    """What makes 8- or 4-bit weights of so many 16-bit elements. NVFP4's scales are of blocks of 16 x 16, the same both ways, and nothing is
    transformed (TransformerEngine's recipe NVFP4BlockScaling: fp4_quant_fwd_weight)."""
    if BYTES[share.gemm] >= 1:
        return quantised(share, elements, tensors=tensors)
    both = MemoryBound("quantise", 2 * elements, round(2 * (BYTES[share.gemm] + 1 / 16) * elements), share.act)
    return [MemoryBound("reduce", 2 * elements, 0, share.act), both]


def scaled_before(share: Share) -> bool:
    """Are 8-bit scales numbers that are known before the tensor is?"""
    return share.gemm in PLAIN and share.framework.linears.fp8_scaling in FROM_BEFORE


def _compiled_in(share: Share) -> bool:
    """A compiler makes the cast part of the kernel before it where its scale is known by then: not where it is the tensor's own."""
    return share.framework.compile and (share.gemm not in PLAIN or scaled_before(share))


def _taken(share: Share, elements: int, normed: bool, fused: bool) -> list[Work]:
    """What makes a linear's input 8-bit, where no compiler and no kernel before it does; a compiler finds the largest value as it is made."""
    fused = fused or _compiled_in(share) or (normed and scaled_before(share))
    return [] if fused else quantised(share, elements, normed or share.framework.compile)


def _units(share: Share, dtype: str, sizes: tuple[int, ...]) -> str:
    """The dtype of the units that a product of 16 bits runs on, by its sizes."""
    return "fp32" if share.framework.linears.aligned_units and BYTES[dtype] == 2 and any(size % ALIGNED for size in sizes) else dtype


def _padded(share: Share, dtype: str, size: int) -> int:
    """Elements of a row of a 16-bit operand: compilers fill rows up to whole 16 bytes (torch/_inductor/fx_passes/pad_mm.py; XLA's
    cublas_pad_for_gemms.cc), in kernels that write the operand anyway."""
    return -(-size // ALIGNED) * ALIGNED if share.framework.compile and BYTES[dtype] == 2 else size


def _biases(share: Share, m: int, widths: tuple[int, ...], left: bool) -> list[Work]:
    """Kernels that add the biases, where neither the products nor a kernel after them do (`left`)."""
    if not left or not share.framework.linears.separate_bias or share.framework.compile:
        return []
    return [elementwise("add", share, m * width, share.e, share.e) for width in widths]


def _weight_gradients(share: Share, m: int, k: int, widths: tuple[int, ...], dtype: str, bias: bool) -> list[Work]:
    """Gradients of the weights over `m` rows, and of the biases."""
    add = share.framework.linears.accumulates
    sides = [(_padded(share, dtype, width), _padded(share, dtype, k)) for width in widths]
    products: list[Work] = [Gemm(*side, m, dtype, 1, "wgrad", add, 1, share.framework.precision.grad_dtype) for side in sides]
    return products + [MemoryBound("reduce", m * width * share.e, width * share.e, share.act) for width in widths if bias]


def _partial_bias(share: Share, widths: tuple[int, ...], seam: Seam) -> tuple[int, ...]:
    """Elements of biases after a reduction, whose gradient is of a rank's own tokens. DTensor gathers these before they reach the linear."""
    return widths if seam == "tp.reduce" and share.framework.tensor_parallel.style != "dtensor" else ()


def _joined(share: Share, elements: int, linears: int, cast: bool) -> list[Work]:
    """What sums the gradients of an input that several linears read, and gives it in fp32 where it was `cast`."""
    added = elementwise("add", share, elements, 2 * share.e, share.e)
    return [*[added] * (linears - 1), *[MemoryBound("cast", 2 * elements, 4 * elements, share.act)] * cast]


def operand(share: Share, elements: int, low: bool) -> int:
    """Bytes of what a linear keeps of its input: 16 bits, or (`low`) its 8 or 4 without the scales of their blocks."""
    return round(elements * (BYTES[share.gemm] if low else share.e))


def casts(share: Share) -> bool:
    """Does a linear keep a copy of its own of what it reads from the residual stream: in 16 bits (autocast) or in 8?"""
    return share.es != share.e or share.fp8


def linear(
    share: Share,
    name: str,
    k: int,
    n: int | tuple[int, ...],
    *,
    rows: int = 0,
    bias: bool = False,
    seam: Seam = "",
    seam_bytes: int = 0,
    low: bool = True,
    stream: bool = False,
    fused_bias: bool = False,
    fused_input: bool = False,
    fused_grad: bool = False,
    normed: bool = False,
    saved_rows: int = 0,
    frozen: bool = False,
    modules: int = 1,
) -> Part:
    """`rows` x k times k x n; several `n` are several linears on one input.

    `low`: runs in the block's low precision. `stream`: the input is of the residual stream (fp32 under autocast, so it is cast). `fused_bias`:
    the kernel after adds it. `fused_input`, `fused_grad`: the kernel before (after) writes fp8 itself; `normed`: a norm before, which where
    fused does so with delayed scaling alone, and finds the largest value otherwise (TransformerEngine, normalization.cpp). `saved_rows`: rows of
    the input that are kept, where fewer than `rows` (sequence parallelism keeps its slice and gathers again). A `seam` without bytes is none.
    """
    widths = (n,) if isinstance(n, int) else n
    m, act, low = rows or share.rows, share.act, low and share.fp8
    written = normed and share.framework.elementwise.fused_norm and share.framework.elementwise.quantising_norm
    dtype = _units(share, share.gemm if low else share.core, (k, *widths))
    tensors = tuple(size for width in widths for size in ((width * k, width) if bias else (width * k,)))
    down, up = weight_casts(share, tensors)
    cast = stream and share.es != share.e and not share.framework.compile
    taken = _taken(share, m * k, written, fused_input) if low else []
    given = quantised(share, m * sum(widths), share.framework.compile) if low and not (fused_grad or _compiled_in(share)) else []
    forward: list[Work] = [*down, *([MemoryBound("cast", 4 * m * k, 2 * m * k, act)] * (len(widths) if cast else 0)), *taken]
    inner, outer = _padded(share, dtype, k), [_padded(share, dtype, width) for width in widths]
    forward += [*(Gemm(m, width, inner, dtype) for width in outer), *_biases(share, m, widths, bias and not fused_bias)]
    backward: list[Work] = [*given, *(Gemm(m, inner, width, dtype, 1, "dgrad") for width in outer)]
    backward += _joined(share, m * k, len(widths), cast)
    slices = 0 if share.framework.tensor_parallel.style == "dtensor" else saved_rows  # DTensor keeps the gathered input
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        wgrad=() if frozen else (*_weight_gradients(share, m, k, widths, dtype, bias), *up),
        narrowing=tuple(narrowing(share, k * sum(widths), len(widths))) if low else (),
        cls="gemm",
        tensors=tensors,
        matrices=tuple((width, k) for width in widths),
        whole=_partial_bias(share, widths, seam) if bias and seam_bytes else (),
        frozen=frozen,
        saved=0 if frozen else operand(share, (slices or m) * k, low) * (len(widths) if cast else 1),
        seam=seam if seam_bytes else "",
        seam_bytes=seam_bytes,
        modules=modules + len(widths) - 1,
        native=max(0, len(taken) - (not written)),  # inside the linear's own node
        normed=normed,
    )
