"""A folder with a trace for each rank, as torch.profiler's tensorboard_trace_handler writes it and HTA reads it."""

from __future__ import annotations

import statistics
from pathlib import Path

from msgspec.structs import replace

from sim.imported.kineto import read_trace
from sim.trace import Span, Trace
from topologies.errors import BadInput


def trace_files(folder: Path) -> list[Path]:
    """The files of a folder whose names end in .json or .json.gz."""
    return sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")) and path.is_file())


def read_folder(folder: Path) -> Trace:
    """Reads all ranks into one trace with the steps that every rank recorded. Raises `BadInput` for an unusable file, or two files of one
    rank."""
    files = trace_files(folder)
    if not files:
        raise BadInput(f"{folder} holds no trace (*.json, *.json.gz)")
    traces, seen = [], dict[int, Path]()
    for path in files:
        trace = read_trace(path)
        for rank in trace.ranks:
            if rank in seen:
                raise BadInput(
                    f"{seen[rank]} and {path} are both of rank {rank}, by their distributedInfo: leave one file of each rank in the folder"
                )
            seen[rank] = path
        traces.append(trace)
    return _merged(traces, folder)


def _merged(traces: list[Trace], folder: Path) -> Trace:
    first = traces[0]
    steps = set.intersection(*({span.step for span in trace.spans} for trace in traces))
    if not steps:
        raise BadInput(f"the traces in {folder} have no step in common: record the same steps on each rank")
    spans = [span for trace in traces for span in _beside(first, trace, steps)]
    earliest = min(span.start for span in spans) if "origin" not in first.meta else 0.0
    unread = sum(int(trace.meta.get("unread", 0)) for trace in traces)
    return replace(
        first,
        spans=sorted((_moved(span, -earliest) for span in spans), key=lambda span: span.start),
        world=max(len({span.rank for span in spans}), *(trace.world for trace in traces)),
        steps=len(steps),
        memory={rank: used for trace in traces for rank, used in trace.memory.items()},
        meta=first.meta | {"file": folder.name} | ({"unread": str(unread)} if unread else {}),
    )


def _beside(first: Trace, trace: Trace, steps: set[int]) -> list[Span]:
    """Spans of `steps`, shifted to the clock of the first trace, because each file has its own zero and hosts' clocks differ. All spans
    shift by the same time (the median over steps), so that steps keep their length. StepTwin's own traces have one clock and are not
    shifted."""
    if "origin" in trace.meta:
        return [span for span in trace.spans if span.step in steps]
    ours, theirs = _begins(first), _begins(trace)
    late = statistics.median(theirs[step] - ours[step] for step in steps)
    return [_moved(span, -late) for span in trace.spans if span.step in steps]


def _begins(trace: Trace) -> dict[int, float]:
    begins: dict[int, float] = {}
    for span in trace.spans:
        begins[span.step] = min(span.start, begins.get(span.step, span.start))
    return begins


def _moved(span: Span, by: float) -> Span:
    issued = max(0.0, span.issued + by) if span.issued >= 0 else span.issued
    return replace(span, start=span.start + by, end=span.end + by, issued=issued) if by else span
