"""Reads measured traces: those of torch.profiler (Kineto) and of Nsight Systems (SQLite)."""

from __future__ import annotations

from pathlib import Path

from sim.trace import Trace
from topologies.errors import BadInput

_DATABASES = (".sqlite", ".db")


def read_measured(path: str | Path) -> Trace:
    """Reads a .json, .json.gz, .sqlite or .db file, or a folder with one trace for each rank. Raises `BadInput`, which says what to export
    instead."""
    path = Path(path)
    if path.is_dir() and path.suffix not in _DATABASES:
        from sim.imported.folder import read_folder

        return read_folder(path)
    if path.suffix in _DATABASES:
        from sim.imported.nsys import read_nsys

        return read_nsys(path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise BadInput(f"{path} is Nsight Systems' own format. Export it: nsys export --type sqlite {path}")
    from sim.imported.kineto import read_trace

    return read_trace(path)
