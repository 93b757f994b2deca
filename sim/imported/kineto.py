"""Reads Kineto's Chrome JSON: StepTwin's own traces and those of torch.profiler.

Kernels and copies become spans on one lane per stream, with a class by the kernel's name. Where there was no device, operators become spans
on one lane per thread (`operators`). StepTwin's own traces keep their ids, launches, waits, memory and the number of the reported step. In
other traces, kernels that were launched inside a range `op:...` take its name (`marks`). Only known fields are read (`events`), sizes are
limited, and nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import msgspec

from sim.files.nccl import word_of
from sim.imported.events import DEVICE, Event, File, Info, Own, read_events
from sim.imported.marks import Marks, Range, op_of
from sim.imported.names import copy_class, kernel_class, kind_of
from sim.imported.operators import operators
from sim.imported.steps import Mark, Steps
from sim.trace import Span, Trace
from topologies.errors import BadInput

_PLACE = re.compile(r"r(\d{1,9})/s(\d{1,9})/")
"""Rank and step at the beginning of an op's id."""
_DIGITS = re.compile(r"-?\d+\Z")
_STRAY = 0.01
_SIZES = {
    1: ("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"),
    2: ("Half", "BFloat16", "Short", "UInt16"),
    4: ("Float", "Int", "UInt32"),
    8: ("Double", "Long", "UInt64", "ComplexFloat"),
    16: ("ComplexDouble",),
}
"""Bytes of an element -> torch's names of such types."""
_RUNTIME = ("cuda_runtime", "cuda_driver")


def read_trace(path: Path) -> Trace:
    """A trace from a .json or .json.gz file. Raises `BadInput` with the file and what is wrong."""
    file = read_events(path)
    try:
        spans = _spans(file)
        memory = _memory(file.traceEvents) if file.steptwin is not None else {}
    except (ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"trace {path} has an event whose arguments make no sense ({error}): was it edited by hand?") from None
    if not spans:
        raise BadInput(f"trace {path} holds no kernel and no operator: record whole steps with torch.profiler.profile()")
    own, info = file.steptwin or Own(), file.distributedInfo or Info()
    steps = len({span.step for span in spans})
    if file.steptwin is not None:
        _launched(spans, file.traceEvents)
    meta = {"file": path.name} | ({"plan": name} if (name := file.program or file.plan) else {})
    meta |= {"origin": own.origin} if own.origin else {}
    meta |= {"backend": info.backend} if info.backend else {}
    meta |= {"unread": str(file.unread)} if file.unread else {}
    world = max(info.world_size, len({span.rank for span in spans}) if file.steptwin is None else 1)
    return Trace(spans, "imported", world, steps, own.weight, memory, meta, own.reported, own.timed)


def _spans(file: File) -> list[Span]:
    events = [e for e in file.traceEvents if e.ph == "X"]
    names = {(e.pid, e.tid): str(e.said.get("name", "")) for e in file.traceEvents if e.ph == "M" and e.name == "thread_name"}
    chosen = [e for e in events if e.cat in DEVICE or (e.cat == "cpu_op" and "op_id" in e.said)]
    if not chosen and file.steptwin is None:
        chosen = [
            msgspec.structs.replace(e, args={"correlation": -number, "class": cls}) for number, (e, cls) in enumerate(operators(events), 1)
        ]
    zero = 0.0 if file.steptwin is not None else min((e.ts for e in chosen), default=0.0)
    alone = file.distributedInfo.rank if file.distributedInfo else 0
    ranks = _ranks([e for e in chosen if e.cat in DEVICE]) if file.steptwin is None else {_place(e): int(e.pid) for e in chosen}
    steps, marks = _Steps(events), _marks(events, chosen, file.steptwin is not None)
    spans = (
        _span(e, zero, ranks.get(_place(e), alone), names, steps, marks, _number(e, file.steptwin is not None))
        for e in sorted(chosen, key=lambda e: e.ts)
    )
    return [span for span in spans if span is not None]


def _place(event: Event) -> tuple[str, str]:
    """Where an event ran: its process, and its device ("" where it has none)."""
    return str(event.pid), str(event.said.get("device", ""))


def _ranks(events: list[Event]) -> dict[tuple[str, str], int]:
    """Rank of each place (process and device), numbered in order; {} where the file has only one, whose rank the file states. A place that
    only copied, or whose kernels ran at most 1 % as long as those of the busiest place (a tensor on the wrong device), counts as rank 0."""
    busy: dict[tuple[str, str], float] = {}
    for event in events:
        place = _place(event)
        busy[place] = busy.get(place, 0.0) + (event.dur if event.cat == "kernel" else 0.0)
    least = _STRAY * max(busy.values(), default=0.0)
    ran = sorted((place for place in busy if busy[place] > least), key=lambda place: [(len(part), part) for part in place])
    return {place: ran.index(place) if place in ran else 0 for place in busy} if len(ran) > 1 else {}


