"""Parts that every transformer is made of: linear, norm, activation, residual.

Each function returns one `Part` for one rank. Rows x width count elements; what is saved follows PyTorch's
autograd (a linear keeps its input, a norm its input, dropout a byte mask), which for the plain GPT gives
34 s b h + 5 a s^2 b bytes (Korthikanti et al. 2022, equation 1).
"""

from __future__ import annotations

from sim.model.parts import Part, Seam
from sim.model.share import Share
from sim.work import Gemm, MemoryBound, Work

_ACTIVATION_FLOPS = {"relu": (1.0, 2.0), "relu2": (1.0, 2.0), "silu": (5.0, 10.0)}
"""FLOPs per element forward and backward; gelu and tanh, which need an error function or exponentials, take 8 and 12. They tell kernels apart on CPUs."""
GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}


def elementwise(what: str, share: Share, elements: int, read: float, written: float, ops: float = 1.0, rows: int = 0) -> MemoryBound:
    """A kernel over `elements`, moving `read` and `written` bytes for each."""
    return MemoryBound(what, int(elements * read), int(elements * written), share.act, ops * elements, 1, rows)


def weight_casts(share: Share, tensors: tuple[int, ...]) -> tuple[list[Work], list[Work]]:
    """autocast: fp32 weights become 16-bit at each use, and their gradients fp32 again (torch autocast, one kernel a tensor)."""
    if not share.autocast:
        return [], []
    down: list[Work] = [MemoryBound("cast", 4 * n, 2 * n, share.act) for n in tensors]
    up: list[Work] = [MemoryBound("cast", 2 * n, 4 * n, share.act) for n in tensors]
    return down, up


def _quantise(share: Share, elements: int, fused: bool) -> list[Work]:
    """fp8: a cast beside its transpose (Hopper's fp8 GEMM takes TN only), unless the producing kernel writes it."""
    if not share.fp8 or fused:
        return []
    return [MemoryBound("cast", 2 * elements, 2 * elements, share.act)]


def _weight_gradients(share: Share, m: int, k: int, widths: tuple[int, ...], dtype: str, bias: bool) -> list[Work]:
    """Gradients of the weights over `m` rows, and of the biases."""
    add = share.framework.accumulate_in_gemm
    products: list[Work] = [Gemm(width, k, m, dtype, 1, "wgrad", add) for width in widths]
    return products + [MemoryBound("reduce", m * width * share.e, width * share.e, share.act) for width in widths if bias]


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
    fused_input: bool = False,
    fused_grad: bool = False,
    saved_rows: int = 0,
    frozen: bool = False,
    modules: int = 1,
    recompute: bool = False,
) -> Part:
    """`rows` x k times k x n; several `n` are several linears on one input.

    `low`: runs in the block's low precision. `stream`: the input is of the residual stream (fp32 under autocast, so
    it is cast). `fused_input`, `fused_grad`: the kernel before (after) writes fp8 itself. `saved_rows`: rows of the
    input that are kept, where fewer than `rows` (sequence parallelism keeps its slice and gathers again).
    """
    widths = (n,) if isinstance(n, int) else n
    m, act, low = rows or share.rows, share.act, low and share.fp8
    dtype = share.gemm if low else share.core
    tensors = tuple(size for width in widths for size in ((width * k, width) if bias else (width * k,)))
    down, up = weight_casts(share, tensors)
    cast = stream and share.autocast and not share.framework.compile
    quiet = share.framework.compile
    total = sum(widths)
    forward: list[Work] = [*down, *([MemoryBound("cast", 4 * m * k, 2 * m * k, act)] * (len(widths) if cast else 0))]
    backward: list[Work] = []
    if low:
        forward += _quantise(share, m * k, fused_input or quiet)
        backward += _quantise(share, m * total, fused_grad or quiet)
    forward += [Gemm(m, width, k, dtype) for width in widths]
    backward += [Gemm(m, k, width, dtype, 1, "dgrad") for width in widths]
    backward += [elementwise("add", share, m * k, 2 * share.e, share.e)] * (len(widths) - 1)
    if cast:
        backward.append(MemoryBound("cast", 2 * m * k, 4 * m * k, act))
    wgrad = [] if frozen else [*_weight_gradients(share, m, k, widths, dtype, bias), *up]
    slices = 0 if share.framework.tensor == "dtensor" else saved_rows  # DTensor keeps the gathered input
    kept = (slices or m) * k * (1 if low else share.e)
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        wgrad=tuple(wgrad),
        cls="gemm",
        tensors=tensors,
        frozen=frozen,
        saved=0 if frozen else kept,
        seam=seam,
        seam_bytes=seam_bytes,
        modules=modules + len(widths) - 1,
        recompute=recompute,
    )


