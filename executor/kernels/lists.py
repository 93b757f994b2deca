"""Passes over lists of tensors, as torch's foreach functions make them: multi-tensor kernels on a GPU, a loop on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor.kernels.site import Body, Site
from sim.work import BLOCK, LISTED

_WIDE = 8
"""The number of elements of a tensor is a multiple of this, as for all large tensors of a model: a multi-tensor kernel then reads four
elements at once, and otherwise one."""


def _list(s: Site) -> list[torch.Tensor]:
    """The tensors of one launch, in memory that was not touched recently. The kernel divides tensors larger than a block into blocks in any
    case, so a single tensor stands for several such ones."""
    count = max(1, s.work.rows)
    size = s.n // count
    if size >= BLOCK:
        count, size = 1, s.n
    size = size // _WIDE * _WIDE or max(1, size)
    return [s.arena.distant(size, dtype=s.dtype) for _ in range(count)]


def _add_in_place(s: Site) -> Body:
    # Adds b times zero, and `_scale_in_place` multiplies by one: see `executor.kernels.elementwise`.
    a, b = _list(s), _list(s)
    if s.inputs < 3:
        return lambda: torch._foreach_add_(a, b, alpha=0.0)
    c = _list(s)
    return lambda: torch._foreach_addcmul_(a, b, c, value=0.0)


def _add(s: Site) -> Body:
    a, b = _list(s), _list(s)
    return lambda: torch._foreach_add(a, b)


def _scale_in_place(s: Site) -> Body:
    a = _list(s)
    return lambda: torch._foreach_mul_(a, 1.0)


def _scale(s: Site) -> Body:
    a = _list(s)
    if s.inputs < 2:
        return lambda: torch._foreach_mul(a, 0.5)
    b = _list(s)
    return lambda: torch._foreach_mul(a, b)


def _sqrt(s: Site) -> Body:
    a = [x.abs().add_(1e-6) for x in _list(s)]  # a square root of zero or of a negative number takes longer on CPUs and GPUs
    return lambda: torch._foreach_sqrt(a)


def _norm(s: Site) -> Body:
    a = _list(s)
    return lambda: torch._foreach_norm(a)


def _copy(s: Site) -> Body:
    """A copy, or a cast if the work reads and writes different numbers of bytes."""
    to, source = _list(s), _list(s)
    if s.work.read != s.work.written:
        narrow = torch.bfloat16 if s.dtype is torch.float32 else torch.float32
        source = [x.to(narrow) for x in source]
    return lambda: torch._foreach_copy_(to, source)


KERNELS: dict[str, Callable[[Site], Body]] = {
    LISTED + what: made
    for what, made in (
        ("add_", _add_in_place),
        ("add", _add),
        ("scale_", _scale_in_place),
        ("scale", _scale),
        ("sqrt", _sqrt),
        ("norm", _norm),
        ("copy", _copy),
        ("cast", _copy),
    )
}
"""Variant (`sim.cost.variant`) -> function that builds its kernel."""
