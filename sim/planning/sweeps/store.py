"""Results of a sweep in one SQLite file, as they come: a killed sweep loses nothing and repeats nothing.

A row is written in one transaction when its plan is done. The header names the version and the space, so that a
file of another sweep or another version is refused, not mixed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sim.files.machinefile import changed_words
from sim.memory.report import Fill
from sim.planning.sweeps.space import edits_of, settings_of
from topologies.errors import BadInput

VERSION = 6
_SHOWN = 6
"""Differences that a refusal names."""
_NOTHING = object()
OUTCOMES = ("done", "memory", "bound", "refused", "failed")
_COLUMNS = "key TEXT PRIMARY KEY, outcome TEXT NOT NULL, reason TEXT NOT NULL, step_time REAL, memory INTEGER, mfu REAL, rate REAL, gpus INTEGER, cost REAL, detail TEXT NOT NULL, flops REAL, seq INTEGER NOT NULL"


class Row(msgspec.Struct, frozen=True):
    """One plan of a sweep. `outcome`: done | memory (does not fit) | bound (cannot be better than another) | refused (no such plan) |
    failed (a fault of ours)."""

    key: str
    outcome: str
    reason: str = ""
    step_time: float | None = None
    """Seconds."""
    memory: int | None = None
    """Peak bytes on a device."""
    mfu: float | None = None
    rate: float | None = None
    """Samples per second."""
    gpus: int | None = None
    cost: float | None = None
    """Money per million `unit`, when prices are given."""
    detail: str = "{}"
    """JSON: where the step goes (`breakdown`, if it was asked for), whether it was simulated `whole`, and how a device is filled (`fill`)."""
    flops: float | None = None
    """Model FLOPs of a sample."""
    seq: int = 1
    """Tokens of a sample; 1 where it is no sequence."""

    @property
    def on(self) -> str:
        """The machine."""
        return self.key.rpartition(" on=")[2]

    @property
    def edits(self) -> tuple[str, ...]:
        """What the plan's point of the space changes about the machine."""
        return edits_of(settings_of(self.key))

    @property
    def machine(self) -> str:
        """The machine in words."""
        return changed_words(self.on, self.edits)

    @property
    def unit(self) -> str:
        """What is paid for: tokens, or samples that are no sequences of them."""
        return "tokens" if self.seq > 1 else "samples"

    @property
    def effort(self) -> float:
        """GPU-seconds of a model FLOP: what plans are ranked by. Among plans that train the same that is their time per sample and GPU; a
        shallower model or shorter sequences are no better for the less that a sample of them takes."""
        return (self.gpus or 1) / (self.rate or 1e-30) / (self.flops or 1.0)

    @property
    def worth(self) -> tuple[float, float]:
        """What the best are sorted by: money for a model FLOP where prices are known, then `effort`. On one machine the two say the same."""
        return (self.cost or 0.0) * self.seq / (self.flops or 1.0), self.effort

    @property
    def fill(self) -> Fill | None:
        """What it takes of the device that it fills most, where it fits."""
        told = json.loads(self.detail).get("fill")
        return msgspec.convert(told, Fill) if told else None

    @property
    def nearly_full(self) -> bool:
        """It fits, and may fail all the same (`sim.memory.report.Fill`)."""
        return self.fill is not None and self.fill.nearly_full

    @property
    def whole(self) -> bool:
        """Was it simulated whole?"""
        return bool(json.loads(self.detail).get("whole"))


_ADD = "INSERT OR REPLACE INTO results VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"


