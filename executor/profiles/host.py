"""The host threads of a profiled rank: outermost ops with their part and direction (fwd or bwd), and the gaps between them."""

from __future__ import annotations

import bisect

from executor.profiles.classes import GRADIENTS, classify, moves_gradients
from executor.profiles.event import Event
from sim.trace import Span

_WAIT = 2e-4
"""Seconds; a longer gap on the host thread while a collective runs is a wait for it."""


class HostThreads:
    """The host threads of one rank: their nested ranges, with parts and directions."""

    def __init__(self, rank: int, steps: list[Event], events: list[Event], threads: tuple[int, ...], device: bool) -> None:
        """`threads`: ids of the training loop's thread, then of those that run backward; `device`: they launch kernels, and do not
        compute."""
        self.rank, self.threads, self.device = rank, threads, device
        self.steps = [(e.ts, e.end, int(e.name.partition(":")[2])) for e in steps]
        self.events = sorted(events, key=lambda e: (e.ts, -e.dur))
        self.sequence: dict[int, str] = {}
        self.counts: dict[str, int] = {}
        self.owner: dict[int, list[tuple[float, float, str, str, str]]] = {}
        """Thread id -> (start, end, part, direction, class) of every op found, to look up kernels that are launched inside it."""

    def step(self, ts: float) -> int | None:
        """The step that the training loop was in at `ts` (microseconds); None outside all steps."""
        i = bisect.bisect_right(self.steps, (ts, float("inf"), 0)) - 1
        return self.steps[i][2] if i >= 0 and ts < self.steps[i][1] else None

    def spans(self) -> list[Span]:
        """Spans of outermost ops; each call of the optimizer and of the data loader is one span."""
        return [span for tid in self.threads for span in self._thread(tid)]

    def _thread(self, tid: int) -> list[Span]:
        found: list[Span] = []
        stack: list[Event] = []
        until = 0.0
        for e in self.events:
            if e.tid != tid:
                continue
            while stack and stack[-1].end <= e.ts:
                stack.pop()
            part = next((x.name[5:] for x in reversed(stack) if x.name.startswith("part:")), "")
            number = e.args.get("Sequence number")
            if part and number is not None and tid == self.threads[0]:  # autograd's threads, which recompute layers, number separately
                self.sequence[int(number)] = part  # the last op counts: ops without a gradient have the number of the next node
            if e.ts >= until and (whole := self._whole(e)):
                until = e.end
                span = self._span(e, whole, part, stack)
                if span is not None:
                    found.append(span)
            stack.append(e)
        return found

    @staticmethod
    def _whole(e: Event) -> str:
        """The kind of a range that becomes one span: op, optimizer, data or output; "" if the ranges inside it are looked at instead."""
        if e.name.startswith("Optimizer.step"):
            return "optimizer"
        if e.name.startswith("enumerate(DataLoader)"):
            return "data"
        if e.name == "output":
            return "output"
        return "op" if e.cat == "cpu_op" and e.name.startswith("aten::") else ""

    def _span(self, e: Event, whole: str, part: str, stack: list[Event]) -> Span | None:
        step = self.step(e.ts)
        if step is None:
            return None
        direction = "fwd"
        engine = next((x for x in reversed(stack) if x.name.startswith("autograd::engine")), None)
        if engine is not None:
            direction = "bwd"
            part = part or self.sequence.get(int(engine.args.get("Sequence number", -1)), "")  # if it has a part already, it is recomputed
        cls = whole if whole != "op" else classify(e.name, part)
        if whole == "op" and moves_gradients(engine, part, e.name):
            cls, part = GRADIENTS, "gradients"
        where = part or (whole if whole != "op" else "other")
        self.owner.setdefault(e.tid, []).append((e.ts, e.end, where, direction, cls))
        lane = "host" if e.tid == self.threads[0] else "autograd"
        kind = "compute" if whole in ("op", "optimizer") and not self.device else "host"
        if self.device and whole == "op":
            cls = "host"  # its own class is that of the kernels that it launches
        return Span(self.rank, lane, self.name(step, direction, where), e.ts * 1e-6, e.end * 1e-6, kind, cls, step, name=e.name)

    def name(self, step: int, direction: str, where: str) -> str:
        """A new span's id; spans of the same step, direction and part are numbered."""
        found = f"r{self.rank}/s{step}/{direction}/{where}"
        self.counts[found] = self.counts.get(found, -1) + 1
        return f"{found}#{self.counts[found]}"

    def inside(self, ts: float, tid: int) -> tuple[str, str, str]:
        """(part, direction, class) of the op that a thread runs at `ts` (microseconds); ("other", "fwd", "") if it runs none."""
        owner = self.owner.get(tid, [])
        i = bisect.bisect_right(owner, (ts, float("inf"), "", "", "")) - 1
        return owner[i][2:] if i >= 0 and ts <= owner[i][1] else ("other", "fwd", "")


def gaps(spans: list[Span], messages: list[Span], host: HostThreads) -> list[Span]:
    """Spans for the gaps between the host thread's ops: modules, autograd, Python (and the profiler's own time). Waits for `messages` get
    no span."""
    found = []
    for begin, end, step in host.steps:
        at = begin * 1e-6
        for span in [*sorted((s for s in spans if s.step == step), key=lambda s: s.start), None]:
            until = span.start if span is not None else end * 1e-6
            waits = until - at > _WAIT and any(m.start < until and m.end > at for m in messages)
            if until > at and not waits:
                found.append(Span(host.rank, "host", host.name(step, "host", "python"), at, until, "host", "host", step))
            at = max(at, span.end) if span is not None else at
    return found
