"""What a step cost and on what: functions of a trace, the same for predicted and measured ones.

Each instant of a step belongs to exactly one class, by what the rank's devices do then, in this order: computing,
optimizer, communication that nothing hides (exposed), output, waiting for data, a bubble while what was launched waits for
other ranks, the host being late, and the rest: a bubble, too (nothing to do). So the classes sum to the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from sim.program import COMPUTE, EVENTS, MEETING, ORDERS, PINNER
from sim.trace import Span, Trace

CLASSES = ("compute_s", "optimizer_s", "exposed_comm_s", "output_s", "data_s", "bubble_s", "host_s")
_COMPUTE, _OPTIMIZER, _COMM, _OUTPUT, _DATA, _BUBBLE, _HOST = range(len(CLASSES))
_FIRST = [next((at for at in range(len(CLASSES)) if classes >> at & 1), _BUBBLE) for classes in range(1 << len(CLASSES))]
"""Of each set of classes, as bits, the one that counts."""
COMM = "comm"
"""Class of the communication inside a run of ops that is one span."""
_MOMENT = 1e-12
_NOTHING = 1e-9
"""Share of a step that differences of equal seconds may leave."""
"""Kinds of ops whose times rest on costs with a source."""


class Breakdown(msgspec.Struct, frozen=True):
    """Seconds of one step by class, averaged over ranks; they sum to the step."""

    compute_s: float = 0.0
    exposed_comm_s: float = 0.0
    bubble_s: float = 0.0
    host_s: float = 0.0
    data_s: float = 0.0
    optimizer_s: float = 0.0
    output_s: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(msgspec.structs.asdict(self).values()))


def _last_ends(spans: Iterable[Span]) -> dict[int, float]:
    """By step, when its last op on a training thread or a device lane ends."""
    ends: dict[int, float] = {}
    for span in spans:
        if span.thread == "host" and span.kind not in EVENTS and span.end > ends.get(span.step, -math.inf):
            ends[span.step] = span.end
    return ends


def step_ends(trace: Trace) -> list[float]:
    """When each step has ended on every rank, and those before it."""
    ends = _last_ends(trace.spans)
    last, found = 0.0, []
    for step in sorted(ends):
        last = max(last, ends[step])
        found.append(last)
    return found


def step_numbers(trace: Trace) -> list[int]:
    """What its steps are called, in order: those of `step_times`."""
    return sorted(_last_ends(trace.spans))


def loaded_until(trace: Trace) -> float:
    """When the first of the loader processes has made its last batch, seconds; infinite where there are none."""
    ends: dict[tuple[int, str], float] = {}
    for span in trace.spans:
        if span.thread.startswith("loader"):
            ends[span.rank, span.thread] = max(ends.get((span.rank, span.thread), 0.0), span.end)
    return min(ends.values(), default=math.inf)


def while_loaded(trace: Trace) -> int:
    """The last step that ends while all loader processes still make batches, counted from the end, and not the first; -2 where there is none."""
    ends, until = step_ends(trace), loaded_until(trace)
    return next((at - len(ends) for at in range(len(ends) - 2, 0, -1) if ends[at] <= until), -2)


def step_times(trace: Trace) -> list[float]:
    """Seconds of each step, from the end of the one before (the first: from 0)."""
    ends = step_ends(trace)
    return [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]


def window(trace: Trace) -> tuple[float, float]:
    """Begin and end of the step that is reported."""
    ends = [0.0, *step_ends(trace)]
    at = max(1 - len(ends), trace.reported)
    return (ends[at - 1], ends[at]) if len(ends) > 1 else (0.0, 0.0)


def step_time(trace: Trace) -> float:
    """Seconds of the step that is reported."""
    begin, end = window(trace)
    return end - begin


def breakdown(trace: Trace) -> Breakdown:
    """Classes of the reported step, averaged over all ranks (folded ranks by their weight).

    Each rank's step is its own: who is ahead of the others, as the first stages of a forward pass are, has done the reported one before these, and
    what it does meanwhile is of steps that are not simulated. What its own takes less than the step is a bubble: it cannot be ahead for good.
    """
    begin, end = window(trace)
    step, numbers = end - begin, step_numbers(trace)
    number = numbers[max(-len(numbers), trace.reported)] if numbers else 0
    ranks: dict[int, list[Span]] = {}
    for span in trace.spans:
        ranks.setdefault(span.rank, []).append(span)
    total, sums = 0, dict.fromkeys(CLASSES, 0.0)
    for rank, spans in ranks.items():
        weight = trace.weight.get(rank, 1)
        total += weight
        start, stop = _own_step(spans, number, step)
        for name, seconds in classify([span for span in spans if span.end > start and span.start < stop], start, stop).items():
            sums[name] += weight * seconds
        sums["bubble_s"] += weight * max(0.0, step - (stop - start))
    return Breakdown(**{name: value / max(total, 1) for name, value in sums.items()})


def _own_step(spans: list[Span], number: int, longest: float) -> tuple[float, float]:
    """Begin and end of a rank's own step: from when it has ended those before, no more than the `longest` seconds."""
    ends = _last_ends(spans)
    before, last = (max((end for step, end in ends.items() if step < least), default=0.0) for least in (number, number + 1))
    return max(before, last - longest), last


