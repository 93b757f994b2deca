"""Ranks that do not wait for each other: each takes its own time, and their throughputs add up.

They meet at the server in an order that changes from step to step, so that one step says little: each rank's pace is the mean over the
whole steps that it makes while all others still run. A step is then the time in which all of them together make one for each rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.program import EVENTS, SERVER
from sim.timeline.metrics import CLASSES, Breakdown, classify
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
