"""Reads the SQLite file that Nsight Systems exports (`nsys export --type sqlite`).

Tables and columns are those of the exporter's documented schema: CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY and _MEMSET (start, end in
nanoseconds, streamId, correlationId, deviceId, globalPid), _GRAPH_TRACE (CUDA graphs, whose kernels stand in no table unless they were
recorded with --cuda-graph-trace=node), CUPTI_ACTIVITY_KIND_RUNTIME (globalTid), NVTX_EVENTS (start, end, text or
textId, globalTid) and StringIds. Each device on which a process ran kernels is a rank. The file is opened read-only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sim.imported.marks import Marks, Range, op_of
from sim.imported.names import GRAPH, copy_class, kernel_class, kind_of
from sim.imported.steps import Mark, Steps
from sim.trace import Span, Trace
from topologies.errors import BadInput

_COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
"""CUpti_ActivityMemcpyKind."""
_PLACE = ("globalPid", "deviceId")
_OWN = 24
"""Bits of a thread's global number that tell it from others of its process; globalPid has zeros there."""
_MOST = 50_000_000
"""Rows that are read of one table."""


def read_nsys(path: Path) -> Trace:
    """Kernels and copies as spans of one lane per stream. Raises `BadInput` for a file that is no such export."""
    if not path.is_file():
        raise BadInput(f"trace {path} {'is no file' if path.exists() else 'does not exist'}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as file:
            spans = _spans(file)
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"trace {path} is no export of Nsight Systems ({error}): make one with nsys export --type sqlite") from None
    if not spans:
        raise BadInput(f"trace {path} holds no kernel: record with nsys profile --trace=cuda,nvtx")
    ranks, steps = ({getattr(span, name) for span in spans} for name in ("rank", "step"))
    return Trace(spans, "imported", len(ranks), len(steps), meta={"file": path.name})


def _spans(file: sqlite3.Connection) -> list[Span]:
    texts = dict(_rows(file, "StringIds", "id", "value"))
    ranges = [(thread, a, b, str(text or texts.get(number, ""))) for thread, a, b, text, number in _ranges(file) if b is not None]
    rows = sorted(_device(file, texts), key=lambda row: row[0])
    apart = any(process for *_, (process, _) in rows)
    begun: dict[int, list[Mark]] = {}
    for thread, start, end, text in ranges:
        if mark := Mark.of(text, start, end):
            begun.setdefault(_process(thread, apart), []).append(mark)
    steps = {process: Steps(line) for process, line in begun.items()}
    marked = ((thread, Range(a, b, op)) for thread, a, b, text in ranges if (op := op_of(text)))
    calls = _rows(file, "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "globalTid", "correlationId")
    marks = Marks(marked, (((_process(thread, apart), n), thread, at) for at, thread, n in calls))
    ranks = _ranks(rows)
    zero = rows[0][0] if rows else 0
    found = []
    for start, end, stream, number, name, kind, cls, size, place in rows:
        own, launched = steps.get(place[0], Steps(())), marks.launched((place[0], number))
        if launched is not None and own.after(launched):
            continue
        found.append(
            Span(
                ranks[place], f"stream {stream}", marks.op((place[0], number)) or name, (start - zero) * 1e-9, (end - zero) * 1e-9,
                kind_of(cls) if kind == "copy" else kind, cls,
                own.of(start if launched is None else launched), name=name, bytes=int(size or 0), source="measured",
                issued=-1.0 if launched is None else max(0.0, (launched - zero) * 1e-9),
            )
        )  # fmt: skip
    return found


def _process(thread: int | None, apart: bool) -> int:
    """Whose thread it is: the upper bits of its global number. 0 in an export that does not tell processes `apart`."""
    return int(thread or 0) >> _OWN if apart else 0


def _ranks(rows: list[tuple[Any, ...]]) -> dict[tuple[int, int], int]:
    """The rank of each device of each process: those that ran kernels, in order. What only copied belongs to its process's first."""
    ran = sorted({row[-1] for row in rows if row[5] != "copy"})
    first = {process: at for at, (process, _) in reversed(list(enumerate(ran)))}
    return {row[-1]: first.get(row[-1][0], 0) for row in rows} | {place: at for at, place in enumerate(ran)}


def _ranges(file: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    return _rows(file, "NVTX_EVENTS", "globalTid", "start", "end", "text", "textId")


def _device(file: sqlite3.Connection, texts: dict[Any, str]) -> Iterator[tuple[Any, ...]]:
    """(start, end, stream, correlation, name, kind, class, bytes, (process, device)) of what ran on the devices."""
    columns = ("globalPid", "deviceId", "start", "end", "streamId", "correlationId")
    for process, device, *when, text in _rows(file, "CUPTI_ACTIVITY_KIND_KERNEL", *columns, "demangledName"):
        name = texts.get(text, str(text))
        cls = kernel_class(name)
        yield *when, name, "collective" if cls == "comm" else "compute", cls, 0, (process >> _OWN, device)
    for process, device, *when, how, size in _rows(file, "CUPTI_ACTIVITY_KIND_MEMCPY", *columns, "copyKind", "bytes"):
        name = _COPIES.get(how, f"Memcpy kind {how}")
        yield *when, name, "copy", copy_class(name), size, (process >> _OWN, device)
    for process, device, *when, size in _rows(file, "CUPTI_ACTIVITY_KIND_MEMSET", *columns, "bytes"):
        yield *when, "Memset", "compute", "elementwise", size, (process >> _OWN, device)
    for process, device, *when, graph in _rows(file, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *columns, "graphId"):
        yield *when, f"CUDA graph {graph}", "compute", GRAPH, 0, (process >> _OWN, device)


def _rows(file: sqlite3.Connection, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    """The columns of a table, 0 where a place is not told, as in old exports; nothing where the export lacks the table."""
    there = {name for _, name, *_ in file.execute(f'PRAGMA table_info("{table}")')}
    if not there:
        return iter(())
    wanted = (name if name not in _PLACE else f"IFNULL({name}, 0)" if name in there else "0" for name in columns)
    return iter(file.execute(f'SELECT {", ".join(wanted)} FROM "{table}" LIMIT {_MOST}'))
