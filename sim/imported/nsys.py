"""Reads the SQLite file that Nsight Systems exports (`nsys export --type sqlite`).

Tables and columns are those of the exporter's documented schema: CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY and _MEMSET (start, end in
nanoseconds, streamId, correlationId), CUPTI_ACTIVITY_KIND_RUNTIME (globalTid), NVTX_EVENTS (start, end, text or textId, globalTid)
and StringIds. The file is opened read-only.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sim.imported.marks import Marks, Range, op_of
from sim.imported.names import STEP, copy_class, kernel_class
from sim.trace import Span, Trace
from topologies.errors import BadInput

_COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
"""CUpti_ActivityMemcpyKind."""
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
    return Trace(spans, "imported", 1, len({span.step for span in spans}), meta={"file": path.name})


def _spans(file: sqlite3.Connection) -> list[Span]:
    texts = dict(_rows(file, "StringIds", "id", "value"))
    ranges = [(thread, a, b, str(text or texts.get(number, ""))) for thread, a, b, text, number in _ranges(file) if b is not None]
    steps = sorted((float(a), int(hit.group(1))) for _, a, _, text in ranges if (hit := STEP.match(text)))
    marked = ((thread, Range(a, b, op)) for thread, a, b, text in ranges if (op := op_of(text)))
    launches = ((n, thread, at) for at, thread, n in _rows(file, "CUPTI_ACTIVITY_KIND_RUNTIME", "start", "globalTid", "correlationId"))
    marks = Marks(marked, launches)
    rows = sorted(_device(file, texts), key=lambda row: row[0])
    zero = rows[0][0] if rows else 0
    starts = [start for start, _ in steps]
    found = []
    for start, end, stream, number, name, kind, cls, size in rows:
        at = bisect_right(starts, start) - 1
        found.append(
            Span(
                0, f"stream {stream}", marks.op(number) or name, (start - zero) * 1e-9, (end - zero) * 1e-9, kind, cls,
                steps[at][1] if at >= 0 else 0, name=name, bytes=int(size or 0), source="measured",
            )
        )  # fmt: skip
    return found


def _ranges(file: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    return _rows(file, "NVTX_EVENTS", "globalTid", "start", "end", "text", "textId")


def _device(file: sqlite3.Connection, texts: dict[Any, str]) -> Iterator[tuple[Any, ...]]:
    """(start, end, stream, correlation, name, kind, class, bytes) of what ran on the device."""
    kernels = _rows(file, "CUPTI_ACTIVITY_KIND_KERNEL", "start", "end", "streamId", "correlationId", "demangledName")
    for start, end, stream, number, text in kernels:
        name = texts.get(text, str(text))
        cls = kernel_class(name)
        yield start, end, stream, number, name, "collective" if cls == "comm" else "compute", cls, 0
    for start, end, stream, number, how, size in _rows(
        file, "CUPTI_ACTIVITY_KIND_MEMCPY", "start", "end", "streamId", "correlationId", "copyKind", "bytes"
    ):
        name = _COPIES.get(how, f"Memcpy kind {how}")
        yield start, end, stream, number, name, "copy", copy_class(name), size
    for start, end, stream, number, size in _rows(file, "CUPTI_ACTIVITY_KIND_MEMSET", "start", "end", "streamId", "correlationId", "bytes"):
        yield start, end, stream, number, "Memset", "compute", "elementwise", size


def _rows(file: sqlite3.Connection, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    """The columns of a table; nothing where the export lacks the table."""
    if file.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone() is None:
        return iter(())
    return iter(file.execute(f'SELECT {", ".join(columns)} FROM "{table}" LIMIT {_MOST}'))
