"""How busy cores, GPU lanes, copy engines and links are over the time of a run: functions of a trace.

Everything is a share between 0 and 1. A lane runs one op at a time; spans that overlap on a lane count once. CPU threads share
cores max-min fairly, as in the engine: while more run than there are cores, each has `cores / running` of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from sim.cost.price import Cost, Pricer, carried, transfer_cost
from sim.program import MOVES, ORDERS, Program, cpu_lane, full_id
from sim.timeline.metrics import window
from sim.trace import Span, Trace
from topologies.load import Topology

BINS = 120
Kind = Literal["cores", "thread", "compute", "copy", "comm", "link"]


class Use(msgspec.Struct, frozen=True):
    """One resource over time."""

    name: str
    """`cores`, `rank 0 loader.1`, `rank 0 compute`, `n0/gpu0>n0/nvswitch`."""
    kind: Kind
    busy: tuple[float, ...]
    """Share of each bin, 0 to 1."""
    moved: float = 0.0
    """Links: bytes carried in the whole window."""

    @property
    def mean(self) -> float:
        return sum(self.busy) / len(self.busy) if self.busy else 0.0


class Utilisation(msgspec.Struct, frozen=True):
    """All resources of a run between two moments (seconds of the trace)."""

    begin: float
    end: float
    uses: tuple[Use, ...]

    def of(self, name: str) -> Use:
        """The resource by its name. Raises `KeyError`."""
        return next(use for use in self.uses if use.name == name) if any(u.name == name for u in self.uses) else _missing(name)


def _missing(name: str) -> Use:
    raise KeyError(name)


def on_cpu(span: Span, cpu: bool) -> list[tuple[float, float]]:
    """When the span's thread is at work on a core: host ops, launches, and on CPUs what it computes itself."""
    found = []
    if span.launch > 0 and span.issued >= 0:
        found.append((span.issued, span.issued + span.launch))
    if span.kind == "host" or (cpu and span.kind == "compute"):
        found.append((span.start, span.end))
    return found


def _thread_of(span: Span) -> str:
    return span.lane if span.lane.startswith(("loader", "server", "writer")) else span.thread


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
    """Mean height in each bin of pieces (start, end, height)."""
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
    """(start, end, threads at work) between any two changes; folded ranks count for all that they stand for."""
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
    """Mean share of the machines' cores at work on the reported step, 0 to 1: on its own ops, whenever they ran, since loader processes and threads
    that launch are ahead of the devices. `seconds` of a step, where it takes others than those simulated (a mean one, output)."""
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


def utilisation(
    trace: Trace,
    topology: Topology,
    program: Program | None = None,
    pricer: Pricer | None = None,
    *,
    bins: int = BINS,
    whole: bool = False,
) -> Utilisation:
    """Busy shares of cores, threads, device lanes and (with `program` and `pricer`) links.

    `whole`: over the whole trace; else over the reported step. An empty trace has no uses.
    """
    begin, end = (0.0, trace.end) if whole else window(trace)
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
    if program is not None and pricer is not None:
        uses += _links(program, trace, pricer, begin, end, bins)
    return Utilisation(begin, end, tuple(uses))


def _share(line: list[float]) -> tuple[float, ...]:
    """Rounding alone may carry a full bin past 1."""
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


def transfers(program: Program, trace: Trace, pricer: Pricer) -> list[tuple[Span, Cost]]:
    """Each transfer that was simulated, once, with its cost: a collective for its first member, a message for its sender.

    Exact for unfolded traces; in folded ones each stands for its siblings, whose links are other ones.
    """
    spans = {s.id: s for s in trace.spans if s.kind in MOVES}
    found: list[tuple[Span, Cost]] = []
    for rank in trace.ranks:
        for thread in program.threads(rank):
            for call, op in program.ops(rank, thread):
                span = spans.get(full_id(rank, call, op)) if op.kind in MOVES else None
                if span is not None and (op.kind != "collective" or rank == program.mesh.group(op.group, rank)[0]):
                    found.append((span, transfer_cost(pricer, program.mesh, op, rank)))
    return found


def _links(program: Program, trace: Trace, pricer: Pricer, begin: float, end: float, bins: int) -> list[Use]:
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for span, cost in transfers(program, trace, pricer):
        start, stop = span.start + span.wait + cost.latency, span.end
        if stop <= start:
            continue
        for link, moved in carried(cost):
            lines.setdefault(link, []).append((start, stop, moved / (stop - start)))
    found = []
    for link, pieces in sorted(lines.items()):
        line = _bins(pieces, begin, end, bins)
        moved = sum(line) * (end - begin) / bins
        # A transfer counts with its mean rate: while another holds it up it takes less, so that the two seem to overfill the link.
        found.append(Use(link, "link", tuple(min(1.0, value / pricer.capacity[link]) for value in line), moved))
    return found
