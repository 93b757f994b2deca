"""Traces as files: Kineto-shaped Chrome JSON, the form that Perfetto and Meta's HTA read.

One process per rank, one thread per lane; `ProfilerStep#n`, `cpu_op`, `cuda_runtime` launches paired with kernels by
`correlation` (of the whole trace) and by arrows (`ac2g`), NCCL kernels (on CPU hosts gloo's work, under torch.profiler's names) with their collective's fields, `distributedInfo` filled
in, times in microseconds from 0.
Events of one thread nest: Perfetto drops those that overlap otherwise. So a step is marked where its training thread works on it, as
torch.profiler does, though the device may be a step behind, and again on each stream (`gpu_user_annotation`) where that works on it; and what overlapped on one lane (gloo runs two collectives at once) has rows.
Keys are sorted and times have three decimals, so that equal traces are equal files.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from sim.files.nccl import Group, Wires, collective_args, group_of, kernel_name, word_in
from sim.files.runs import write_atomic
from sim.program import EVENTS, HOST, MEETING, ORDERS, PINNER
from sim.trace import Span, Trace

_OWN = re.compile(r"r\d+/s\d+/")
"""Ids of ops of a program, not of kernels that others recorded."""
_THREADS = ("loader", PINNER, "autograd")
"""Lanes that are CPU threads, besides the training thread's own."""


Part = tuple[list[dict[str, Any]], dict[str, Group]]
"""One rank's events, and its groups by name."""


def write_run(trace: Trace, folder: Path, wires: Wires | None = None) -> Path:
    """A run's trace: all ranks in one file, which Perfetto and `compare` open, and in `hta` a folder with a file for each, which HTA takes (one file
    is one rank there, whatever is in it). `wires`: what the plan says of its collectives. Returns the one file."""
    parts, own = _parts(trace, trace.ranks, wires), folder / "hta" / trace.origin
    names = {rank: f"rank{rank}.json.gz" for rank in parts}
    for old in own.glob("rank*.json.gz"):
        if old.name not in names.values():
            old.unlink()  # of another plan, in the same folder
    for rank, part in parts.items():
        _write(_document(trace, {rank: part}), own / names[rank])
    return _write(_document(trace, parts), folder / f"{trace.origin}.json.gz")


def write_trace(trace: Trace, path: Path) -> Path:
    """Writes all ranks as one file. Atomic; gzip when the name ends in .gz."""
    return _write(to_kineto(trace), path)


def _write(document: dict[str, Any], path: Path) -> Path:
    text = json.dumps(document | {"traceEvents": None}, sort_keys=True, separators=(",", ": "))
    # HTA finds the rank by `"rank": 0`, with the blank. The events are nearly all of a file, and encoded eight times as fast without.
    before, after = text.rsplit('"traceEvents": null', 1)
    whole = b"".join((before.encode(), b'"traceEvents": ', msgspec.json.encode(document["traceEvents"], order="sorted"), after.encode()))
    # mtime 0: equal traces give equal bytes.
    return write_atomic(path, gzip.compress(whole, 6, mtime=0) if path.suffix == ".gz" else whole)


def to_kineto(trace: Trace, rank: int | None = None, wires: Wires | None = None) -> dict[str, Any]:
    """The trace as Kineto's JSON object. `rank` None: every rank, each a process of its own. `wires`: what the plan says of its collectives."""
    return _document(trace, _parts(trace, trace.ranks if rank is None else [rank], wires))


def _parts(trace: Trace, ranks: Iterable[int], wires: Wires | None) -> dict[int, Part]:
    """What each of some ranks does."""
    lines: dict[int, list[Span]] = {number: [] for number in trace.ranks}
    for span in trace.spans:
        lines[span.rank].append(span)
    first = dict(zip(lines, accumulate(map(len, lines.values()), initial=1), strict=False))
    found: dict[int, Part] = {}
    for number in ranks:
        groups: dict[str, Group] = {}
        spans = sorted(lines.get(number, []), key=lambda s: (s.start, s.end))
        found[number] = _rank_events(trace, number, spans, first.get(number, 1), groups, wires or Wires()), groups
    return found


def _document(trace: Trace, parts: dict[int, Part]) -> dict[str, Any]:
    """Kineto's JSON object of some ranks, of which it names the first."""
    groups = sorted({group for _, own in parts.values() for group in own.values()})
    backend = trace.backend
    config = "cuda:nccl" if backend == "nccl" else f"cpu:{backend}"
    info = {
        "backend": backend,
        "rank": next(iter(parts), 0),
        "world_size": trace.world,
        "pg_count": len(groups),
        "pg_config": [_group(group, config) for group in groups],
        **({"nccl_version": ""} if backend == "nccl" else {}),
    }
    meta = {f"steptwin.{key}": value for key, value in trace.meta.items()}
    own = {"origin": trace.origin, "steps": trace.steps, "reported": trace.reported}
    own |= {"weight": {str(number): weight for number, weight in trace.weight.items()}}
    own |= {"timed": trace.timed} if trace.timed else {}
    return {
        "steptwin": own,
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": info,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceName": f"{trace.origin}.json",
        "traceEvents": [event for events, _ in parts.values() for event in events],
        **meta,
    }


