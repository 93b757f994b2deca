"""The name of the library kernel that runs a memory-bound work: `layernorm`, `gelu_backward`, `add`. Probe, player and all prices use this rule.

A work names the operation but not forward or backward: of most kinds only the backward kernel reads more arrays than it writes.
"""

from __future__ import annotations

import math

from sim.work import BYTES, MemoryBound

HALVES = "_halves"
"""Suffix of the name of a kernel that reads one half of each row."""
WIDEN = "widen"
"""A cast to a wider dtype, which a GPU makes at half the rate of one to a narrower dtype."""
WEIGHTS = "layernorm_weights"
"""The kernel for the gradients of a layer norm's weights: sums over its rows."""
NARROW = 1024
"""Elements of a row that one warp keeps in registers (torch's persistent softmax)."""
_BACKWARD = dict.fromkeys(("layernorm", "rmsnorm", "softmax", "softmax_wide", "activation", "rope"), 1.4) | {
    "batchnorm": 3.5,
    "dropout": 1.0,
}
"""Read-to-written ratio above which a kernel is its backward one: most read one more array there than they write (forward 1, backward 2); norms over maps
read all of it for their statistics first (forward 2, and 3 where another map joins; backward 4), and dropout's mask is written and read again."""


def variant(work: MemoryBound) -> str:
    """The kernel's name. A backward kernel has the suffix `_backward`, one that reads halves of rows the suffix `HALVES`."""
    ratio = work.read / max(1, work.written)
    what = "permute" if work.what.startswith("transpose") else work.what
    if what in ("groupnorm", "batchnorm_fused"):  # statistics, then the values again
        what = "batchnorm"
    if what == "layernorm_apart":  # kernels that a GPU runs for one norm
        what = "layernorm" if work.written else WEIGHTS
    if what == "softmax" and work.rows and work.written / BYTES[work.dtype] > NARROW * work.rows:
        what = "softmax_wide"  # as in a loss: rows too long for a warp's registers are read two or three times
    if what == "glu":
        return "glu_backward" if ratio < 1.8 else "glu"
    if what == "cast" and ratio < 1.0:
        return WIDEN
    backward = ratio > _BACKWARD.get(what, math.inf)
    if what == "activation":
        what = _activation(work, backward)
    return (f"{what}_backward" if backward else what) + HALVES * work.halves


def _activation(work: MemoryBound, backward: bool) -> str:
    # Works name no function; their FLOPs per element tell relu (1) from silu (5, backward 10) from gelu (8, backward 12).
    per_element = work.ops / max(1.0, work.written / BYTES[work.dtype])
    if per_element <= (3 if backward else 2):
        return "relu"
    return "silu" if per_element <= (11 if backward else 6) else "gelu"