def norm(
    share: Share,
    name: str,
    rows: int,
    width: int,
    kind: str,
    *,
    bias: bool = True,
    weight: bool = True,
    modules: int = 1,
    after_residual: bool = True,
    frozen: bool = False,
    es: int = 0,
) -> Part:
    """LayerNorm or RMSNorm of `rows` x `width`; under `compile` it takes the residual add before it into its kernel.

    `weight`, `bias`: what of it is learned. Where the framework copies the residual stream to fp32 for its fused kernel, that copy is kept.
    """
    e = es or share.es
    elements = rows * width
    eager = kind == "rmsnorm" and not (share.framework.fused_norm or share.framework.compile)
    joined = share.framework.compile and after_residual
    copied = share.framework.norm_in_fp32 and e < 4 and not (eager or share.framework.compile)
    tensors = (width,) * (weight + (kind == "layernorm" and bias))
    if eager:
        forward, backward = _eager_rmsnorm(share, elements, rows, e)
    else:
        read, written = (2, 2) if joined else (1, 1)
        forward = (elementwise(kind, share, elements, read * e, written * e, 8.0, rows),)
        backward = (elementwise(kind, share, elements, (3 if joined else 2) * e, e, 16.0, rows),)
        if tensors and not frozen:  # gradients of the weights: a column sum, of partial sums where fused
            again = 0.125 if share.framework.fused_norm or share.framework.compile else 2 * e
            backward += (MemoryBound("reduce", int(elements * again), sum(tensors) * 4, share.act),)
    if copied:
        wide, narrow = (elementwise("cast", share, elements, *widths, 1.0, rows) for widths in ((e, 4), (4, e)))
        forward = (wide, elementwise(kind, share, elements, 4, e, 8.0, rows))
        backward = (elementwise(kind, share, elements, 4 + e, 4, 16.0, rows), *backward[1:], narrow)
    kept = elements * (4 + e if eager else 4 if copied else e) + rows * (4 if kind == "rmsnorm" else 8)
    return Part(
        name=name,
        forward=forward,
        backward=backward,
        cls="norm",
        tensors=tensors,
        frozen=frozen,
        saved=kept,
        modules=modules,
    )


def _eager_rmsnorm(share: Share, elements: int, rows: int, e: int) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """RMSNorm written out in Python (transformers' LlamaRMSNorm): to fp32, square, mean, rsqrt, scale, back, weight."""

    def step(what: str, read: float, written: float) -> Work:
        return elementwise(what, share, elements, read, written, 1.0, rows)

    small: Work = MemoryBound("scale", 8 * rows, 8 * rows, "fp32", 2.0 * rows)
    casts = [] if e == 4 else [step("cast", e, 4)]
    back = [] if e == 4 else [step("cast", 4, e)]
    forward = [*casts, step("activation", 4, 4), step("reduce", 4, 0), small, step("scale", 4, 4), *back, step("scale", e, e)]
    backward = [step("scale", e, e), step("scale", 2 * e, e), step("reduce", e, 0), *casts, step("scale", 4, 4), step("scale", 8, 4)]
    backward += [step("reduce", 4, 0), small, small, step("scale", 4, 4), step("add", 8, 4), *back]
    return tuple(forward), tuple(backward)


