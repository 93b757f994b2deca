"""The files (or database) that a run reads, written before it starts. No torch here."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from executor.ranks.environment import place
from sim.files.runs import write_atomic
from sim.plan import Plan
from topologies.errors import RunFailed
from topologies.units import show_size

POOL = 128
"""Number of different samples that are stored; longer runs read them again."""


def write_samples(plan: Plan, folder: Path) -> None:
    """Fills `folder` with the samples that the plan reads; of ranks that a launcher started, only the first of each host does so. Every
    file appears whole or not at all, as hosts may share the folder. Raises `RunFailed` when the disk is full.
    """
    at = place()
    if not plan.data.stored or not plan.data.sample or (at is not None and at.local_rank):
        return
    block = os.urandom(plan.data.sample)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if plan.data.source == "database":
            _write_database(folder / "samples.sqlite", block)
        else:
            for index in range(POOL):
                write_atomic(folder / f"{index}.bin", block)
    except (OSError, sqlite3.Error) as error:
        raise RunFailed(f"cannot write {POOL} samples of {show_size(plan.data.sample)} into {folder}: {error}") from None


def _write_database(path: Path, block: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
        made = Path(beside) / path.name
        with closing(sqlite3.connect(made)) as database, database:
            database.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL)")
            database.executemany("INSERT INTO samples VALUES (?, ?)", ((index, block) for index in range(POOL)))
        made.replace(path)
