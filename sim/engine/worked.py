"""How long ranks have worked since they met, where the cost of a meeting hangs on it (`Cost.drift`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sim.program import MEETING, Op


def worked(calls: Iterable[str], segments: Mapping[str, Sequence[Op]], seconds: Callable[[Op], float]) -> dict[int, float]:
    """Of each collective and message, by its id(): `seconds` of what the thread that calls these segments computes since the one before; of one
    that is called again and again, the last time."""
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
    """(the segment's first meeting, what is computed before it, what is after the last); all is after where nobody meets."""
    first, before, since = None, 0.0, 0.0
    for op in line:
        if op.kind in MEETING:
            if first is None:
                first, before = op, since
            found[id(op)], since = since, 0.0
        elif op.kind in ("compute", "host"):
            since += seconds(op)
    return first, before, since
