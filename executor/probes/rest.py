"""What runs before timed kernels on a GPU, which are queued behind it: a pass over memory, then a rest.

A GPU whose kernels draw more than its power limit lowers its clock within some hundredths of a second, and takes most of a second to raise
it again: kernels timed in succession would all be timed at the clock of the most power-hungry one. So each reading waits behind a kernel
that draws almost no power, long enough to keep the mean draw below the limit, and all are timed at the boost clock. How much lower the
clock of a step is follows from the table of power (`executor.probes.power`). The pass fills L2 with other data, as a step's kernels do:
otherwise what 50 small kernels read would still be there from the reading before.
"""

from __future__ import annotations

import torch

from executor.device_times import FASTEST
from executor.players.events import Cuda

_ROWS, _WIDTH = 16384, 4096
"""Shape of the norm's input: it reads 128 MB and writes as much, at least a B200's L2, in 0.1 ms on an H100."""


class Rest:
    """Runs a norm and then a hold on the current stream. Its input is allocated at the first call; with the output it takes 256 MB."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._buffer = cuda, torch.empty(0)

    def hold(self, seconds: float) -> None:
        """Keeps the current stream busy for at least `seconds`."""
        with torch.no_grad():
            if not self._buffer.numel():
                self._buffer = torch.randn((_ROWS, _WIDTH), device=self._cuda.device, dtype=torch.bfloat16).mul_(0.02)
            torch.native_layer_norm(self._buffer, [_WIDTH], None, None, 1e-5)
        self._cuda.hold(int(seconds * FASTEST))
