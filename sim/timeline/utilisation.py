"""Utilisation of cores, CPU threads, device lanes and copy engines in the reported step, from a trace. (Links: `reports.figures.links`.)

All values are shares from 0 to 1. A lane runs one op at a time; spans that overlap on a lane count once. CPU threads share
cores max-min fairly, as in the engine: while more threads run than there are cores, each gets `cores / running` of a core.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from sim.program import ORDERS, cpu_lane
from sim.timeline.asynchrony import step_shown
from sim.timeline.metrics import window
from sim.trace import Span, Trace
from topologies.load import Topology

BINS = 120
Kind = Literal["cores", "thread", "compute", "copy", "comm"]


class Use(msgspec.Struct, frozen=True):
    """One resource over time."""

    name: str
    """Such as `cores`, `rank 0 loader.1`, `rank 0 compute`."""
    kind: Kind
    busy: tuple[float, ...]
    """Busy share of each bin of time, 0 to 1."""

    @property
    def mean(self) -> float:
        return sum(self.busy) / len(self.busy) if self.busy else 0.0


class Utilisation(msgspec.Struct, frozen=True):
    """Use of all resources between `begin` and `end` (seconds of the trace)."""

    begin: float
    end: float
    uses: tuple[Use, ...]

    def of(self, name: str) -> Use:
        """The resource by its name. Raises `KeyError`."""
        return {use.name: use for use in self.uses}[name]


def on_cpu(span: Span, cpu: bool) -> list[tuple[float, float]]:
    """Intervals (start, end) in which the span's thread works on a core: host ops, launches and, with `cpu` (ranks run on CPUs),
    compute."""
    found = []
    if span.launch > 0 and span.issued >= 0:
        found.append((span.issued, span.issued + span.launch))
    if span.kind == "host" or (cpu and span.kind == "compute"):
        found.append((span.start, span.end))
    return found


def _thread_of(span: Span) -> str:
    return span.lane if cpu_lane(span.lane) else span.thread


def _merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


def _threads(trace: Trace, cpu: bool) -> dict[tuple[int, str], list[tuple[float, float]]]:
    threads: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for span in trace.spans:
        work = on_cpu(span, cpu)
        if work:
            threads.setdefault((span.rank, _thread_of(span)), []).extend(work)
    return {key: _merged(work) for key, work in threads.items()}


def _cores(trace: Trace, topology: Topology) -> int:
    """Cores of all nodes that the run uses."""
    return sum(topology.cores(node) for node in range(topology.nodes_of(trace.world)))


def _bins(pieces: Iterable[tuple[float, float, float]], begin: float, end: float, count: int) -> list[float]:
    """Mean height in each of `count` equal bins from `begin` to `end`; the pieces are (start, end, height)."""
    width = (end - begin) / count
    line = [0.0] * count
    for start, stop, height in pieces:
        start, stop = max(start, begin), min(stop, end)
        if stop <= start:
            continue
        for at in range(int((start - begin) / width), min(count - 1, int((stop - begin) / width)) + 1):
            line[at] += height * max(0.0, min(stop, begin + (at + 1) * width) - max(start, begin + at * width)) / width
    return line


def _running(trace: Trace, threads: dict[tuple[int, str], list[tuple[float, float]]]) -> list[tuple[float, float, float]]:
    """Pieces (start, end, number of threads that work). A folded rank counts with its weight."""
    edges: list[tuple[float, float]] = []
    for (rank, _), work in threads.items():
        weight = trace.weight.get(rank, 1)
        for start, stop in work:
            edges += [(start, weight), (stop, -weight)]
    found, now, at = [], 0.0, 0.0
    for time, change in sorted(edges):
        if time > at and now > 0:
            found.append((at, time, now))
        at, now = time, now + change
    return found


def cpu_busy(trace: Trace, topology: Topology, seconds: float | None = None) -> float:
    """Mean share of all cores that work for the reported step, 0 to 1. All ops of the step count, whenever they ran, because loader
    processes and launching threads run ahead of the devices. `seconds`: the duration of the step, where it differs from the simulated one;
    None: as simulated."""
    begin, end = window(trace)
    lasts = end - begin if seconds is None else seconds
    if lasts <= 0:
        return 0.0
    cores, cpu, step = _cores(trace, topology), topology.kind == "cpu", trace.steps + trace.reported
    own = msgspec.structs.replace(trace, spans=[span for span in trace.spans if span.step == step])
    running = _running(trace, _threads(trace, cpu))
    busy = sum(
        trace.weight.get(rank, 1) * (stop - start) * height
        for (rank, _), work in _threads(own, cpu).items()
        for start, stop, height in _shared(work, running, cores)
    )
    return min(1.0, busy / cores / lasts)


def utilisation(trace: Trace, topology: Topology, bins: int = BINS) -> Utilisation:
    """Busy shares of cores, threads and device lanes in the reported step. An empty trace has no uses."""
    begin, end = step_shown(trace)
    if end <= begin:
        return Utilisation(begin, end, ())
    cpu = topology.kind == "cpu"
    cores, threads = _cores(trace, topology), _threads(trace, cpu)
    running = _running(trace, threads)
    uses = [Use("cores", "cores", _share(_bins(((a, b, min(1.0, n / cores)) for a, b, n in running), begin, end, bins)))]
    for (rank, thread), work in sorted(threads.items()):
        pieces = _shared(work, running, cores)
        uses.append(Use(f"rank {rank} {thread}", "thread", _share(_bins(pieces, begin, end, bins))))
    uses += _lanes(trace, begin, end, bins, cpu)
    return Utilisation(begin, end, tuple(uses))


def _share(line: list[float]) -> tuple[float, ...]:
    """Cuts values that exceed 1 only by rounding."""
    return tuple(min(1.0, value) if value < 1.0 + 1e-9 else value for value in line)


def _shared(work: list[tuple[float, float]], running: list[tuple[float, float, float]], cores: int) -> list[tuple[float, float, float]]:
    if all(n <= cores for _, _, n in running):
        return [(a, b, 1.0) for a, b in work]
    found = []
    for start, stop in work:
        for a, b, n in running:
            if b > start and a < stop:
                found.append((max(a, start), min(b, stop), min(1.0, cores / n)))
    return found


def _lanes(trace: Trace, begin: float, end: float, bins: int, cpu: bool) -> list[Use]:
    lanes: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for span in trace.spans:
        if span.kind in ORDERS or cpu_lane(span.lane):
            continue
        lanes.setdefault((span.rank, span.lane), []).append((span.start + span.wait, span.end))
    found = []
    for (rank, lane), spans in sorted(lanes.items()):
        kind: Kind = "copy" if lane.startswith("copy") else "comm" if lane.startswith("comm") else "compute"
        if not (cpu and kind == "compute"):
            found.append(Use(f"rank {rank} {lane}", kind, _share(_bins(((a, b, 1.0) for a, b in _merged(spans)), begin, end, bins))))
    return found