class Store:
    """A results file, open for appending. Use as a context manager."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        if path.suffix.lower() in (".parquet", ".pq", ".csv", ".json", ".html", ".toml"):
            raise BadInput(
                f"results are kept in SQLite, which {path.name} would not be: call it {path.stem}.sqlite. to_frame() gives pandas' formats"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(path)
            try:
                self._own()
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("CREATE TABLE IF NOT EXISTS header (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
                self._db.execute(f"CREATE TABLE IF NOT EXISTS results ({_COLUMNS})")
                self._check(header | {"version": VERSION})
            except Exception:
                self._db.close()  # a file that is refused is not kept locked
                raise
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: BaseException | str) -> BadInput:
        return BadInput(f"results file {self.path} cannot be used ({error}): move it away or name another with --out")

    def _own(self) -> None:
        """Raises `BadInput` where the file is a database of something else: nothing is written into it."""
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        columns = [name for _, name, *_ in self._db.execute("PRAGMA table_info(results)")]
        ours = [column.split()[0] for column in _COLUMNS.split(", ")]
        if tables and not (tables <= {"header", "results"} and columns in ([], ours, ours[:-1], ours[:-2])):  # earlier versions had fewer
            raise BadInput(f"results file {self.path} is a database of something else: name another with --out")

    def _check(self, header: dict[str, Any]) -> None:
        found = dict(self._db.execute("SELECT name, value FROM header"))
        for name, value in header.items():
            text = json.dumps(value, sort_keys=True)
            if name in found and found[name] != text:
                raise BadInput(
                    f"results file {self.path} holds a sweep of another {name} ({_differences(found[name], value)}): "
                    "name another file with --out, or delete this one"
                )
            self._db.execute("INSERT OR IGNORE INTO header VALUES (?, ?)", (name, text))
        self._db.commit()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Raises `BadInput` for a file that turned out to be unusable meanwhile: damaged further on, locked, or on a disk that is full."""
        self._db.close()
        if error is not None and kind in (sqlite3.DatabaseError, sqlite3.OperationalError):
            raise self._unusable(error) from None

    def reprice(self, prices: dict[str, float], priced: Callable[[Row], Row]) -> None:
        """What was kept at other prices costs what `priced` says; what a bound has decided at those is open again."""
        text = json.dumps(prices, sort_keys=True)
        if self._db.execute("SELECT value FROM header WHERE name = 'prices'").fetchone() == (text,):
            return
        rows = [msgspec.structs.astuple(priced(row)) for row in self.rows() if row.outcome == "done"]
        with self._db:
            self._db.execute("DELETE FROM results WHERE outcome = 'bound'")
            self._db.executemany(_ADD, rows)
            self._db.execute("INSERT OR REPLACE INTO header VALUES ('prices', ?)", (text,))

    def done(self, every: str = "") -> set[str]:
        """Keys that need not run again, where `every` plan that fits is simulated ("short" or "whole"), or the promising alone ("")."""
        again = ("failed", "bound") if every else ("failed",)
        found = [row for row in self.rows() if row.outcome not in again]
        return {row.key for row in found if row.outcome != "done" or every != "whole" or row.whole}

    def add(self, rows: Iterable[Row]) -> None:
        """Writes rows in one transaction."""
        with self._db:
            self._db.executemany(_ADD, [msgspec.structs.astuple(r) for r in rows])

    def rows(self) -> Iterator[Row]:
        """All rows, fastest first; those without a step time last."""
        query = "SELECT * FROM results ORDER BY step_time IS NULL, step_time, key"
        for values in self._db.execute(query):
            yield self._read(dict(zip(Row.__struct_fields__, values, strict=True)))

    def _read(self, cells: dict[str, Any]) -> Row:
        """Raises `BadInput` for a cell that somebody has edited into what is none."""
        try:
            row = msgspec.convert(cells, Row)
            if row.outcome not in OUTCOMES:
                raise ValueError(f"outcome {row.outcome!r} is none of {', '.join(OUTCOMES)}")
            if row.outcome == "done" and not all(0 < (figure or 0) < math.inf for figure in (row.step_time, row.rate, row.gpus)):
                raise ValueError("step_time, rate and gpus of a plan that is done must be finite and above zero")
            if row.flops is not None and not 0 < row.flops < math.inf:
                raise ValueError("flops must be finite and above zero")
            if row.seq < 1:
                raise ValueError("seq must be at least 1")
            if not isinstance(json.loads(row.detail), dict):
                raise ValueError("detail must be a JSON object")
            _ = row.fill
        except (ValueError, RecursionError) as error:  # msgspec's and json's are such; the other: an object in an object, a thousand deep
            raise self._unusable(f"row {str(cells['key'])[:80]!r}: {error}") from None
        return row


def _differences(kept: str, asked: object) -> str:
    """The keys that differ between a header's text and what is asked for, each as `key is A there, B here`; the first few."""
    try:
        there = dict(_leaves(json.loads(kept)))
    except (ValueError, RecursionError):
        there = {"": kept}
    here = dict(_leaves(json.loads(json.dumps(asked))))
    other = [key for key in {**there, **here} if there.get(key, _NOTHING) != here.get(key, _NOTHING)]
    told = [f"{key}{' is ' if key else ''}{_brief(there, key)} there, {_brief(here, key)} here" for key in other[:_SHOWN]]
    return "; ".join(told) + (f"; {len(other) - _SHOWN} more" if len(other) > _SHOWN else "")


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Values of nested tables by dotted path."""
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{path}.{key}" if path else key)


def _brief(tree: dict[str, Any], key: str) -> str:
    return json.dumps(tree[key])[:60] if key in tree else "not said"


def default_file(name: str, header: dict[str, Any]) -> Path:
    """Where a sweep keeps its results when nobody says: a file for each plan and space, so that the same sweep goes on and another one
    has its own."""
    mark = hashlib.sha256(json.dumps(header | {"version": VERSION}, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"sweep-{re.sub(r'[^A-Za-z0-9.-]+', '-', name)[:40]}-{mark}.sqlite"


def forget(path: Path) -> None:
    """Removes a results file that holds nothing worth keeping, with what SQLite lays beside it."""
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
