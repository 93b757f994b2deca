"""An optimizer's passes over a tensor, as kernels."""

from __future__ import annotations

from sim.optimizers import Passes
from sim.work import MemoryBound, Work


def over_one(size: int, passes: Passes, width: float, dtype: str, repeat: int = 1) -> list[Work]:
    """Kernels over a tensor of `size` elements of `width` bytes, or one after the other over `repeat` of them, launched by a loop in C++."""
    return [MemoryBound(kernel(what), int(size * r * width), int(size * w * width), dtype, float(size), repeat) for what, r, w in passes]


def kernel(what: str) -> str:
    """The kernel that runs a pass. The sign has none of its own: it moves memory as a scaling does."""
    return "scale" if what == "sign" else what
