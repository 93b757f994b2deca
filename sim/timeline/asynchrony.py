"""Ranks that do not wait for each other: each takes its own time, and their throughputs add up.

They meet at the server in an order that changes from step to step, so that one step says little: each rank's pace is the mean over the
whole steps that it makes while all others still run. A step is then the time in which all of them together make one for each rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.program import EVENTS, SERVER
from sim.timeline.metrics import CLASSES, Breakdown, classify, window
from sim.trace import Span, Trace


def served(trace: Trace) -> bool:
    """Do its ranks update through a parameter server, none waiting for the others?"""
    return any(span.thread.startswith(SERVER) for span in trace.spans)


def mean_step(trace: Trace) -> Breakdown:
    """What a step goes on: the mean over all ranks and steps, which sums to ranks / (their steps per second together)."""
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
    # `sums` holds shares of the time, of each rank 1 in all.
    return Breakdown(**{name: share / made for name, share in sums.items()})


def step_shown(trace: Trace) -> tuple[float, float]:
    """Begin and end of what a page shows of a trace: the reported step; where ranks do not wait for each other, the slowest one's last step that ends
    while all others still run. By the end of its last, quicker ranks have stopped long since."""
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
    """The steps after whose ends a rank's counted ones begin and end: all but the first that end by `until`, or the second alone."""
    last = max(1, sum(end <= until * (1 + 1e-9) for end in ends) - 1)
    return min(1, last - 1), last


def _ends(spans: list[Span], steps: int) -> list[float]:
    """When a rank's own training thread and device have ended each step."""
    found = [0.0] * steps
    for span in spans:
        if span.thread == "host" and span.kind not in EVENTS:
            found[span.step] = max(found[span.step], span.end)
    return found
