"""Kernels over elements: any, dropout, the residual stream, learned factors.

As all parts of a model, for one rank. Rows x width count elements; what is saved follows PyTorch's autograd (a linear keeps its input, a norm
its input, dropout a byte mask), which for the plain GPT gives 34 s b h + 5 a s^2 b bytes (Korthikanti et al. 2022, equation 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sim.model.parts import Part
from sim.model.share import Share
from sim.work import MemoryBound, Work


def elementwise(what: str, share: Share, elements: int, read: float, written: float, ops: float = 1.0, rows: int = 0) -> MemoryBound:
    """A kernel over `elements`, moving `read` and `written` bytes for each."""
    return MemoryBound(what, int(elements * read), int(elements * written), share.act, ops * elements, 1, rows)


def casts(share: Share, n: int) -> tuple[list[Work], list[Work]]:
    """`n` values to fp32, and back; nothing where they are fp32 already."""
    if share.e == 4:
        return [], []
    return [elementwise("cast", share, n, share.e, 4)], [elementwise("cast", share, n, 4, share.e)]


def in_fp32(share: Share, name: str, n: int, made: Callable[[Share], Sequence[Part]]) -> list[Part]:
    """Parts `made` with a stream of fp32, between what casts its `n` values to fp32 and from it; their gradients the other way. A compiler casts
    inside of other kernels."""
    widen, narrow = casts(share, n)
    if share.framework.compile or not widen:
        return list(made(share))
    up = Part(name=f"{name}.wide", forward=tuple(widen), backward=tuple(narrow), cls="elementwise", modules=0)
    return [up, *made(replace(share, es=4)), replace(up, name=f"{name}.narrow", forward=up.backward, backward=up.forward)]


def transpose(share: Share, n: int) -> MemoryBound:
    """(batch, tokens, heads, columns) with tokens and heads changed, or changed back."""
    return elementwise("transpose_tiled" if share.framework.attention.tiled_transposes else "transpose", share, n, share.e, share.e)


def multiplied(share: Share, name: str, elements: int, e: int) -> list[Part]:
    """`elements` of `e` bytes times a fixed number, and so their gradients; nothing is kept. A compiler does it in a kernel beside it."""
    if share.framework.compile:
        return []
    scale = elementwise("scale", share, elements, e, e)
    return [Part(name=name, forward=(scale,), backward=(scale,), cls="elementwise", modules=0)]


def capping(share: Share, elements: int, backward: bool = False) -> list[Work]:
    """x / c, tanh and its product with c; the result of tanh is kept (transformers, modeling_gemma2.py)."""
    scale = elementwise("scale", share, elements, share.e, share.e)
    return [scale, elementwise("activation", share, elements, share.e * (1 + backward), share.e, 8.0), scale]


def dropout_kernels(share: Share, n: int, e: int) -> tuple[list[Work], list[Work]]:
    """Dropout of `n` values of `e` bytes, forward and backward: one kernel each with a byte mask, or (`graph_operators`) what tf.nn.dropout is
    made of: random numbers, + keep, floor, x / keep, times the mask in fp32; backward times the mask, / keep."""
    if not share.framework.elementwise.graph_operators or share.framework.compile:
        return [elementwise("dropout", share, n, e, e + 1, 2.0)], [elementwise("dropout", share, n, e + 1, e, 2.0)]
    divide, mask = elementwise("scale", share, n, e, e), elementwise("scale", share, n, e + 4, e)
    random = [elementwise("zero", share, n, 0, 4), elementwise("add", share, n, 4, 4), elementwise("activation", share, n, 4, 4)]
    return [*random, divide, mask], [mask, divide]


def residual(share: Share, name: str, rows: int, width: int, *, dropout: bool) -> Part:
    """Dropout and the add to the residual stream; backward sums the two gradients that meet at the fork.

    `fused_residual`: one kernel (Megatron's bias + dropout + add). Under `compile` all of it lives in the next norm.
    """
    e, es, n = share.e, share.es, rows * width
    habits = share.framework
    backward: list[Work] = []
    forward: list[Work] = []
    if habits.compile:
        if dropout and habits.elementwise.random_apart:
            forward.append(elementwise("dropout", share, n, 4, 4))  # written by one kernel, read by the norm's
            backward.append(elementwise("dropout", share, n, 4, 0))
    elif habits.elementwise.fused_residual:
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
    if not habits.compile:
        backward.append(elementwise("add", share, n, 2 * es, es))
    return Part(
        name=name,
        forward=tuple(forward),
        backward=tuple(backward),
        cls="elementwise",
        saved=n if dropout else 0,
        modules=1 if dropout else 0,
    )


def scaled(share: Share, name: str, hidden: int, learned: int) -> Part:
    """A learned factor for each column, or one (`learned`) for all: its gradient is a sum over all rows of gradient x input."""
    n, e = share.srows * hidden, share.e
    scale, twice = elementwise("scale", share, n, e, e), elementwise("scale", share, n, 2 * e, e)
    total = MemoryBound("reduce", n * e, learned * e, share.act)
    return Part(
        name=name, forward=(scale,), backward=(scale,), wgrad=(twice, total), cls="elementwise", tensors=(learned,), saved=n * e, modules=0
    )