def _group(group: Group, config: str) -> dict[str, Any]:
    found: dict[str, Any] = {"pg_name": group.name, "pg_desc": group.name, "backend_config": config, "pg_size": group.size}
    return found | ({"ranks": list(group.ranks)} if group.ranks else {})


def _rank_events(trace: Trace, rank: int, spans: list[Span], first: int, groups: dict[str, Group], wires: Wires) -> list[dict[str, Any]]:
    """Events of one rank. `spans`: its own, in order of start; `first`: from where they are numbered, as arrows of one file need numbers of their own."""
    lanes = sorted({span.lane for span in spans if span.lane != HOST})
    workers = {lane: 1000 + index for index, lane in enumerate(lane for lane in lanes if lane.startswith(_THREADS))}
    streams, names = _streams([span for span in spans if span.lane != HOST and span.lane not in workers])
    events: list[dict[str, Any]] = [_meta(rank, 0, "process_name", {"name": f"rank {rank} ({trace.origin})"})]
    events.append(_meta(rank, 1, "thread_name", {"name": HOST}))
    names |= {tid: lane for lane, tid in workers.items()}
    events += [_meta(rank, tid, "thread_name", {"name": name}) for tid, name in names.items()]
    events += [_event("user_annotation", f"ProfilerStep#{step}", rank, 1, begin, end) for step, begin, end in _windows(spans)]
    events += _device_marks(rank, spans, streams) if trace.origin != "imported" else []
    for number, span in enumerate(spans, first):
        if span.lane != HOST and span.lane not in workers:
            if span.kind not in ORDERS:
                recorded = trace.origin == "imported" and not _OWN.match(span.id)
                of = _recorded_events if recorded else _device_events
                events += of(span, rank, streams[id(span)], number, groups, trace.backend, wires)
        elif span.kind not in EVENTS:
            tid = workers.get(span.lane, 1)
            if span.launch > 0:  # a message on the thread itself
                events.append(_launch(span, rank, {}))
            events.append(_event("cpu_op", span.id.split("/", 2)[-1], rank, tid, span.start, span.end, _args(span)))
    for time, used in trace.memory.get(rank, []):
        events.append({"ph": "C", "name": "memory", "pid": rank, "tid": 0, "ts": _us(time), "args": {"bytes": used}})
    return events


def _windows(spans: list[Span]) -> list[tuple[int, float, float]]:
    """(step, begin, end) of the steps of one rank: from the training thread's first op of a step to its first of the next."""
    begins: dict[int, float] = {}
    for span in spans:
        own = span.thread == HOST and (span.lane == HOST or span.issued >= 0)
        if own and span.kind not in EVENTS:
            at = span.issued if span.launch > 0 or span.lane != HOST else span.start
            begins[span.step] = min(at, begins.get(span.step, at))
    if not begins:  # nothing is known of the threads
        for span in spans:
            begins.setdefault(span.step, span.start)
    steps = sorted(begins)
    last = max((span.end for span in spans if span.thread == HOST), default=0.0)
    ends = [begins[step] for step in steps[1:]] + [last]
    return [(step, begins[step], end) for step, end in zip(steps, ends, strict=True)]


def _device_marks(rank: int, spans: list[Span], streams: dict[int, int]) -> list[dict[str, Any]]:
    """The steps on each stream of one rank: from its first op of a step to its last; cut where another step begins in between. `spans`: in order of
    start."""
    found: dict[int, dict[int, tuple[float, float]]] = {}
    for span in spans:
        if id(span) in streams:
            steps = found.setdefault(streams[id(span)], {})
            begin, end = steps.get(span.step, (span.start, span.end))
            steps[span.step] = begin, max(end, span.end)
    events = []
    for stream, steps in sorted(found.items()):
        begins = [begin for begin, _ in steps.values()]
        for (step, (begin, end)), after in zip(steps.items(), [*begins[1:], math.inf], strict=True):
            events.append(_event("gpu_user_annotation", f"ProfilerStep#{step}", rank, stream, begin, min(end, after)))
    return events


