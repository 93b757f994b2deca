"""Spans and traces: the only output of both interpreters.

A *span* is one op with its start and end, in seconds from the beginning of the run. A *trace* is all spans of a
run on the ranks that were simulated (folded) or run. What a step cost, and on what, are functions of a trace
(`sim.timeline.metrics`), so predicted and measured figures come from the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec


class Span(msgspec.Struct, gc=False, omit_defaults=True):
    """One op as it happened, or is predicted to happen."""

    rank: int
    lane: str
    id: str
    """Full op id: `r3/s2/mb0/fwd/L5.attn.qkv`."""
    start: float
    end: float
    kind: str = "compute"
    cls: str = ""
    step: int = 0
    issued: float = -1.0
    """When the issuing thread began to launch it; -1: not known."""
    launch: float = 0.0
    """Seconds that the launch took on the issuing thread."""
    thread: str = "host"
    name: str = ""
    """Collective's name, or the kernel's as the profiler gave it."""
    bytes: int = 0
    flops: float = 0.0
    group: str = ""
    group_size: int = 0
    source: str = ""
    """measured | fitted | assumed (predicted spans)."""
    after: int = -1
    """Index (in the trace) of the span whose end let this one start; -1: none."""
    bound: str = ""
    """What let it start: lane | host | event | peer."""
    wait: float = 0.0
    """Of its seconds, how many at the beginning only waited for other ranks (0 where not known)."""
    exposed: float = 0.0
    """A run of several ops as one span: of its seconds, how many only communicate. They are taken as its last ones."""
    late: float = 0.0
    """The same: how many the thread had not launched the next of them in. They are taken as those before."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Trace(msgspec.Struct):
    """All spans of a run. `weight[rank]` counts the real ranks that a folded rank stands for."""

    spans: list[Span]
    origin: str = "predicted"
    """predicted | played | stock | imported."""
    world: int = 1
    steps: int = 1
    weight: dict[int, int] = {}
    memory: dict[int, list[tuple[float, int]]] = {}
    """Per rank: (time, bytes in use on the device) at each change."""
    meta: dict[str, str] = {}
    """What else is said of it: `program` or `plan` (a name), `backend` (nccl, which is unsaid, or gloo), `file`."""
    reported: int = -1
    """Which of its steps figures are of, counted from the end: the last; where loaders work ahead the one before it, since beside the last no
    next batch is made any more; on a CPU host, whose cores they take, the last while they all work."""
    timed: list[float] = []
    """Of a measured run: seconds of each step that was timed, as far as those are others than the ones whose spans were recorded, which takes time."""

    def __repr__(self) -> str:
        """Short: a trace has as many spans as a run has ops."""
        return f"Trace({self.origin!r}, {len(self.spans):,} spans, world={self.world}, steps={self.steps})"

    @property
    def backend(self) -> str:
        """What its collectives ran on: nccl or gloo."""
        return self.meta.get("backend", "nccl")

    @property
    def ranks(self) -> list[int]:
        return sorted({span.rank for span in self.spans})

    @property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    def of(self, ranks: Collection[int]) -> Trace:
        """The spans of these ranks alone; then which span let another start is not told any more."""
        if set(ranks) >= set(self.ranks):
            return self
        spans = [msgspec.structs.replace(span, after=-1) for span in self.spans if span.rank in ranks]
        return msgspec.structs.replace(self, spans=spans)

    def select(self, rank: int | None = None, lane: str | None = None, step: int | None = None) -> list[Span]:
        """Spans of a rank, lane and step, in order of start."""
        found = [
            s
            for s in self.spans
            if (rank is None or s.rank == rank) and (lane is None or s.lane == lane) and (step is None or s.step == step)
        ]
        return sorted(found, key=lambda s: (s.start, s.end))


def shift(spans: Iterable[Span], seconds: float) -> None:
    """Moves spans in time, in place; a launch that is not known stays so."""
    for span in spans:
        span.start, span.end = span.start + seconds, span.end + seconds
        if span.issued >= 0:
            span.issued += seconds


def from_zero(spans: list[Span]) -> list[Span]:
    """The same spans, moved so that the first begins at 0."""
    shift(spans, -min((span.start for span in spans), default=0.0))
    return spans
