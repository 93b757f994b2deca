"""What a memory-bound kernel is built from: the sizes of a work, and buffers of an arena."""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor.arena import Arena
from sim.work import MemoryBound

Body = Callable[[], object]
"""A kernel that is ready to run, its buffers made."""
_WIDTH = 1024


class Site:
    """Sizes and buffers of the kernel of one work.

    Elements follow from the written bytes (the read ones for reductions), row width from `rows`. Where a work names rows 0, rows of 1,024
    elements are taken.
    """

    def __init__(self, work: MemoryBound, arena: Arena, dtype: torch.dtype) -> None:
        self.work, self.arena, self.dtype = work, arena, dtype
        self.n = max(1, (work.written or work.read) // dtype.itemsize)
        self.rows = max(1, min(work.rows or self.n // _WIDTH, self.n))
        self.width = max(1, self.n // self.rows)
        self.inputs = max(1, round(work.read / max(1, work.written))) if work.written else 1

    def flat(self, far: bool = False, half: bool = False) -> torch.Tensor:
        """As many elements as the kernel writes; `far`: not touched lately, so that they come from memory; `half`: of the array whose rows it reads
        halves of, if it does."""
        take = self.arena.distant if far else self.arena.recent
        if not self.work.halves:
            return take(self.n, dtype=self.dtype)
        return take(self.rows, self.width * (2 if half else 1), dtype=self.dtype)[:, : self.width]

    def table(self, far: bool = False) -> torch.Tensor:
        """The same as (rows, width)."""
        return (self.arena.distant if far else self.arena.recent)(self.rows, self.width, dtype=self.dtype)
