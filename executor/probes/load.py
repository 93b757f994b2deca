"""Work of a training step's kind, behind which timed kernels stand ready on a GPU.

A GPU that runs one small kernel again and again, or waits, draws little power and runs at its highest clock; in training all kernels draw
power together, and the board lowers its clock until the draw meets its limit. What is timed behind products and norms is timed at the clock
that these leave, and finds L2 as they leave it.
"""

from __future__ import annotations

import math

import torch

from executor.players.events import Cuda

_SIDE = 4096
"""Of the product: 137 GFLOP, a fifth of a millisecond of an H100."""
_ROWS = 8192
"""Of the norm, over 64 MB: it takes a fifth of the time there, as what is no product does in a step of a transformer."""


class Load:
    """Products and norms on the current stream. Their buffers, 230 MB with what comes out, are taken when first asked for."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._turn = cuda, 0.0
        self._buffers: tuple[torch.Tensor, ...] = ()

    def hold(self, seconds: float) -> None:
        """Keeps the current stream busy for so long or somewhat longer."""
        with torch.no_grad():
            if not self._buffers:
                self._begin()
            for _ in range(math.ceil(seconds / self._turn)):
                self._once()

    def _once(self) -> None:
        a, b, x = self._buffers
        torch.mm(a, b)
        torch.native_layer_norm(x, [x.shape[1]], None, None, 1e-5)

    def _begin(self) -> None:
        """Numbers as in training: zeros would draw less power. A turn takes as long as the fastest of some: the first ones choose kernels."""
        shapes = (_SIDE, _SIDE), (_SIDE, _SIDE), (_ROWS, _SIDE)
        self._buffers = tuple(torch.randn(shape, device=self._cuda.device, dtype=torch.bfloat16).mul_(0.02) for shape in shapes)
        found = []
        for _ in range(4):
            start, end = self._cuda.event(), self._cuda.event()
            start.record()
            self._once()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) * 1e-3)
        self._turn = max(1e-6, min(found))
