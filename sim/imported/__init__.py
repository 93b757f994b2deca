"""Traces that were measured elsewhere: torch.profiler's (Kineto) and Nsight Systems' (SQLite)."""

from __future__ import annotations

from pathlib import Path

from sim.trace import Trace
from topologies.errors import BadInput


def read_measured(path: str | Path) -> Trace:
    """The trace in a .json, .json.gz, .sqlite or .db file. Raises `BadInput` that says what to export instead."""
    path = Path(path)
    if path.suffix in (".sqlite", ".db"):
        from sim.imported.nsys import read_nsys

        return read_nsys(path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise BadInput(f"{path} is Nsight Systems' own format. Export it: nsys export --type sqlite {path}")
    from sim.imported.kineto import read_trace

    return read_trace(path)
