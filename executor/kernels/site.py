"""What a memory-bound kernel is built from: the sizes of its work, and buffers from an arena."""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor.arena import Arena
from sim.work import MemoryBound

Body = Callable[[], object]
"""A kernel that is ready to run: its buffers exist."""
_WIDTH = 1024


class Site:
    """Sizes and buffers of the kernel of one work.

    `n`: elements, from the bytes that it writes (from those that it reads, if it writes none). `rows` and `width`: rows and elements of a
    row; rows of 1,024 elements if the work's `rows` is 0. `inputs`: arrays that it reads, from the ratio of bytes read to bytes written.
    """

    def __init__(self, work: MemoryBound, arena: Arena, dtype: torch.dtype) -> None:
        self.work, self.arena, self.dtype = work, arena, dtype
        self.n = max(1, (work.written or work.read) // dtype.itemsize)
        self.rows = max(1, min(work.rows or self.n // _WIDTH, self.n))
        self.width = max(1, self.n // self.rows)
        self.inputs = max(1, round(work.read / max(1, work.written))) if work.written else 1

    def flat(self, far: bool = False, half: bool = False) -> torch.Tensor:
        """A tensor of as many elements as the kernel writes. `far`: in memory that was not touched recently, so that it is in no cache. For
        a work with `halves` it has shape (rows, width); with `half` it is then the first half of each row of an array that is twice as
        wide."""
        take = self.arena.distant if far else self.arena.recent
        if not self.work.halves:
            return take(self.n, dtype=self.dtype)
        return take(self.rows, self.width * (2 if half else 1), dtype=self.dtype)[:, : self.width]

    def table(self, far: bool = False) -> torch.Tensor:
        """The same elements as a tensor of shape (rows, width)."""
        return (self.arena.distant if far else self.arena.recent)(self.rows, self.width, dtype=self.dtype)
