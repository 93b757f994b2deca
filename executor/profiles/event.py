"""One event of a torch profile."""

from __future__ import annotations

from typing import Any

import msgspec


class Event(msgspec.Struct):
    """One complete event of the profile; `ts` (its start) and `dur` are in microseconds."""

    name: str
    cat: str
    ts: float
    dur: float
    tid: int
    args: dict[str, Any]

    @property
    def end(self) -> float:
        """When it ends, in microseconds."""
        return self.ts + self.dur
