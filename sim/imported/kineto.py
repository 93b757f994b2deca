"""Reads Kineto's Chrome JSON: StepTwin's own traces, and those of anybody's torch.profiler.

Kernels and copies become spans on one lane per stream, with a class by the kernel's name; ops of StepTwin's own traces
keep their id, and kernels launched inside a range `op:...` take its name (`marks`). Only the given fields are read, sizes are bounded, and nothing is executed.
"""

from __future__ import annotations

import gzip
import zlib
from bisect import bisect_right
from pathlib import Path
from typing import Any

import msgspec

from sim.imported.marks import Marks, Range, op_of
from sim.imported.names import STEP, copy_class, kernel_class
from sim.trace import Span, Trace
from topologies.errors import BadInput

_LARGEST = 2 << 30
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
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


class _File(msgspec.Struct):
    traceEvents: list[_Event]
    distributedInfo: _Info = msgspec.field(default_factory=_Info)


def read_trace(path: Path, origin: str = "imported") -> Trace:
    """A trace from a .json or .json.gz file. Raises `BadInput` with the file and what is wrong."""
    try:
        text = _bytes(path)
        file = msgspec.json.decode(text, type=_File, strict=False)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"trace {path} cannot be read: {error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"trace {path} is no Kineto trace ({error}): give a file that torch.profiler's export_chrome_trace wrote") from None
    try:
        spans = _spans(file)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"trace {path} has an event whose arguments make no sense ({error}): was it edited by hand?") from None
    if not spans:
        raise BadInput(f"trace {path} holds no kernel and no StepTwin op: record with ProfilerActivity.CUDA (or CPU ops with ids)")
    steps = len({span.step for span in spans})
    return Trace(spans, origin, file.distributedInfo.world_size, steps, meta={"file": path.name})


def _bytes(path: Path) -> bytes:
    if path.suffix != ".gz":
        if path.stat().st_size > _LARGEST:
            raise BadInput(f"trace {path} is larger than {_LARGEST >> 30} GiB: record fewer steps")
        return path.read_bytes()
    with gzip.open(path) as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise BadInput(f"trace {path} unpacks to more than {_LARGEST >> 30} GiB: record fewer steps")
    return text


def _spans(file: _File) -> list[Span]:
    events = [e for e in file.traceEvents if e.ph == "X"]
    bounds = sorted((e.ts, e.ts + e.dur, int(m.group(1))) for e in events if (m := STEP.match(e.name)))
    names = {(e.pid, e.tid): str(e.args.get("name", "")) for e in file.traceEvents if e.ph == "M" and e.name == "thread_name"}
    chosen = [e for e in events if e.cat in _DEVICE or (e.cat == "cpu_op" and "op_id" in e.args)]
    zero = min((e.ts for e in chosen), default=0.0)
    starts = sorted(begin for begin, _, _ in bounds)
    marks = _marks(events)
    return [_span(e, zero, file.distributedInfo.rank, names, bounds, starts, marks) for e in sorted(chosen, key=lambda e: e.ts)]


def _marks(events: list[_Event]) -> Marks:
    ranges = (((e.pid, e.tid), Range(e.ts, e.ts + e.dur, op)) for e in events if (op := op_of(e.name)))
    launches = ((int(e.args["correlation"]), (e.pid, e.tid), e.ts) for e in events if e.cat in _RUNTIME and "correlation" in e.args)
    return Marks(ranges, launches)


def _span(
    event: _Event,
    zero: float,
    rank: int,
    names: dict[tuple[Any, Any], str],
    bounds: list[tuple[float, float, int]],
    starts: list[float],
    marks: Marks,
) -> Span:
    args = event.args
    op_id = str(args.get("op_id", ""))
    marked = marks.op(int(args["correlation"])) if not op_id and "correlation" in args else ""
    stream = args.get("stream", event.tid)
    own_rank = int(op_id[1 : op_id.index("/")]) if op_id.startswith("r") and op_id[1 : op_id.find("/")].isdigit() else rank
    at = bisect_right(starts, event.ts) - 1
    cls = str(args.get("class", "")) or (copy_class(event.name) if event.cat == "gpu_memcpy" else kernel_class(event.name))
    kind = str(args.get("kind", "")) or ("copy" if event.cat == "gpu_memcpy" else "collective" if cls == "comm" else "compute")
    start = (event.ts - zero) * 1e-6
    return Span(
        own_rank,
        names.get((event.pid, event.tid)) or f"stream {stream}",
        op_id or marked or event.name,
        start,
        start + event.dur * 1e-6,
        kind,
        cls,
        bounds[at][2] if 0 <= at < len(bounds) else 0,
        name=str(args.get("Collective name", "")) or event.name,
        bytes=int(args.get("bytes", 0) or 0),
        flops=float(args.get("flops", 0) or 0),
        group=str(args.get("group", args.get("Process Group Name", ""))),
        source="measured",
    )
