"""How long a device works on a call, measured with its own events, without the host's time.

A small kernel lasts 2 us and takes the host 5-10 us to launch: a plain loop would measure the launch. So the stream is held by other work,
the calls are launched behind it, and the events before the first and after the last call are read once the device has passed both. Tests
use a stand-in for the device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from executor.players.events import Cuda

_READING = 1e-3
"""Device seconds that one reading should last: events are accurate to 0.5-1 us."""
_MOST_CALLS, _MOST_READINGS = 50, 50
"""Most calls in one reading, and most readings of one call."""
FASTEST = 3e9
"""Hz; no GPU has a faster clock, so this many cycles hold a stream for at least a second."""
_LONGEST_HOLD = 0.05
_RESTS = 1.0
"""Least seconds that the device rests before a reading, for each second of the reading: matrix units draw 1.4 times the power limit of an
H200, and twice that of boards with a lower limit."""
_WARM = 2
"""Calls before timing, in which cuBLAS and cuDNN choose their kernels, modules are loaded, and the caching allocator grows."""


_PAIRS, _ROUNDS = 40, 5
_HOLD = 4_500_000
"""Clock cycles, at least 1.5 ms: time for a host to launch twice `_PAIRS` kernels and to record their events."""


def around(cuda: Cuda, run: Callable[[], object]) -> float:
    """Device seconds by which two events around one kernel read more than the kernel takes in a sequence of kernels: the events themselves,
    and the overlap with the next kernel's start, which they prevent. A norm of 10 us would seem a fifth longer. 0 or more."""
    found = list[float]()
    run()
    for _ in range(_ROUNDS):
        pairs = [(cuda.event(), cuda.event()) for _ in range(_PAIRS)]
        begin, end = cuda.event(), cuda.event()
        cuda.hold(_HOLD)
        for first, last in pairs:
            first.record()
            run()
            last.record()
        begin.record()
        for _ in range(_PAIRS):
            run()
        end.record()
        end.synchronize()
        alone = statistics.median(first.elapsed_time(last) for first, last in pairs) * 1e-3
        found.append(alone - begin.elapsed_time(end) * 1e-3 / _PAIRS)
    return max(0.0, statistics.median(found))


class DeviceTimer:
    """Times calls on the current stream of one device."""

    def __init__(self, cuda: Cuda, clock: Callable[[], float] = time.perf_counter, hold: Callable[[float], object] | None = None) -> None:
        """`hold`: keeps the stream busy for at least so many seconds; None: a kernel that only waits."""
        self._cuda, self._clock = cuda, clock
        self._hold = hold or (lambda seconds: cuda.hold(int(seconds * FASTEST)))

    def times(self, calls: Sequence[Callable[[], object]], budget: float, least: int = 3) -> list[float]:
        """Device seconds of one call, from many readings: at least `least`, and more for `budget` seconds. `calls` are equal and take
        turns."""
        for i in range(max(_WARM, len(calls))):
            calls[i % len(calls)]()
        self._cuda.synchronize()
        rough, launch = self._reading(calls, 2, 0.0)
        self._hold(min(_LONGEST_HOLD, _RESTS * _WARM * rough))  # a rest after the first calls, which had none
        inner = max(1, min(_MOST_CALLS, int(_READING / max(rough, 1e-7))))
        hold = min(_LONGEST_HOLD, max(1.5 * inner * launch + 5e-5, _RESTS * inner * rough))
        found: list[float] = []
        end = self._clock() + budget
        while len(found) < least or (len(found) < _MOST_READINGS and self._clock() < end):
            seconds, _ = self._reading(calls, inner, hold)
            found.append(seconds)
        return found

    def _reading(self, calls: Sequence[Callable[[], object]], inner: int, hold: float) -> tuple[float, float]:
        """(device seconds, host seconds) of one call. If the hold of `hold` seconds was too short, reads again behind a longer one."""
        while True:
            if hold:
                self._hold(hold)
            start, end = self._cuda.event(), self._cuda.event()
            start.record()
            begin = self._clock()
            for i in range(inner):
                calls[i % len(calls)]()
            host = self._clock() - begin
            late = hold > 0 and self._cuda.passed(start)
            end.record()
            end.synchronize()
            if not late or hold >= _LONGEST_HOLD or host > _LONGEST_HOLD:
                return start.elapsed_time(end) * 1e-3 / inner, host / inner
            hold = min(_LONGEST_HOLD, 2 * hold)