def _streams(spans: list[Span]) -> tuple[dict[int, int], dict[int, str]]:
    """Stream of each op (by its object), and the streams' names: one for each lane, more where ops of a lane overlap. `spans`: in order of start."""
    rows: dict[str, list[float]] = {}
    places: dict[int, tuple[str, int]] = {}
    for span in spans:
        free = rows.setdefault(span.lane, [0.0])
        if span.kind in ORDERS:
            continue
        row = next((at for at, until in enumerate(free) if _us(until) <= _us(span.start)), len(free))
        free[row:] = [span.end, *free[row + 1 :]]
        places[id(span)] = span.lane, row
    listed = [(lane, row) for lane in sorted(rows) for row in range(len(rows[lane]))]
    numbers = {place: 7 + index for index, place in enumerate(listed)}
    names = {number: lane if row == 0 else f"{lane} ({row + 1})" for (lane, row), number in numbers.items()}
    return {op: numbers[place] for op, place in places.items()}, names


def _device_events(
    span: Span, rank: int, stream: int, number: int, groups: dict[str, Group], backend: str, wires: Wires
) -> list[dict[str, Any]]:
    args = _args(span) | {"stream": stream, "device": rank, "correlation": number}
    name, category = span.id.split("/", 2)[-1], "kernel"
    if span.kind in MEETING:
        name = kernel_name(span, wires) if backend == "nccl" else f"{backend}:{span.name or span.kind}"
        args |= collective_args(span, _met(span, groups, wires), wires)
    elif span.kind == "copy":
        category = "gpu_memcpy"
        if span.bytes and span.seconds > 0:
            args["memory bandwidth (GB/s)"] = round(span.bytes / span.seconds / 1e9, 6)
        name = "Memcpy DtoH (Device -> Pinned)" if "d2h" in span.lane else "Memcpy HtoD (Pinned -> Device)"
    return _launched(span, rank, number, _event(category, name, rank, stream, span.start, span.end, args))


def _met(span: Span, groups: dict[str, Group], wires: Wires) -> Group:
    """The group of a span, which is found once for all of a rank's."""
    if span.group not in groups:
        groups[span.group] = group_of(span, wires)
    return groups[span.group]


def _launched(span: Span, rank: int, number: int, work: dict[str, Any]) -> list[dict[str, Any]]:
    """What a device does, behind its launch; an arrow between them where it is known when that was."""
    call = _launch(span, rank, {"correlation": number})
    return [call, work, *(_arrow(number, call, work) if span.issued >= 0 else [])]


def _arrow(number: int, call: dict[str, Any], work: dict[str, Any]) -> list[dict[str, Any]]:
    """Perfetto draws it from a launch to what was launched, when one of them is chosen; it binds to what began last, and so stands after both."""
    ends = (({"ph": "s"}, call), ({"ph": "f", "bp": "e"}, work))
    return [{**end, "cat": "ac2g", "name": "ac2g", "id": number} | {key: at[key] for key in ("pid", "tid", "ts")} for end, at in ends]


def _recorded_events(
    span: Span, rank: int, stream: int, number: int, groups: dict[str, Group], backend: str, wires: Wires
) -> list[dict[str, Any]]:
    """What others recorded, under its own name, and its launch where that was recorded."""
    args = _args(span) | {"stream": stream, "device": rank, "correlation": number, "step": span.step}
    name = span.name or span.id
    if span.kind in MEETING:
        what = word_in(name)
        told = collective_args(msgspec.structs.replace(span, name=what), _met(span, groups, wires), wires)
        args |= {key: value for key, value in told.items() if what or key != "Collective name"}
    category = "gpu_memcpy" if name.startswith(("Memcpy", "Copy")) else "gpu_memset" if name.startswith("Memset") else "kernel"
    work = _event(category, name, rank, stream, span.start, span.end, args)
    return _launched(span, rank, number, work) if span.issued >= 0 else [work]


def _launch(span: Span, rank: int, args: dict[str, Any]) -> dict[str, Any]:
    issued = span.issued if span.issued >= 0 else span.start
    call = "cudaMemcpyAsync" if span.kind == "copy" else "cudaMemsetAsync" if span.name.startswith("Memset") else "cudaLaunchKernel"
    return _event("cuda_runtime", call, rank, 1, issued, issued + span.launch, args | {"op_id": span.id})


def _args(span: Span) -> dict[str, Any]:
    args: dict[str, Any] = {"op_id": span.id, "class": span.cls, "kind": span.kind}
    for key in ("bytes", "flops", "group", "source"):
        if getattr(span, key):
            args[key] = getattr(span, key)
    if span.wait:
        args["wait_us"] = _us(span.wait)
    if span.exposed:
        args["exposed_us"] = _us(span.exposed)
    if span.thread != HOST:
        args["thread"] = span.thread
    return args


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _meta(pid: int, tid: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0.0, "args": args}


def _event(cat: str, name: str, pid: int, tid: int, start: float, end: float, args: dict[str, Any] | None = None) -> dict[str, Any]:
    begin = _us(start)
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": begin,
        "dur": max(0.0, round(_us(end) - begin, 3)),
        "args": args or {},
    }
