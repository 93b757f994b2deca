"""Times calls: warm-up, repetitions within a budget of time, median and spread."""

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
"""Seconds. Shorter calls are timed several at a time, as reading the clock takes 0.1 us."""
_COLD = 5e-3
"""Seconds. Shorter calls on a CPU are timed cold, with other work between them, as in a step: GEMMs of 0.3 to 5 ms then take 4 % longer, up
to 14 %. Longer calls are warm after their own beginning."""
_TURNS, _SOME = 25, 8
"""How often a short call is timed, and how often in a glance or a quick probe."""
_WARM = 4
"""Calls before the first timed one."""
_LONG = 5e-2
"""Seconds. A longer call on a CPU touches all its memory and code itself: it needs no warm-up, and a few repetitions are enough."""
_FEW = 3
"""Repetitions of such long calls."""
_OFTEN = 200
"""The most times that are taken of one call."""
_AGAIN = 25
"""How often at most timings of one kind of call are repeated because of new pages (`_timed`)."""
_ROTATE = 400 << 20
"""Bytes over which equal works alternate on a CPU, so that weights, states and results are in memory and not in a cache, as in a training
step."""
_FAR = 256 << 20
"""The same on a GPU: several times the L2 of an H100 (50 MB), and twice that of a B200 (126 MB)."""
_NEAR = 1 << 20
"""Bytes. What a kernel has just written is still in the core's L2 when the next kernel reads it, up to about half of that cache (1 to 2
MB): a GELU over 2 MB takes 390 us in a step, as over arrays in memory, and 300 over arrays in the caches."""


class Bench:
    """Times calls on one rank and collects the samples, in the same order as on all other ranks."""

    def __init__(self, world: World, quick: bool, cuda: Cuda | None = None) -> None:
        """`cuda`: None for the rank's own device; tests pass a stand-in. It is used only if the world's device is a GPU."""
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
        # If ranks take turns on cores, predictions of steps account for that; so here only a call's own CPU time counts. In wall time, long
        # calls would include turns of other ranks, and short ones would not.
        self._clock = time.thread_time if world.crowded else time.perf_counter

    def add(self, kind: str, name: str, dtype: str, shape: tuple[int, ...], times: Sequence[float], cpu: float = 0.0) -> float:
        """Keeps one point: its times in seconds as median and spread. Returns the median."""
        found = Measured.of([max(t, 1e-9) for t in times])
        self.found.append((kind, Sample(name, dtype, shape, found.median, found.low, found.high, found.count, cpu)))
        return found.median

    def phase(self, words: str) -> None:
        """Begins a new table, on all ranks together."""
        self.world.beat.phase(f"probe: {words}")
        self.world.barrier()

    def device_times(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Device seconds of one call, many times: on a GPU by the device's events, on a CPU the time of this thread."""
        if self.world.kind == "cpu":
            return self.times(calls)
        self.world.beat.touch()
        return self._timer.times(calls, self.budget)

    def device_seconds(self, work: Work) -> float:
        """The median device seconds of one work; the point is not kept."""
        with torch.no_grad():
            return statistics.median(self.device_times([body(work, self.arena)]))

    @contextmanager
    def glance(self) -> Iterator[None]:
        """In the body each call is timed only a few times: for points that were timed before, at another moment."""
        kept = self.budget, self._turns, self._least
        self.budget, self._turns, self._least = self.budget / 3.0, _SOME, 2
        yield
        self.budget, self._turns, self._least = kept

    def times(self, calls: Sequence[Callable[[], object]], least: int = 0) -> list[float]:
        """Seconds of one call on this thread, many times, at least `least` (0: the bench's own number); `calls` are equal and take turns.
        On a GPU the seconds until it is launched."""
        once, least = self._once(calls), least or self._least
        if self.world.kind == "cpu":
            least = min(least, _FEW) if once > _LONG else least
            calls = calls[: max(least, math.ceil(2 * self.budget / once))]
            for call in calls[_WARM:]:  # each writes its own memory, where new pages cost more than the kernels that write them
                call()
            if once < _COLD:
                return self._cold(calls, max(least, self._turns if self.quick else min(self._turns, math.ceil(self.budget / once))))
        # A device is asynchronous to the host, which only launches: several calls are timed together, up to the last launch.
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
        """Seconds of one call on this thread, timed once; on a GPU until all of it is launched."""
        self.world.synchronize()
        start = self._clock()
        call()
        return self._clock() - start

    def _timed(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Seconds of calls in a row, as a list of one; [] if they touched new pages of memory, which a step has touched long before: in a
        virtual machine a new page can take twenty times as long as the kernel that writes it. After `_AGAIN` such timings they count, as
        some machines return memory each time."""
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
        """What is computed between two collectives; made once, in memory that has been touched."""
        return Stretch(self.mill)

    def cool(self) -> None:
        """Runs other work, as a step does between two calls of the same kernel."""
        self.mill.pass_by()

    def _cold(self, calls: Sequence[Callable[[], object]], turns: int) -> list[float]:
        """Seconds of `turns` single calls, with other work between them."""
        found: list[float] = []
        k, self._again = 0, _AGAIN
        while len(found) < turns:
            self.cool()
            found += self._timed([calls[k % len(calls)]])
            k += 1
        self.world.beat.touch()
        return found

    def _once(self, calls: Sequence[Callable[[], object]]) -> float:
        # Lazy initialisation and the allocator's growth must not be timed.
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
        """Times a work's kernel and keeps the point."""
        copies = max(1, min(self._most, int(self._rotate / max(work.bytes, 1.0))))
        with torch.no_grad():
            calls = [held(body(work, self.arena)) for _ in range(copies)]
            self.add(kind, name, dtype, shape, self.device_times(calls))


def _new_pages() -> int:
    """Number of memory pages that this thread has touched first (outside Linux: this process); 0 if the system does not count them."""
    try:
        import resource  # only on Unix
    except ImportError:
        return 0
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_minflt
