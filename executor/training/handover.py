"""How a batch is copied to the device, as the plan says: from pinned or pageable memory, on a separate stream or on the compute stream."""

from __future__ import annotations

import torch

from executor.ranks.world import World
from executor.training.examples import Pair
from sim.plan import Plan


class Handover:
    """Copies a rank's batches to its device. On a CPU there is nothing to copy."""

    def __init__(self, plan: Plan, world: World) -> None:
        self._device, self._data = world.device, plan.data
        aside = world.kind == "cuda" and plan.data.stream == "copy"
        self._stream: torch.cuda.Stream | None = torch.cuda.Stream(world.device) if aside else None  # type: ignore[no-untyped-call]

    def __call__(self, batch: Pair) -> Pair:
        """The batch on the device. The host waits for a copy from pageable memory; it does not wait for one from pinned memory."""
        if self._stream is None:
            return self._copied(batch)
        compute = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            there = self._copied(batch)
        if self._data.handover == "event":
            compute.wait_stream(self._stream)
        elif self._data.handover == "synchronize":
            self._stream.synchronize()
        for tensor in there:
            tensor.record_stream(compute)  # the allocator must not reuse its memory while compute still reads it
        return there

    def _copied(self, batch: Pair) -> Pair:
        x, y = batch
        # From pageable memory the driver copies synchronously even with non_blocking.
        return x.to(self._device, non_blocking=self._data.pinned), y.to(self._device, non_blocking=self._data.pinned)
