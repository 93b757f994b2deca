"""Kernels over elements: sums, products, casts, activations and their gradients, dropout, rotary positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from executor.kernels.site import Body, Site

_HEAD = 128
"""Columns of a head."""
aten = torch.ops.aten


def plain(s: Site) -> Body:
    """Adds two arrays, or copies one: whichever has the work's ratio of bytes."""
    a, b = s.flat(), s.flat(far=True)
    return (lambda: torch.add(a, b)) if s.inputs >= 2 else (lambda: a.clone())


def _scale(s: Site) -> Body:
    a, b = s.flat(), s.flat(far=True, half=True)
    return (lambda: torch.mul(a, b)) if s.inputs >= 2 else (lambda: torch.mul(a, 0.5))


def _add_in_place(s: Site) -> Body:
    # Adds b times zero, as `_scale_in_place` multiplies by one: with many repetitions sums would grow, and products shrink to denormals.
    a, b = s.flat(far=True), s.flat(far=True)
    if s.inputs < 3:
        return lambda: a.add_(b, alpha=0.0)
    c = s.flat(far=True)
    return lambda: a.addcmul_(b, c, value=0.0)


def _scale_in_place(s: Site) -> Body:
    a = s.flat(far=True)
    return lambda: a.mul_(1.0)


def _sqrt(s: Site) -> Body:
    a = s.flat().abs().add_(1e-6)  # MKL's sqrt takes six times as long for zeros, twenty times for negative numbers
    return lambda: torch.sqrt(a)


def _cast(s: Site) -> Body:
    wide, narrow = torch.float32, torch.bfloat16 if s.dtype is torch.float32 else s.dtype
    down = s.work.read > s.work.written
    count = max(1, s.work.read // (4 if down else 2))
    source = s.arena.recent(count, dtype=wide if down else narrow)
    return lambda: source.to(narrow if down else wide)


def _zero(s: Site) -> Body:
    a = s.flat(far=True)
    return lambda: a.zero_()


def _permute(s: Site) -> Body:
    a = s.table()
    return lambda: a.t().contiguous()


def _relu(s: Site) -> Body:
    a = s.flat()
    return lambda: F.relu(a)


def _relu_backward(s: Site) -> Body:
    g, a = s.flat(), s.flat(far=True)
    return lambda: aten.threshold_backward(g, a, 0)


def _gelu(s: Site) -> Body:
    a = s.flat()
    return lambda: F.gelu(a)


def _gelu_backward(s: Site) -> Body:
    g, a = s.flat(), s.flat(far=True)
    return lambda: aten.gelu_backward(g, a)


def _silu(s: Site) -> Body:
    a = s.flat(half=True)
    return lambda: F.silu(a)


def _silu_backward(s: Site) -> Body:
    g, a = s.flat(), s.flat(far=True, half=True)
    return lambda: aten.silu_backward(g, a)


def _glu(s: Site) -> Body:
    a, b = s.flat(), s.flat()
    return lambda: F.silu(a) * b


def _glu_backward(s: Site) -> Body:
    half = max(1, s.n // 2)
    g, a, b = (s.arena.recent(half, dtype=s.dtype) for _ in range(3))
    return lambda: (aten.silu_backward(g * b, a), g * F.silu(a))


def _dropout(s: Site) -> Body:
    a = s.arena.recent(max(1, s.work.read // s.dtype.itemsize), dtype=s.dtype)  # the bytes written include the mask
    return lambda: torch.native_dropout(a, 0.1, True)


def _dropout_backward(s: Site) -> Body:
    g, keep = s.flat(), torch.ones(s.n, dtype=torch.bool, device=s.arena.device)
    return lambda: aten.native_dropout_backward(g, keep, 1 / 0.9)


def _strided(s: Site) -> Body:
    """Multiplies by a table, or adds another array, over heads as a (heads, tokens, columns) view of memory in which each token has all
    heads."""
    d = math.gcd(_HEAD, s.width)
    a = s.table().view(s.rows, -1, d).transpose(0, 1)
    if s.inputs >= 2:
        b = s.arena.distant(a.shape[0], s.rows, d, dtype=s.dtype)
        return lambda: torch.add(a, b)
    cos = s.arena.recent(s.rows, d, dtype=s.dtype)
    return lambda: torch.mul(a, cos)


def _rope(s: Site) -> Body:
    half = max(1, s.width // 2)
    a = s.arena.recent(s.rows, 2 * half, dtype=s.dtype)
    cos, sin = s.arena.recent(s.rows, 2 * half, dtype=s.dtype), s.arena.recent(s.rows, 2 * half, dtype=s.dtype)
    return lambda: a * cos + torch.cat((-a[:, half:], a[:, :half]), -1) * sin


KERNELS: dict[str, Callable[[Site], Body]] = {
    "scale": _scale,
    "add_": _add_in_place,
    "scale_": _scale_in_place,
    "sqrt": _sqrt,
    "cast": _cast,
    "widen": _cast,
    "cast_transpose": _cast,
    "quantise": _cast,
    "zero": _zero,
    "permute": _permute,
    "relu": _relu,
    "relu_backward": _relu_backward,
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "silu": _silu,
    "silu_backward": _silu_backward,
    "glu": _glu,
    "glu_backward": _glu_backward,
    "dropout": _dropout,
    "dropout_backward": _dropout_backward,
    "strided": _strided,
    "rope": _rope,
}
"""Variant (`sim.cost.variant`) -> function that builds its kernel."""
