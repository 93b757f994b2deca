"""A device that is none: streams and events as CUDA orders them, with a clock that the test can read. Bodies run on the CPU.

The host has one clock, the device another that is never behind it: what is launched begins when the device is free.
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from executor.players.events import Cuda


class StandInEvent:
    """Refuses what CUDA refuses: reading a moment that was not recorded, or that nobody has waited for."""

    def __init__(self, device: StandIn, timing: bool) -> None:
        self._device, self._timing, self.at, self.known = device, timing, -1.0, False

    def record(self, stream: Any = None) -> None:
        self._device.free = self._device.moment() + self._device.stamp if self._timing and self._device.simulated else self._device.free
        self.at, self.known = self._device.moment(), False
        self._device.unread.append(self)

    def synchronize(self) -> None:
        assert self.at >= 0, "waited for an event that was never recorded"
        self._device.advance(self.at)
        for event in self._device.unread:  # whatever the device came to before
            event.known = event.known or event.at <= self.at

    def elapsed_time(self, end: StandInEvent) -> float:
        assert self._timing and end._timing, "an event without timing was read"
        if not (self.known and end.known):
            raise RuntimeError("device not ready: both events must have been completed")
        return (end.at - self.at) * 1e3


class StandInStream:
    """A queue whose work is done when it is put in."""

    def __init__(self, device: StandIn, number: int) -> None:
        self.device, self.number = device, number
        self.waited: list[StandInEvent] = []

    def synchronize(self) -> None:
        self.device.synchronize()

    def wait_event(self, event: StandInEvent) -> None:
        assert event.at >= 0, "a stream waits for an event that was never recorded"
        self.waited.append(event)


class StandIn(Cuda):
    """`simulated`: both clocks are numbers that the calls move; else both are this machine's."""

    def __init__(self, simulated: bool = False) -> None:
        super().__init__(torch.device("cpu"))
        self.simulated, self.host, self.free = simulated, 0.0, 0.0
        self.stamp = 0.0
        """Device seconds that writing down a moment takes (simulated)."""
        self.unread: list[StandInEvent] = []
        self.used: list[int] = []
        self._streams = 1
        self._default = StandInStream(self, 0)

    def clock(self) -> float:
        return self.host if self.simulated else time.perf_counter()

    def moment(self) -> float:
        """When the device comes to what is launched now."""
        return max(self.free, self.clock())

    def advance(self, to: float) -> None:
        self.host = max(self.host, to)

    def kernel(self, launch: float, seconds: float) -> None:
        """One launch: the host goes on after `launch`, the device works for `seconds`."""
        self.host += launch
        self.free = max(self.free, self.host) + seconds

    def event(self, timing: bool = True) -> Any:
        return StandInEvent(self, timing)

    def stream(self) -> Any:
        self._streams += 1
        return StandInStream(self, self._streams - 1)

    def default(self) -> Any:
        return self._default

    def use(self, stream: Any) -> None:
        self.used.append(stream.number)

    def synchronize(self) -> None:
        self.advance(self.free)
        for event in self.unread:
            event.known = True
        self.unread.clear()

    def pinned(self, size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.uint8)

    def hold(self, cycles: int) -> None:
        self.free = self.moment() + cycles / 3e9 if self.simulated else 0.0

    def passed(self, event: Any) -> bool:
        return self.simulated and self.host >= event.at

    def generation(self) -> int:
        return 9


class Beat:
    """Counts."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def phase(self, words: str) -> None: ...

    def touch(self) -> None: ...

    def step(self, seconds: float) -> None:
        self.steps.append(seconds)


def alone(folder: Path, kind: str = "cpu") -> Any:
    """A world of one rank whose device is the CPU; `kind`: what it says of itself."""
    return SimpleNamespace(
        rank=0, size=1, local_rank=0, local_size=1, one_host=True, shared=False, kind=kind, device=torch.device("cpu"), folder=folder, stall=20.0, beat=Beat(),
        synchronize=lambda: None, barrier=lambda: None, touch_memory=lambda: None, crowded=False, backend="nccl" if kind == "cuda" else "gloo",
        group=lambda ranks, backend=None: None, limit=timedelta(seconds=45),
    )  # fmt: skip