def activation(share: Share, name: str, rows: int, width: int, kind: str, *, recompute: bool = False, halves: bool = False) -> Part:
    """The non-linearity between an MLP's linears, on `width` columns of its output.

    Gated kinds read two inputs of `width`. Unfused, silu keeps its input and the product keeps both factors; `halves`: the inputs are
    halves of one result, whose gradients a copy joins.
    """
    e, n = share.e, rows * width
    fused = share.framework.fused_activation or share.framework.compile
    if kind in GATED:
        if fused:
            forward: tuple[Work, ...] = (elementwise("glu", share, n, 2 * e, e, 6.0),)
            backward: tuple[Work, ...] = (elementwise("glu", share, n, 3 * e, 2 * e, 12.0),)
        else:
            forward = (elementwise("activation", share, n, e, e, 5.0), elementwise("scale", share, n, 2 * e, e))
            backward = (elementwise("scale", share, n, 2 * e, e), elementwise("scale", share, n, 2 * e, e))
            backward += (elementwise("activation", share, n, 2 * e, e, 10.0),)
            backward += (elementwise("copy", share, 2 * n, e, e),) * halves
        kept = (2 if fused else 3) * n * e
    elif (kind == "gelu_new" or (kind == "gelu" and share.framework.graph_operators)) and not fused:
        forward, backward = _gelu_in_python(share, n, 4 if share.framework.graph_operators else e)
        kept = 4 * n * e  # x, its half, tanh and 1 + tanh
    else:
        twice = kind == "relu2" and not fused
        flops, back = _ACTIVATION_FLOPS.get(kind, (8.0, 12.0))
        forward = (elementwise("activation", share, n, e, e, flops),) * (2 if twice else 1)
        backward = (elementwise("activation", share, n, 2 * e, e, back),) * (2 if twice else 1)
        kept = n * e
    return Part(name=name, forward=forward, backward=backward, cls="activation", saved=kept, recompute=recompute)


def _gelu_in_python(share: Share, n: int, e: int) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """transformers' NewGELUActivation, 0.5 x (1 + tanh(c (x + 0.044715 x^3))), as eager PyTorch runs it: one kernel an operator.

    Backward: the product rule twice, tanh's, the cube's (its square again, times 3, times the gradient), and x's three gradients added.
    `e`: bytes of a value; TensorFlow's mixed precision keeps tf.pow and what is around it in fp32.
    """
    one, two = elementwise("scale", share, n, e, e), elementwise("scale", share, n, 2 * e, e)
    tanh, add = elementwise("activation", share, n, e, e, 8.0), elementwise("add", share, n, 2 * e, e)
    back = elementwise("activation", share, n, 2 * e, e, 2.0)
    return (one, one, add, one, tanh, one, one, two), (two, two, one, back, one, one, one, one, two, add, add)


def dropout_kernels(share: Share, n: int, e: int) -> tuple[list[Work], list[Work]]:
    """Dropout of `n` values of `e` bytes, forward and backward: one kernel each with a byte mask, or (`graph_operators`) what tf.nn.dropout is
    made of: random numbers, + keep, floor, x / keep, times the mask in fp32; backward times the mask, / keep."""
    if not share.framework.graph_operators or share.framework.compile:
        return [elementwise("dropout", share, n, e, e + 1, 2.0)], [elementwise("dropout", share, n, e + 1, e, 2.0)]
    divide, mask = elementwise("scale", share, n, e, e), elementwise("scale", share, n, e + 4, e)
    random = [elementwise("zero", share, n, 0, 4), elementwise("add", share, n, 4, 4), elementwise("activation", share, n, 4, 4)]
    return [*random, divide, mask], [mask, divide]


def residual(share: Share, name: str, rows: int, width: int, *, dropout: bool, fork: bool = True) -> Part:
    """Dropout and the add to the residual stream; backward sums the two gradients that meet at the fork.

    `fused_residual`: one kernel (Megatron's bias + dropout + add). Under `compile` all of it lives in the next norm.
    """
    e, es, n = share.e, share.es, rows * width
    habits = share.framework
    backward: list[Work] = []
    forward: list[Work] = []
    if habits.compile:
        pass
    elif habits.fused_residual:
        forward.append(elementwise("add", share, n, e + es, es + dropout, 3.0))
        if dropout:
            backward.append(elementwise("dropout", share, n, es + 1, e, 2.0))
    else:
        if dropout:
            drop, back = dropout_kernels(share, n, e)
            forward += drop
            backward += back
        forward.append(elementwise("add", share, n, e + es, es))
        if es != e:
            backward.append(elementwise("cast", share, n, es, e))
    if fork and not habits.compile:
        backward.append(elementwise("add", share, n, 2 * es, es))
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        cls="elementwise",
        saved=n if dropout else 0,
        modules=1 if dropout else 0,
    )
