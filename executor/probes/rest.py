"""What timed kernels stand ready behind on a GPU: a pass over memory, then nothing for a while.

A GPU whose kernels draw more than its power limit lowers its clock within some hundredths of a second, and takes most of a second to raise it
again: kernels timed behind each other would all be timed at the clock of the hungriest. So each reading waits behind a kernel that draws next
to nothing, as long as leaves the mean draw below the limit, and all are timed at the boost clock. What a step's draw leaves of that is told
by the table of power (`executor.probes.power`). The pass leaves L2 as a step's kernels do, full of other data: what 50 small kernels read would
else lie there from the reading before.
"""

from __future__ import annotations

import torch

from executor.device_times import FASTEST
from executor.players.events import Cuda

_ROWS, _WIDTH = 16384, 4096
"""Of the norm: it reads 128 MB and writes as much, the L2 of a B200 or more, in 0.1 ms of an H100."""


class Rest:
    """A norm and a hold on the current stream. Its buffer, with what comes out 256 MB, is taken when first asked for."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._buffer = cuda, torch.empty(0)

    def hold(self, seconds: float) -> None:
        """Keeps the current stream busy for so long at least."""
        with torch.no_grad():
            if not self._buffer.numel():
                self._buffer = torch.randn((_ROWS, _WIDTH), device=self._cuda.device, dtype=torch.bfloat16).mul_(0.02)
            torch.native_layer_norm(self._buffer, [_WIDTH], None, None, 1e-5)
        self._cuda.hold(int(seconds * FASTEST))
