"""The work of a step in a trace without a device: PyTorch's operators, run by the CPU threads that called them.

An operator contains the operators that it calls, so that the outermost operators of each thread are the work of the step. Operators inside
`step()` of an optimizer, which torch.profiler marks (`Optimizer.step#AdamW.step`), get the class optimizer.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from typing import Protocol, TypeVar

from sim.imported.names import kernel_class

_WORK = re.compile(r"aten::|gloo:")
_PRODUCT = re.compile(r"aten::(linear|addmm|baddbmm|bmm|mm|mv|addmv)(_backward)?\Z")
_UPDATE = "Optimizer.step#"


class Called(Protocol):
    """The fields of a trace event that are used; times are in the trace's own unit."""

    name: str
    pid: int | str
    tid: int | str
    ts: float
    dur: float


_Event = TypeVar("_Event", bound=Called)


def operators(events: Iterable[_Event]) -> Iterator[tuple[_Event, str]]:
    """Yields the outermost operators of each thread, each with its class, ordered by their begin."""
    ends: dict[Hashable, tuple[float, float]] = {}  # of a thread's last operator, and of its optimizer's last step
    for event in sorted(events, key=lambda e: (e.ts, -e.dur)):
        thread, end = (event.pid, event.tid), event.ts + event.dur
        busy, updating = ends.get(thread, (0.0, 0.0))
        if event.name.startswith(_UPDATE):
            ends[thread] = busy, max(updating, end)
        elif _WORK.match(event.name) and event.ts >= busy:
            ends[thread] = end, updating
            yield event, "optimizer" if event.ts < updating else _class(event.name)


def _class(name: str) -> str:
    if name.startswith("gloo:"):
        return "comm"
    return "gemm" if _PRODUCT.match(name) else kernel_class(name)
