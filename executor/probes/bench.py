"""Timing one call well enough: warm-up, repetitions within a budget, median with spread."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch

from executor.arena import Arena, free_memory, of_gpu
from executor.device_times import DeviceTimer
from executor.kernels.bodies import body, held
from executor.players.events import Cuda
from executor.probes.mill import Mill, Stretch
from executor.probes.rest import Rest
from executor.ranks.world import World
from sim.align import Measured
from sim.cost.calibration import Sample
from sim.work import Work

_SHORT = 2e-5
"""Calls shorter than this are timed several at once: reading the clock takes 0.1 us."""
_COLD = 5e-3
"""Calls shorter than this are timed cold, as a step finds them: products of 0.3 to 5 ms take 4 % longer so, up to 14. Longer ones warm up within
themselves."""
_TURNS, _SOME = 25, 8
"""Turns of a short call, and in a glance or a quick probe."""
_WARM = 4
"""Calls before any is timed."""
_LONG = 5e-2
"""A call on a CPU that takes so long has been through all its memory and its code: none is needed before it, and a few say what many would."""
_FEW = 3
"""So many of them."""
_OFTEN = 200
"""Times that are taken of one call at most."""
_AGAIN = 25
"""Calls that are timed again at most, of one kind."""
_ROTATE = 400 << 20
"""Bytes over which equal works alternate, so that weights, states and results lie in memory as in a training step."""
_FAR = 256 << 20
"""The same on a GPU: some times the L2 of an H100 (50 MB) or a B200 (126 MB)."""
_NEAR = 1 << 20
"""What a step's kernel has just written lies in the L2 of its core when the next one reads it, up to about half of that cache (1 to 2 MB):
a GELU over 2 MB takes 390 us in a step and over arrays from memory, and 300 over arrays that are in the caches."""


class Bench:
    """Collects samples on one rank, in the same order as on all others."""

    def __init__(self, world: World, quick: bool, cuda: Cuda | None = None) -> None:
        """`cuda`: the rank's device unless a test brings a stand-in; used where the world's device is a GPU."""
        self.world, self.quick = world, quick
        self.cuda = cuda or Cuda(world.device)
        self._timer = DeviceTimer(self.cuda, hold=Rest(self.cuda).hold if world.kind == "cuda" else None)
        self.mill = Mill(world.device)
        gpu = world.kind == "cuda"
        self.arena = (
            of_gpu(world.device, min(4 << 30, free_memory(world.device)), _FAR)
            if gpu
            else Arena(world.device, 4 << 30, _NEAR, 256 << 20, near=True, spills=True)
        )
        self._rotate, self._most = (_FAR, 50) if gpu else (_ROTATE, 32)
        self.budget = 0.004 if quick else 0.012
        self._turns, self._least = _SOME if quick else _TURNS, 5
        self.found: list[tuple[str, Sample]] = []
        self._again = 0
        # Ranks that take turns on the cores are slowed by each other's share of them when a step is predicted: what is kept is a call's own
        # time on a core. Long calls would hold the others' turns, short ones would not.
        self._clock = time.thread_time if world.crowded else time.perf_counter

    def add(self, kind: str, name: str, dtype: str, shape: tuple[int, ...], times: Sequence[float], cpu: float = 0.0) -> float:
        """Keeps one point; returns its median."""
        found = Measured.of([max(t, 1e-9) for t in times])
        self.found.append((kind, Sample(name, dtype, shape, found.median, found.low, found.high, found.count, cpu)))
        return found.median

    def phase(self, words: str) -> None:
        """A new table: all ranks begin it together."""
        self.world.beat.phase(f"probe: {words}")
        self.world.barrier()

    def device_times(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Device seconds of one call, many times: on a GPU what its own events say, on a CPU what the thread takes."""
        if self.world.kind == "cpu":
            return self.times(calls)
        self.world.beat.touch()
        return self._timer.times(calls, self.budget)

    def device_seconds(self, work: Work) -> float:
        """The median of one work, not kept."""
        with torch.no_grad():
            return statistics.median(self.device_times([body(work, self.arena)]))

    @contextmanager
    def glance(self) -> Iterator[None]:
        """Meanwhile each call is timed a few times alone: of points that were timed before, at another moment."""
        kept = self.budget, self._turns, self._least
        self.budget, self._turns, self._least = self.budget / 3.0, _SOME, 2
        yield
        self.budget, self._turns, self._least = kept

    def times(self, calls: Sequence[Callable[[], object]], least: int = 0) -> list[float]:
        """Seconds of one call on this thread, many times, `least` at least (0: as this bench does); `calls` are equal and take turns. On a GPU: until
        it is launched."""
        once, least = self._once(calls), least or self._least
        if self.world.kind == "cpu":
            least = min(least, _FEW) if once > _LONG else least
            calls = calls[: max(least, math.ceil(2 * self.budget / once))]
            for call in calls[_WARM:]:  # each has its memory: new pages cost more than the kernels that write them
                call()
            if once < _COLD:
                return self._cold(calls, max(least, self._turns if self.quick else min(self._turns, math.ceil(self.budget / once))))
        # A device runs behind the host, which goes on launching: runs of calls, whose last launch stops the clock.
        inner = max(10 if self.world.kind == "cuda" else 1, min(50, int(_SHORT / max(once, 1e-7))))
        found: list[float] = []
        end = time.perf_counter() + self.budget
        k, self._again = _WARM, _AGAIN
        while len(found) < least or (len(found) < _OFTEN and time.perf_counter() < end):
            self.world.synchronize()
            found += [seconds / inner for seconds in self._timed([calls[(k + i) % len(calls)] for i in range(inner)])]
            k += inner
            self.world.synchronize()
        self.world.beat.touch()
        return found

    def once(self, call: Callable[[], object]) -> float:
        """Seconds of one call on this thread; on a GPU until all of it is launched."""
        self.world.synchronize()
        start = self._clock()
        call()
        return self._clock() - start

    def _timed(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Seconds of calls in a row; nothing where they met new pages of memory, which a step has met long before: in a virtual machine those
        can take twenty times as long as the kernel that writes them. Where a machine gives memory back each time, they count in the end."""
        pages, start = _new_pages(), self._clock()
        for call in calls:
            call()
        seconds = self._clock() - start
        if self.world.kind == "cpu" and self._again and _new_pages() > pages:
            self._again -= 1
            return []
        return [seconds]

    @cached_property
    def stretch(self) -> Stretch:
        """What is computed between two meetings; made once, in memory that has been met."""
        return Stretch(self.mill)

    def cool(self) -> None:
        """Other work, as a step has it between two calls of one."""
        self.mill.pass_by()

    def _cold(self, calls: Sequence[Callable[[], object]], turns: int) -> list[float]:
        """Seconds of so many single calls with other work between them."""
        found: list[float] = []
        k, self._again = 0, _AGAIN
        while len(found) < turns:
            self.cool()
            found += self._timed([calls[k % len(calls)]])
            k += 1
        self.world.beat.touch()
        return found

    def _once(self, calls: Sequence[Callable[[], object]]) -> float:
        # Lazy initialisation and the allocator's growth are not what is asked.
        for call in calls[:_WARM]:
            start = time.perf_counter()
            call()
            if self.world.kind == "cpu" and time.perf_counter() - start > _LONG:
                break
        self.world.synchronize()
        start = time.perf_counter()
        calls[-1]()
        self.world.synchronize()
        return time.perf_counter() - start

    def work(self, kind: str, name: str, work: Work, dtype: str, shape: tuple[int, ...]) -> None:
        """Times a work's body and keeps the point."""
        copies = max(1, min(self._most, int(self._rotate / max(work.bytes, 1.0))))
        with torch.no_grad():
            calls = [held(body(work, self.arena)) for _ in range(copies)]
            self.add(kind, name, dtype, shape, self.device_times(calls))


def _new_pages() -> int:
    """Pages of memory that this thread was the first to touch (elsewhere than on Linux, this process); 0 where nobody counts them."""
    try:
        import resource  # of Unix alone
    except ImportError:
        return 0
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_minflt
