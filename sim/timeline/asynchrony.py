"""Ranks that do not wait for each other: each takes its own time, and their throughputs add up."""

from __future__ import annotations

from sim.trace import Trace


def own_steps(trace: Trace) -> dict[int, float]:
    """Seconds of the reported step of each simulated rank, by its own training thread; {} where a step is missing."""
    at = max(range(trace.steps))
    step = max(0, at + 1 + trace.reported)
    ends: dict[tuple[int, int], float] = {}
    for span in trace.spans:
        if span.thread == "host" and span.kind not in ("record", "wait"):
            key = (span.rank, span.step)
            ends[key] = max(ends.get(key, 0.0), span.end)
    return {rank: ends[rank, step] - ends.get((rank, step - 1), 0.0) for rank in trace.ranks if (rank, step) in ends}


def rank_steps_per_s(trace: Trace) -> float:
    """Steps per second of all ranks together, each at its own pace."""
    return sum(trace.weight.get(rank, 1) / seconds for rank, seconds in own_steps(trace).items() if seconds > 0)
