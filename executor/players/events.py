"""The CUDA calls of the player and the probe, typed and in one place, so that tests can replace them where there is no GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_WAKING = 0.3
"""Seconds of work after which a GPU runs at its full clock (assumed; clock governors act some ten times a second)."""


class Cuda:
    """One device's streams and events; the names are checked against torch's own module, too."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def event(self, timing: bool = True) -> torch.cuda.Event:
        """A new event; with `timing` its time can be read, once the device has reached it."""
        return cuda_event(timing)

    def stream(self) -> torch.cuda.Stream:
        """A new stream."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def default(self) -> torch.cuda.Stream:
        """The device's default stream."""
        return torch.cuda.default_stream(self.device)

    def use(self, stream: torch.cuda.Stream) -> None:
        """What this thread launches from now on goes to `stream`."""
        torch.cuda.set_stream(stream)

    def synchronize(self) -> None:
        """Waits for all streams of the device."""
        torch.cuda.synchronize(self.device)

    def pinned(self, size: int) -> torch.Tensor:
        """`size` bytes of pinned (page-locked) host memory: only with such memory are copies asynchronous to the host."""
        return torch.ones(size, dtype=torch.uint8).pin_memory()

    def passed(self, event: torch.cuda.Event) -> bool:
        """True if the device has reached this event."""
        return bool(event.query())  # type: ignore[no-untyped-call]

    def generation(self) -> int:
        """The device's major compute capability; devices from 8 on have TF32."""
        return int(torch.cuda.get_device_capability(self.device)[0])

    def hold(self, cycles: int) -> None:
        """Keeps the current stream busy for so many clock cycles: what is launched meanwhile queues behind that."""
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def cuda_event(timing: bool = True) -> torch.cuda.Event:
    """A new event; with `timing` its time can be read."""
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]


def wake(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
    """Keeps an idle GPU busy until it runs at its full clock. An idle H200 runs at 345 MHz, a busy one at 1,980; times measured in between
    are valid for neither. On a CPU there is nothing to do."""
    if device.type != "cuda":
        return
    a = torch.full((2048, 2048), 0.02, dtype=torch.bfloat16, device=device)
    end = clock() + _WAKING
    while clock() < end:
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize(device)