def _class_of(span: Span) -> int | None:
    """Index into CLASSES; None for what occupies nothing (records, waits elsewhere than before kernels, syncs without a class)."""
    if span.kind == "wait":
        return _BUBBLE if span.lane == COMPUTE else None
    if span.cls == "data":
        return _DATA if span.kind in ("sync", "copy", "host") and not span.lane.startswith(("loader", PINNER)) else None
    if span.cls == "output":
        return _OUTPUT
    if span.kind == "compute":
        return _OPTIMIZER if span.cls == "optimizer" else _COMPUTE
    if span.kind in MEETING:
        return _COMM
    if span.kind == "copy":
        return _COMM if span.cls.startswith("comm") else _OPTIMIZER if span.cls == "optimizer" else _DATA
    return _HOST if span.kind == "host" and span.lane == "host" else None


def classify(spans: list[Span], begin: float, end: float) -> dict[str, float]:
    """Seconds of each of `CLASSES` between two moments, from the spans of one rank that reach into them."""
    edges: list[tuple[float, int, int]] = []

    def occupied(start: float, stop: float, index: int) -> None:
        start, stop = start if start > begin else begin, stop if stop < end else end
        if stop - start > _MOMENT:
            edges.append((start, index, 1))
            edges.append((stop, index, -1))

    for span in spans:
        index = _class_of(span)
        if index is not None:
            occupied(span.start + span.wait, span.end - span.exposed - span.late, index)
            if span.late > 0:
                occupied(span.end - span.exposed - span.late, span.end - span.exposed, _HOST)
            if span.exposed > 0:
                occupied(span.end - span.exposed, span.end, _COMM)
        if span.wait > 0 and span.lane == COMPUTE:
            occupied(span.start, span.start + span.wait, _BUBBLE)
        if span.launch > 0:
            occupied(span.issued, span.issued + span.launch, _HOST)
    edges.sort()
    active, sums, classes = [0] * len(CLASSES), [0.0] * len(CLASSES), 0
    at = begin
    for time, index, change in edges:
        if time > at:
            sums[_FIRST[classes]] += time - at
            at = time
        active[index] += change
        classes = classes | 1 << index if active[index] else classes & ~(1 << index)
    sums[_BUBBLE] += max(0.0, end - at)
    return dict(zip(CLASSES, sums, strict=True))


def critical_path(trace: Trace) -> list[tuple[str, float]]:
    """Seconds of the reported step along the chain of what waited for what, by class; sums to the step.

    It is what the chain that ends the step has beyond the one that ended the step before. The last kernels of a step may work on a batch that was
    waited for; where loaders set the pace, both chains end in such kernels, and differ by what loaders do. Where a class has less of the
    later chain, as a step that has not settled may, the later one counts as far as it lies in the step.
    """
    begin, end = window(trace)
    chain, before = _chain(trace, end, 0.0), _chain(trace, begin, 0.0)
    sums = {name: seconds - before.pop(name, 0.0) for name, seconds in chain.items()}
    least = _NOTHING * (end - begin)
    if any(before.values()) or any(seconds < -least for seconds in sums.values()):
        sums = _chain(trace, end, begin)
    return sorted(((name, seconds) for name, seconds in sums.items() if seconds > least), key=lambda pair: -pair[1])


def ends_with(trace: Trace, end: float) -> int:
    """Index of the span that ends a step (as `step_ends` sees it) at `end`, the first of several; -1: none."""
    found = (
        (span.end, -at)
        for at, span in enumerate(trace.spans)
        if span.end <= end + _MOMENT and span.thread == "host" and span.kind not in EVENTS
    )
    return -max(found, default=(0.0, 1))[1]


def _chain(trace: Trace, end: float, begin: float) -> dict[str, float]:
    """Seconds by class between two moments of the chain whose last span ends a step at `end`.

    Follows each span to the one whose end let it start. A gap between the two is the host's (launching, Python).
    """
    at, now = ends_with(trace, end), end
    sums: dict[str, float] = {}
    while at >= 0 and now > begin + _MOMENT:
        span = trace.spans[at]
        if span.kind not in ORDERS:  # those only pass on what they waited for
            start = max(begin, min(now, span.start + span.wait))
            name = span.cls or span.kind
            only = min(now - start, span.exposed)
            late = min(now - start - only, span.late)
            sums[name] = sums.get(name, 0.0) + now - start - only - late
            if late:
                sums["host"] = sums.get("host", 0.0) + late
            if only:
                sums[COMM] = sums.get(COMM, 0.0) + only
            now = start
        at = span.after if span.after != at else -1
        if at >= 0 and now - trace.spans[at].end > _MOMENT:
            reach = max(begin, trace.spans[at].end)
            sums["host"] = sums.get("host", 0.0) + now - reach
            now = reach
    if now > begin + _MOMENT:
        sums["host"] = sums.get("host", 0.0) + now - begin
    return sums


def together(parts: Iterable[tuple[float, Trace]]) -> Breakdown:
    """`breakdown` of a step in which the reported one of each trace is so many times."""
    found = [(weight, msgspec.structs.asdict(breakdown(trace))) for weight, trace in parts]
    return Breakdown(**{name: sum(weight * split[name] for weight, split in found) for name in Breakdown.__struct_fields__})


def mean_path(parts: Iterable[tuple[float, Trace]], output: float) -> list[tuple[str, float]]:
    """`critical_path` of a mean step, of which the reported one of each trace is so many times in it; `output`: seconds on top, a class of their own."""
    sums = {"output": output} if output else {}
    for weight, trace in parts:
        for name, seconds in critical_path(trace):
            sums[name] = sums.get(name, 0.0) + weight * seconds
    return sorted(sums.items(), key=lambda pair: -pair[1])
