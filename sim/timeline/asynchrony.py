"""Step time of ranks that do not wait for each other (asynchronous updates): each has its own pace, and their throughputs add up.

The order in which ranks reach the parameter server changes from step to step, so that one step is not typical. The pace of a rank is the
mean over the whole steps that it makes while all others still run. The step time is the time in which all ranks together make as many
steps as there are ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.program import EVENTS, SERVER
from sim.timeline.metrics import CLASSES, Breakdown, classify, window
from sim.trace import Span, Trace


def served(trace: Trace) -> bool:
    """True if the ranks update through a parameter server and do not wait for each other."""
    return any(span.thread.startswith(SERVER) for span in trace.spans)


def mean_step(trace: Trace) -> Breakdown:
    """Mean breakdown of a step over all ranks and counted steps, in seconds. It sums to (number of ranks) / (steps per second of all ranks
    together)."""
    spans: dict[int, list[Span]] = {}
    for span in trace.spans:
        spans.setdefault(span.rank, []).append(span)
    ends = {rank: _ends(of_rank, trace.steps) for rank, of_rank in spans.items()}
    until = min(own[trace.reported] for own in ends.values())
    sums, made, ranks = dict.fromkeys(CLASSES, 0.0), 0.0, 0
    for rank, own in ends.items():
        first, last = counted(own, until)
        begin, end, weight = own[first], own[last], trace.weight.get(rank, 1)
        for name, seconds in classify([s for s in spans[rank] if s.end > begin and s.start < end], begin, end).items():
            sums[name] += weight * seconds / (end - begin)
        made += weight * (last - first) / (end - begin)
        ranks += weight
    # `sums` holds shares of time by class, summed over ranks; the shares of one rank sum to 1.
    return Breakdown(**{name: share / made for name, share in sums.items()})


def step_shown(trace: Trace) -> tuple[float, float]:
    """Begin and end (seconds) of the part of a trace that a page shows. It is the reported step; where ranks do not wait for each other, it
    is the longest of the ranks' last steps that end while all ranks still run, because faster ranks stop early."""
    if not served(trace):
        return window(trace)
    spans: dict[int, list[Span]] = {}
    for span in trace.spans:
        spans.setdefault(span.rank, []).append(span)
    ends = [_ends(of_rank, trace.steps) for of_rank in spans.values()]
    until = min(own[-1] for own in ends) * (1 + 1e-9)
    last = [max((step for step in zip([0.0, *own], own, strict=False) if step[1] <= until), default=(0.0, until)) for own in ends]
    return max(last, key=lambda step: step[1] - step[0])


def counted(ends: Sequence[float], until: float) -> tuple[int, int]:
    """Indices (first, last) into a rank's step `ends`. Its counted steps lie between these two ends: all steps but the first that end by
    `until`, or only the second step where there are fewer."""
    last = max(1, sum(end <= until * (1 + 1e-9) for end in ends) - 1)
    return min(1, last - 1), last


def _ends(spans: list[Span], steps: int) -> list[float]:
    """End of each step on a rank's training thread and device, in seconds."""
    found = [0.0] * steps
    for span in spans:
        if span.thread == "host" and span.kind not in EVENTS:
            found[span.step] = max(found[span.step], span.end)
    return found
