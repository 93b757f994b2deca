"""How long a rank has computed since its last collective or message. Some costs depend on it (`Cost.drift`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sim.program import MEETING, Op


def worked(calls: Iterable[str], segments: Mapping[str, Sequence[Op]], seconds: Callable[[Op], float]) -> dict[int, float]:
    """id() of each collective and message -> seconds that the thread computes between the one before and this one. If an op is called
    again and again, the last time counts. `calls`: the segments that the thread calls, in order; `seconds(op)`: what an op takes."""
    found: dict[int, float] = {}
    parts: dict[str, tuple[Op | None, float, float]] = {}
    since = 0.0
    for name in calls:
        if name not in parts:
            parts[name] = _inside(segments[name], seconds, found)
        first, before, after = parts[name]
        if first is None:
            since += after
        else:
            found[id(first)], since = since + before, after
    return found


def _inside(line: Sequence[Op], seconds: Callable[[Op], float], found: dict[int, float]) -> tuple[Op | None, float, float]:
    """(the segment's first collective or message, seconds computed before it, seconds computed after the last one). Without any: (None,
    0, all seconds)."""
    first, before, since = None, 0.0, 0.0
    for op in line:
        if op.kind in MEETING:
            if first is None:
                first, before = op, since
            found[id(op)], since = since, 0.0
        elif op.kind in ("compute", "host"):
            since += seconds(op)
    return first, before, since
