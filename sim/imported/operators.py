"""What a trace without a device shows of a step: PyTorch's operators, run by the CPU threads that called them.

An operator that another one calls is a part of it, so that the outermost of each thread are the step's work. What an optimizer calls inside
`step()`, which torch.profiler marks by itself (`Optimizer.step#AdamW.step`), is the optimizer's.
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
    """The fields of a trace event that are looked at; times in the trace's own unit."""

    name: str
    pid: int | str
    tid: int | str
    ts: float
    dur: float


_Event = TypeVar("_Event", bound=Called)


def operators(events: Iterable[_Event]) -> Iterator[tuple[_Event, str]]:
    """The outermost operators of each thread in the order in which they began, each with its class."""
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
