"""Reads Kineto's Chrome JSON: StepTwin's own traces, and those of anybody's torch.profiler.

Kernels and copies become spans on one lane per stream, with a class by the kernel's name; where there was no device, operators on one lane
per thread (`operators`). StepTwin's own traces keep
their ids, launches, waits, memory and which step is reported; of others, kernels that were launched inside a range `op:...` take
its name (`marks`). Only the given fields are read, sizes are bounded, and nothing is executed.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from sim.imported.marks import Marks, Range, op_of
from sim.imported.names import copy_class, kernel_class, kind_of
from sim.imported.operators import operators
from sim.imported.steps import Mark, Steps
from sim.trace import Span, Trace
from topologies.errors import BadInput

_LARGEST = 2 << 30
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_PLACE = re.compile(r"r(\d{1,9})/s(\d{1,9})/")
"""Rank and step at the beginning of an op's id."""
_RUNTIME = ("cuda_runtime", "cuda_driver")


class _Event(msgspec.Struct):
    """The fields of a trace event that are read; all others are skipped."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


class _Info(msgspec.Struct):
    rank: int = 0
    world_size: int = 1
    backend: str = ""


class _Own(msgspec.Struct):
    """What `sim.files.chrome` says of its own traces."""

    origin: str = ""
    reported: Annotated[int, msgspec.Meta(le=-1)] = -1
    weight: dict[int, Annotated[int, msgspec.Meta(ge=1)]] = {}


class _File(msgspec.Struct):
    traceEvents: list[_Event]
    distributedInfo: _Info = msgspec.field(default_factory=_Info)
    steptwin: _Own | None = None
    program: str = msgspec.field(default="", name="steptwin.program")
    plan: str = msgspec.field(default="", name="steptwin.plan")


def read_trace(path: Path, origin: str = "imported") -> Trace:
    """A trace from a .json or .json.gz file. Raises `BadInput` with the file and what is wrong."""
    try:
        file = _decoded(_bytes(path))
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"trace {path} cannot be read: {error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"trace {path} is no Kineto trace ({error}): give a file that torch.profiler's export_chrome_trace wrote") from None
    try:
        spans = _spans(file)
        memory = _memory(file.traceEvents) if file.steptwin is not None else {}
    except (ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"trace {path} has an event whose arguments make no sense ({error}): was it edited by hand?") from None
    if not spans:
        raise BadInput(f"trace {path} holds no kernel and no operator: record whole steps with torch.profiler.profile()")
    own = file.steptwin or _Own()
    steps = len({span.step for span in spans})
    if file.steptwin is not None:
        _launched(spans, file.traceEvents)
    meta = {"file": path.name} | ({"plan": name} if (name := file.program or file.plan) else {})
    meta |= {"origin": own.origin} if own.origin else {}
    meta |= {"backend": file.distributedInfo.backend} if file.distributedInfo.backend else {}
    return Trace(spans, origin, file.distributedInfo.world_size, steps, own.weight, memory, meta, own.reported)


def _decoded(text: bytes) -> _File:
    """The events of a file's bytes. A list is Chrome's shorter form. Raises msgspec's errors, `UnicodeDecodeError`, `RecursionError`."""
    listed = text[:64].lstrip()[:1] == b"["
    try:
        return (
            _File(msgspec.json.decode(text, type=list[_Event], strict=False))
            if listed
            else msgspec.json.decode(text, type=_File, strict=False)
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if isinstance(error, msgspec.ValidationError):
            raise
        # Kineto writes C++'s nan and inf, and names of ranges whatever their bytes are: the standard library reads both, slowly.
        try:
            tree = json.loads(text.decode("utf-8", "replace"), parse_constant=lambda _: None)
        except ValueError:
            raise error from None
    return msgspec.convert({"traceEvents": tree} if listed else tree, _File, strict=False)


def _bytes(path: Path) -> bytes:
    """What a file holds, unpacked where it is a gzip file, whatever it is called; without a byte order mark."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if not packed:
        if path.stat().st_size > _LARGEST:
            raise BadInput(f"trace {path} is larger than {_LARGEST >> 30} GiB: record fewer steps")
        return path.read_bytes().removeprefix(codecs.BOM_UTF8)
    with gzip.open(path) as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise BadInput(f"trace {path} unpacks to more than {_LARGEST >> 30} GiB: record fewer steps")
    return text


def _spans(file: _File) -> list[Span]:
    events = [e for e in file.traceEvents if e.ph == "X"]
    backwards = next((e for e in events if e.dur < 0), None)
    if backwards is not None:
        raise ValueError(f"{backwards.name[:60]!r} ends before it starts")
    names = {(e.pid, e.tid): str(e.args.get("name", "")) for e in file.traceEvents if e.ph == "M" and e.name == "thread_name"}
    chosen = [e for e in events if e.cat in _DEVICE or (e.cat == "cpu_op" and "op_id" in e.args)]
    if not chosen and file.steptwin is None:
        chosen = [
            msgspec.structs.replace(e, args={"correlation": -number, "class": cls}) for number, (e, cls) in enumerate(operators(events), 1)
        ]
    zero = 0.0 if file.steptwin is not None else min((e.ts for e in chosen), default=0.0)
    steps, marks = _Steps(events), _marks(events, chosen)
    spans = (_span(e, zero, file.distributedInfo.rank, names, steps, marks) for e in sorted(chosen, key=lambda e: e.ts))
    return [span for span in spans if span is not None]


class _Steps:
    """The steps that a trace marks: on the host, and when the device came to them."""

    def __init__(self, events: list[_Event]) -> None:
        named = (e for e in events if e.cat not in (*_DEVICE, *_RUNTIME, "python_function"))
        marks = [(e.cat == "gpu_user_annotation", mark) for e in named if (mark := Mark.of(e.name, e.ts, e.ts + e.dur))]
        self._host = Steps(mark for device, mark in marks if not device)
        ran: dict[tuple[str, int], Mark] = {}
        for mark in (mark for device, mark in marks if device and not self._host.renumbered):  # a stream of the device has each step's once
            known = ran.setdefault((mark.word, mark.number), mark)
            ran[mark.word, mark.number] = known._replace(start=min(known.start, mark.start), end=max(known.end, mark.end))
        self._device = Steps(ran.values())

    def of(self, at: float, launched: float | None) -> int:
        """The step in which something was launched; where nobody says when, the one that the device was in."""
        return (self._device or self._host).of(at) if launched is None else (self._host or self._device).of(launched)

    def after(self, at: float, launched: float | None) -> bool:
        """Whether it belongs to what came after the last step."""
        return self._device.after(at) if launched is None else self._host.after(launched)


def _marks(events: list[_Event], chosen: list[_Event]) -> Marks:
    """Ranges, and what launched each span; an operator of a CPU is launched where it runs."""
    ranges = (((e.pid, e.tid), Range(e.ts, e.ts + e.dur, op)) for e in events if (op := op_of(e.name)))
    calls = [*(e for e in events if e.cat in _RUNTIME), *(e for e in chosen if e.cat not in _DEVICE)]
    launches = ((int(e.args["correlation"]), (e.pid, e.tid), e.ts) for e in calls if "correlation" in e.args)
    return Marks(ranges, launches)


def _span(
    event: _Event,
    zero: float,
    rank: int,
    names: dict[tuple[Any, Any], str],
    steps: _Steps,
    marks: Marks,
) -> Span | None:
    """None for what was launched after the last step."""
    args = event.args
    op_id = str(args.get("op_id", ""))
    number = int(args["correlation"]) if "correlation" in args else None
    marked = marks.op(number) if not op_id else ""
    stream = args.get("stream", event.tid)
    own, launched = _PLACE.match(op_id), marks.launched(number)
    if own is None and steps.after(event.ts, launched):
        return None
    cls = str(args.get("class", "")) or _class(event)
    kind = str(args.get("kind", "")) or kind_of(cls)
    start = (event.ts - zero) * 1e-6
    return Span(
        int(own.group(1)) if own else rank,
        names.get((event.pid, event.tid)) or f"stream {stream}",
        op_id or marked or event.name,
        start,
        start + event.dur * 1e-6,
        kind,
        cls,
        int(own.group(2)) if own else steps.of(event.ts, launched),
        thread=str(args.get("thread", "host")),
        name=str(args.get("Collective name", "")) or event.name,
        bytes=int(args.get("bytes", 0) or 0),
        flops=float(args.get("flops", 0) or 0),
        group=str(args.get("group", args.get("Process Group Name", ""))),
        group_size=int(args.get("Group size", 0) or 0),
        source=str(args.get("source", "measured")),
        wait=min(event.dur, float(args.get("wait_us", 0) or 0)) * 1e-6,
        exposed=min(event.dur, float(args.get("exposed_us", 0) or 0)) * 1e-6,
    )


def _class(event: _Event) -> str:
    """What is a collective says so in its arguments, whatever its kernel is called."""
    if event.cat == "gpu_memcpy":
        return copy_class(event.name)
    return "comm" if event.cat == "kernel" and event.args.get("Collective name") else kernel_class(event.name)


def _launched(spans: list[Span], events: list[_Event]) -> None:
    """Own traces: when each op was launched and how long that took, which stands in the call that launched it."""
    calls = {str(e.args["op_id"]): e for e in events if e.cat in _RUNTIME and "op_id" in e.args}
    for span in spans:
        call = calls.get(span.id)
        if call is not None:
            span.issued, span.launch = call.ts * 1e-6, call.dur * 1e-6


def _memory(events: list[_Event]) -> dict[int, list[tuple[float, int]]]:
    """Own traces: bytes in use by rank, at each change."""
    found: dict[int, list[tuple[float, int]]] = {}
    for event in events:
        if event.ph == "C" and event.name == "memory":
            found.setdefault(int(event.pid), []).append((event.ts * 1e-6, int(event.args.get("bytes", 0))))
    return found
