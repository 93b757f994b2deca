"""Norms, for one rank: fused, compiled, or written out in Python. A norm keeps its input for backward (PyTorch's autograd)."""

from __future__ import annotations

from msgspec.structs import replace

from sim.model.layers.elementwise import elementwise
from sim.model.parts import Part
from sim.model.share import Share
from sim.work import MemoryBound, Work


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

    `weight`, `bias`: what of it is learned; torch has no bias without a weight (nn.LayerNorm(elementwise_affine=False)). Where the
    framework copies the residual stream to fp32 for its fused kernel, that copy is kept.
    """
    e = es or share.es
    elements = rows * width
    eager, copied = _eager(share, kind), _copied(share, kind, e)
    joined = share.framework.compile and after_residual
    tensors = (width,) * (1 + (kind == "layernorm" and bias)) if weight else ()
    if eager:
        forward, backward = _eager_rmsnorm(share, elements, rows, e, learned=weight and not frozen)
    elif kind == "layernorm" and share.framework.elementwise.norm_in_parts:
        forward, backward = (_split_at_sums if share.framework.compile else _written_out)(share, elements, rows, e, joined)
    elif kind == "layernorm" and share.framework.elementwise.norm_kernels in ("apart", "early") and not (copied or share.framework.compile):
        forward, backward = _in_kernels(share, elements, rows, e, share.framework.elementwise.norm_kernels == "early")
        backward = backward[:-1] if frozen or not tensors else backward
    else:
        read, written = (2, 2) if joined else (1, 1)
        forward = (elementwise(kind, share, elements, read * e, written * e, 8.0, rows),)
        backward = (elementwise(kind, share, elements, (3 if joined else 2) * e, e, 16.0, rows),)
        if tensors and not frozen:  # gradients of the weights: a column sum, of partial sums where fused
            partial = share.framework.compile or (
                share.framework.elementwise.fused_norm and share.framework.elementwise.norm_kernels == "joined"
            )
            again = 0.125 if partial else 2 * e
            backward += (MemoryBound("reduce", int(elements * again), sum(tensors) * 4, share.act),)
    if copied:
        wide, narrow = (elementwise("cast", share, elements, *widths, 1.0, rows) for widths in ((e, 4), (4, e)))
        forward = (wide, elementwise(kind, share, elements, 4, e, 8.0, rows))
        backward = (elementwise(kind, share, elements, 4 + e, 4, 16.0, rows), *backward[1:], narrow)
    kept = elements * (4 + e * (weight and not frozen) if eager else 4 if copied else e) + rows * (4 if kind == "rmsnorm" else 8)
    return Part(
        name=name,
        forward=forward,
        backward=backward,
        cls="norm",
        tensors=tensors,
        whole=() if frozen else tensors,
        frozen=frozen,
        saved=kept,
        modules=modules,
    )


def beside(share: Share, part: Part, kind: str) -> Part:
    """The norm `part` of the residual stream where another norm has read and kept the same tensor: it keeps its sums over rows alone, unless
    what it reads is a copy of its own."""
    if _eager(share, kind) or _copied(share, kind, share.es):
        return part
    return replace(part, saved=share.srows * (4 if kind == "rmsnorm" else 8))


def _eager(share: Share, kind: str) -> bool:
    """Is it written out in Python?"""
    return kind == "rmsnorm" and not (share.framework.elementwise.fused_norm or share.framework.compile)


def _copied(share: Share, kind: str, e: int) -> bool:
    """Does a fused kernel read a copy in fp32?"""
    return share.framework.elementwise.norm_in_fp32 and e < 4 and not (_eager(share, kind) or share.framework.compile)


def before(share: Share, part: Part, following: Part) -> Part:
    """The norm `part` in front of the part `following`: inside a linear it is no module, and no node of Python, of its own
    (megatron/core/models/gpt/gpt_layer_specs.py, experimental_attention_variant_module_specs.py; mamba/mamba_layer_specs.py)."""
    if not share.framework.elementwise.norm_in_linear or not following.normed:
        return part
    return replace(part, modules=part.modules - 1, native=len(part.forward))


def _in_kernels(share: Share, elements: int, rows: int, e: int, early: bool) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """`norm_kernels`, all but joined: each kernel reads its arrays from memory; last of them, the weights' gradients."""

    def step(read: float, written: float) -> Work:
        return elementwise("layernorm_apart", share, elements, read, written, 8.0, rows)

    forward, backward = (step(e, e),), (step(2 * e, e), step(2 * e, 0))
    return ((step(e, 0), *forward), (step(2 * e, 0), *backward)) if early else (forward, backward)


def _eager_rmsnorm(share: Share, elements: int, rows: int, e: int, learned: bool) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """RMSNorm written out in Python (transformers' LlamaRMSNorm): to fp32, square, mean, rsqrt, scale, back, weight. `learned`: the weight has a
    gradient, for which what it scales is kept."""

    def step(what: str, read: float, written: float) -> Work:
        return elementwise(what, share, elements, read, written, 1.0, rows)

    small: Work = MemoryBound("scale", 8 * rows, 8 * rows, "fp32", 2.0 * rows)
    casts = [] if e == 4 else [step("cast", e, 4)]
    back = [] if e == 4 else [step("cast", 4, e)]
    forward = [*casts, step("activation", 4, 4), step("reduce", 4, 0), small, small, step("scale", 4, 4), *back, step("scale", e, e)]
    weights = [step("scale", 2 * e, e), step("reduce", e, 0)] * learned
    backward = [step("scale", e, e), *weights, *casts, step("scale", 4, 4), step("scale", 8, 4), step("reduce", 4, 0), small, small, small]
    # of the mean, written to all its columns; of the square, 2 x^1 times that
    backward += [step("scale", 0, 4), step("copy", 4, 4), step("scale", 4, 4), step("scale", 8, 4), step("add", 8, 4), *back]
    return tuple(forward), tuple(backward)


def _written_out(share: Share, elements: int, rows: int, e: int, joined: bool) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """tf.nn.moments and tf.nn.batch_normalization as TensorFlow's operators: x g / sigma + (b - mean g / sigma), where g / sigma is as large
    as x; backward as its gradient functions write them (_MeanGrad tiles, then divides). `joined`: never."""

    def step(what: str, read: float, written: float) -> Work:
        return elementwise(what, share, elements, read, written, 1.0, rows)

    one, two, add, total = step("scale", e, e), step("scale", 2 * e, e), step("add", 2 * e, e), step("reduce", e, 0)
    tile = step("copy", 0, e)
    forward = (total, step("add", e, e), total, step("scale", 0, e), two, one, step("add", e, e), add)
    outer = (two, two, total, one, two, total, one, add)  # of the last four, to x, g / sigma, the mean and b
    inner = (one, total, one, total)  # of g / sigma, to g and sigma
    moments = (tile, one, one, step("add", e, e), two, tile, one, step("add", 3 * e, e))  # of both means, and x's three gradients
    return forward, (*outer, *inner, *moments)


def _split_at_sums(share: Share, elements: int, rows: int, e: int, joined: bool) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """The same compiled by XLA, which ends a kernel at each sum: mean (with the add before, where `joined`), variance, scaling; backward the sums over
    a row, x's gradient, and the sums over a column."""

    def step(what: str, read: float, written: float) -> Work:
        return elementwise(what, share, elements, read, written, 4.0, rows)

    forward = (step("reduce", (1 + joined) * e, joined * e), step("reduce", e, 0), step("scale", e, e))
    return forward, (step("reduce", 2 * e, 0), step("scale", (2 + joined) * e, e), step("reduce", 2 * e, 0))