class _Steps:
    """The marked steps of a trace, on the host and on the device."""

    def __init__(self, events: list[Event]) -> None:
        named = (e for e in events if e.cat not in (*DEVICE, *_RUNTIME, "python_function"))
        marks = [(e.cat == "gpu_user_annotation", mark) for e in named if (mark := Mark.of(e.name, e.ts, e.ts + e.dur))]
        self._host = Steps(mark for device, mark in marks if not device)
        ran: dict[tuple[str, int], Mark] = {}
        for mark in (mark for device, mark in marks if device and not self._host.renumbered):  # a stream of the device has each step's once
            known = ran.setdefault((mark.word, mark.number), mark)
            ran[mark.word, mark.number] = known._replace(start=min(known.start, mark.start), end=max(known.end, mark.end))
        self._device = Steps(ran.values())

    def of(self, at: float, launched: float | None) -> int:
        """The step in which an op was launched; where the time of its launch is not known (None), the step in which the device ran it."""
        return (self._device or self._host).of(at) if launched is None else (self._host or self._device).of(launched)

    def after(self, at: float, launched: float | None) -> bool:
        """True if the op comes after the last step."""
        return self._device.after(at) if launched is None else self._host.after(launched)


def _number(event: Event, own: bool) -> Hashable:
    """The correlation number that connects a kernel to its launch; None if there is none. In StepTwin's own files (`own`) it is (process,
    number), because each rank is a process with its own numbers."""
    said = str(event.said.get("correlation"))
    return None if not _DIGITS.match(said) else (event.pid, int(said)) if own else int(said)


def _marks(events: list[Event], chosen: list[Event], own: bool) -> Marks:
    """The ranges of all threads and the launch of each span. An operator on a CPU counts as its own launch."""
    ranges = (((e.pid, e.tid), Range(e.ts, e.ts + e.dur, op)) for e in events if (op := op_of(e.name)))
    calls = [*(e for e in events if e.cat in _RUNTIME), *(e for e in chosen if e.cat not in DEVICE)]
    launches = ((number, (e.pid, e.tid), e.ts) for e in calls if (number := _number(e, own)) is not None)
    return Marks(ranges, launches)


def _span(
    event: Event,
    zero: float,
    rank: int,
    names: dict[tuple[Any, Any], str],
    steps: _Steps,
    marks: Marks,
    number: Hashable,
) -> Span | None:
    """Makes the span of an event; None for an op after the last step. `zero`: the time of the trace's begin, in microseconds."""
    args = event.said
    op_id = str(args.get("op_id", ""))
    marked = marks.op(number) if not op_id else ""
    stream = args.get("stream", event.tid)
    own, launched = _PLACE.match(op_id), marks.launched(number)
    step = int(own.group(2)) if own else int(args["step"]) if op_id and "step" in args else None
    if step is None and steps.after(event.ts, launched):
        return None
    cls = str(args.get("class", "")) or _class(event)
    kind = str(args.get("kind", "")) or kind_of(cls)
    start = (event.ts - zero) * 1e-6
    known = launched if event.cat in DEVICE else None
    return Span(
        int(own.group(1)) if own else rank,
        names.get((event.pid, event.tid)) or f"stream {stream}",
        op_id or marked or event.name,
        start,
        start + event.dur * 1e-6,
        kind,
        cls,
        steps.of(event.ts, launched) if step is None else step,
        issued=-1.0 if known is None else max(0.0, (known - zero) * 1e-6),
        thread=str(args.get("thread", "host")),
        name=(word_of(str(args.get("Collective name", ""))) if own else "") or event.name,
        bytes=int(args.get("bytes", 0) or 0) or _message(args),
        flops=float(args.get("flops", 0) or 0),
        group=str(args.get("group", args.get("Process Group Name", ""))),
        group_size=int(args.get("Group size", 0) or 0),
        source=str(args.get("source", "measured")),
        wait=min(event.dur, float(args.get("wait_us", 0) or 0)) * 1e-6,
        exposed=min(event.dur, float(args.get("exposed_us", 0) or 0)) * 1e-6,
    )


def _class(event: Event) -> str:
    """The class of an event. A kernel with the argument `Collective name` is a collective, whatever its own name is."""
    if event.cat == "gpu_memcpy":
        return copy_class(event.name)
    return "comm" if event.cat == "kernel" and event.said.get("Collective name") else kernel_class(event.name)


def _message(args: dict[str, Any]) -> int:
    """Bytes of a collective: those of the whole array, which is the larger of input and output (in an all_gather or reduce_scatter one of
    them is a part). 0 where they are not known."""
    size = next((size for size, types in _SIZES.items() if args.get("dtype") in types), 0)
    return size * max(int(args.get(f"{way} msg nelems", 0) or 0) for way in ("In", "Out"))


def _launched(spans: list[Span], events: list[Event]) -> None:
    """Sets `issued` and `launch` of the spans in StepTwin's own traces, from the runtime calls that launched them."""
    calls = {str(e.said["op_id"]): e for e in events if e.cat in _RUNTIME and "op_id" in e.said}
    for span in spans:
        call = calls.get(span.id)
        if call is not None and _PLACE.match(span.id):
            span.issued, span.launch = call.ts * 1e-6, call.dur * 1e-6


def _memory(events: list[Event]) -> dict[int, list[tuple[float, int]]]:
    """Memory in StepTwin's own traces: rank -> (seconds, bytes in use) at each change."""
    found: dict[int, list[tuple[float, int]]] = {}
    for event in events:
        if event.ph == "C" and event.name == "memory":
            found.setdefault(int(event.pid), []).append((event.ts * 1e-6, int(event.said.get("bytes", 0))))
    return found
