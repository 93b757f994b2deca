"""The files (or database) that a run reads, written before it starts. No torch here."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sim.plan import Plan
from topologies.errors import RunFailed
from topologies.units import show_size

POOL = 128
"""Different samples that are stored; longer runs see them again."""


def write_samples(plan: Plan, folder: Path) -> None:
    """Fills `folder` with what the plan reads. Raises `RunFailed` when the disk is full."""
    if plan.data.source == "memory" or not plan.data.sample:
        return
    block = os.urandom(plan.data.sample)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if plan.data.source == "database":
            _write_database(folder / "samples.sqlite", block)
        else:
            for index in range(POOL):
                part = folder / f"{index}.part"
                part.write_bytes(block)
                part.replace(folder / f"{index}.bin")
    except (OSError, sqlite3.Error) as error:
        raise RunFailed(f"cannot write {POOL} samples of {show_size(plan.data.sample)} into {folder}: {error}") from None


def _write_database(path: Path, block: bytes) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL)")
        database.executemany("INSERT INTO samples VALUES (?, ?)", ((index, block) for index in range(POOL)))
    database.close()
