"""Step time and its breakdown by class, computed from a trace. Predicted and measured traces use the same functions.

Each instant of a step belongs to exactly one class. Where the rank's devices do several things, the first in this order counts: compute,
optimizer, exposed communication (nothing else hides it), output, waiting for data, bubble (launched work waits for other ranks), and
host (the host is late). An instant with none of these is a bubble, too. So the classes sum to the step.
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
"""The class that counts, for each set of active classes; the index holds the set as bits."""
COMM = "comm"
"""Class of the exposed communication inside a span that stands for several ops."""
_MOMENT = 1e-12
_NOTHING = 1e-9
"""Share of a step below which a difference counts as zero (rounding)."""


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
    """Step -> end of its last op on a training thread or a device lane, in seconds."""
    ends: dict[int, float] = {}
    for span in spans:
        if span.thread == "host" and span.kind not in EVENTS and span.end > ends.get(span.step, -math.inf):
            ends[span.step] = span.end
    return ends


def step_ends(trace: Trace) -> list[float]:
    """End of each step in seconds: when it and all steps before it have ended on all ranks."""
    ends = _last_ends(trace.spans)
    last, found = 0.0, []
    for step in sorted(ends):
        last = max(last, ends[step])
        found.append(last)
    return found


def step_numbers(trace: Trace) -> list[int]:
    """The numbers of the trace's steps, in the order of `step_times`."""
    return sorted(_last_ends(trace.spans))


def loaded_until(trace: Trace) -> float:
    """The time (seconds) when the first loader process ends its last batch; infinite where there are no loader processes."""
    ends: dict[tuple[int, str], float] = {}
    for span in trace.spans:
        if span.thread.startswith("loader"):
            ends[span.rank, span.thread] = max(ends.get((span.rank, span.thread), 0.0), span.end)
    return min(ends.values(), default=math.inf)


def while_loaded(trace: Trace) -> int:
    """Negative index of the last step that ends while all loader processes still make batches. The first and the last step do not count; -2
    where there is no such step."""
    ends, until = step_ends(trace), loaded_until(trace)
    return next((at - len(ends) for at in range(len(ends) - 2, 0, -1) if ends[at] <= until), -2)


def step_times(trace: Trace) -> list[float]:
    """Seconds of each step, from the end of the previous step (for the first: from 0)."""
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
    """Breakdown of the reported step, averaged over all ranks (a folded rank counts with its weight).

    Each rank has its own window for the step: a rank that is ahead, as the first pipeline stages of a forward pass are, ends the reported
    step before the others, and then works on steps that are not simulated. Where its window is shorter than the step, the rest counts as
    bubble, because a rank cannot stay ahead forever.
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
    """Begin and end of step `number` on one rank: it begins when the rank has ended the steps before, and is at most `longest` seconds
    long."""
    ends = _last_ends(spans)
    before, last = (max((end for step, end in ends.items() if step < least), default=0.0) for least in (number, number + 1))
    return max(before, last - longest), last


def _class_of(span: Span) -> int | None:
    """The span's class as an index into CLASSES; None for spans that occupy nothing (records, waits on other lanes than compute, syncs
    without a class)."""
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
    """Seconds of each of `CLASSES` between `begin` and `end`, from the spans of one rank that overlap this interval."""
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
    """Seconds of each class on the critical path of the reported step, largest first; they sum to the step.

    The path is the chain of dependencies that ends the step, minus the chain that ended the previous step. The last kernels of a step may
    work on a batch that was late; where loaders limit the pace, both chains end in such kernels, and their difference is the work of the
    loaders. Where the later chain has less of some class, as in a step that is not yet steady, its part inside the step is used instead.
    """
    begin, end = window(trace)
    chain, before = _chain(trace, end, 0.0), _chain(trace, begin, 0.0)
    sums = {name: seconds - before.pop(name, 0.0) for name, seconds in chain.items()}
    least = _NOTHING * (end - begin)
    if any(before.values()) or any(seconds < -least for seconds in sums.values()):
        sums = _chain(trace, end, begin)
    return sorted(((name, seconds) for name, seconds in sums.items() if seconds > least), key=lambda pair: -pair[1])


def ends_with(trace: Trace, end: float) -> int:
    """Index of the last span that ends by `end` among those that `step_ends` counts; the first of several with the same end; -1: none."""
    found = (
        (span.end, -at)
        for at, span in enumerate(trace.spans)
        if span.end <= end + _MOMENT and span.thread == "host" and span.kind not in EVENTS
    )
    return -max(found, default=(0.0, 1))[1]


def _chain(trace: Trace, end: float, begin: float) -> dict[str, float]:
    """Seconds of each class, between `begin` and `end`, on the chain of dependencies whose last span ends at `end`.

    The chain goes from each span back to the span whose end let it start. A gap between the two counts as host time (launches, Python).
    """
    at, now = ends_with(trace, end), end
    sums: dict[str, float] = {}
    while at >= 0 and now > begin + _MOMENT:
        span = trace.spans[at]
        if span.kind not in ORDERS:  # such ops take no time of their own
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
    """Weighted sum of the breakdowns of several traces; `parts` are (weight, trace), where the weight is how often the reported step
    occurs."""
    found = [(weight, msgspec.structs.asdict(breakdown(trace))) for weight, trace in parts]
    return Breakdown(**{name: sum(weight * split[name] for weight, split in found) for name in Breakdown.__struct_fields__})


def mean_path(parts: Iterable[tuple[float, Trace]], output: float) -> list[tuple[str, float]]:
    """`critical_path` of a mean step: the weighted sum over `parts` (weight, trace). `output`: additional seconds, in a class of that name;
    0: none."""
    sums = {"output": output} if output else {}
    for weight, trace in parts:
        for name, seconds in critical_path(trace):
            sums[name] = sums.get(name, 0.0) + weight * seconds
    return sorted(sums.items(), key=lambda pair: -pair[1])
