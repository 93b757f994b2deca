"""The published training steps that ship with the project, each with its source.

`published.csv` holds one measured step a row: what was measured, at what size, and names for what many rows share. The
names are resolved by `published.toml`: `models` (architectures), `machines` (GPU, server, network), `settings`
(framework, precision, sharding ...) and `documents` (repository, path and revision that printed the figure). Only rows that
are scored are kept (quality A and B with a step time). Written anew from a table in the full columns by

    python -m sim.accuracy.published /path/to/training.csv
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from sim.accuracy.row import Row, read_rows, rows_of

FOLDER = Path(__file__).parent

MODEL = (
    "model_name", "model_type", "n_layers", "hidden", "n_heads", "n_kv_heads", "head_dim", "ffn_hidden", "activation", "vocab_size",
    "params", "n_experts", "top_k", "moe_ffn_hidden", "arch_note",
)  # fmt: skip
MACHINE = ("gpu", "gpu_form", "gpu_mem_gb", "system", "gpus_per_node", "intra_net", "inter_net")
SETTING = (
    "family", "framework", "framework_version", "date", "task", "precision", "batch_unit", "sharding", "sequence_parallel", "recompute",
    "flash_attn", "compile", "comm_overlap", "optimizer", "notes",
)  # fmt: skip
OWN = (
    "nodes", "gpus", "seq_len", "micro_batch", "global_batch", "grad_accum", "tp", "pp", "vp", "cp", "ep", "etp", "dp", "fsdp_size",
    "step_time_s", "peak_mem_gb", "quality",
)  # fmt: skip
NAMES = {"model": MODEL, "machine": MACHINE, "setting": SETTING}
"""Columns of `published.csv` that name a shared set of the table's columns."""
_KEPT_NOTES = ("capacity factor 1.0", "tokendrop", "CE fusion on", "w/o MTP")
"""What a prediction reads of the notes."""


class Document(msgspec.Struct, frozen=True):
    """Where figures were printed."""

    title: str
    repository: str
    path: str
    revision: str


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`published.toml`."""

    documents: dict[str, Document]
    model: dict[str, dict[str, Any]]
    machine: dict[str, dict[str, Any]]
    setting: dict[str, dict[str, Any]]


@cache
def shared() -> Shared:
    """What rows name."""
    return msgspec.convert(tomllib.loads((FOLDER / "published.toml").read_text("utf-8")), Shared)


@cache
def _cells() -> tuple[dict[str, str], ...]:
    with (FOLDER / "published.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(line for line in file if not line.startswith("#")))


def published_rows() -> list[Row]:
    """All rows that ship, in the form of `read_rows`."""
    return list(rows_of(_whole(cells, shared()) for cells in _cells()))


def sample(count: int, rows: Sequence[Row] | None = None) -> list[Row]:
    """A fixed sample that is spread over sources, GPUs and families: in turn one row of each, from the middle of the
    group outwards (1/2, 1/4, 3/4, 1/8 ... of its length), until there are `count`. In the table's order."""
    rows = published_rows() if rows is None else rows
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.source_id, row.gpu, row.family), []).append(row)
    chosen: set[str] = set()
    for turn in range(1, len(rows) + 1):
        for group in groups.values():
            if turn <= len(group) and len(chosen) < min(count, len(rows)):
                chosen.add(next(row.row_id for row in _from_middle(group, turn) if row.row_id not in chosen))
    return [row for row in rows if row.row_id in chosen]


def _from_middle(group: Sequence[Row], turn: int) -> Iterable[Row]:
    """The group's rows from the place of the `turn`-th point of the van der Corput sequence on, around its end."""
    digits = f"{turn:b}"[::-1]
    at = int(int(digits, 2) / 2 ** len(digits) * len(group))
    return [*group[at:], *group[:at]]


def _whole(cells: Mapping[str, str], known: Shared) -> dict[str, str | None]:
    """A row's cells in the full columns."""
    found: dict[str, str | None] = {"row_id": cells["row_id"], "source_id": cells["source"]}
    found["source"] = known.documents[cells["document"]].title
    for name in NAMES:
        found |= {column: str(value) for column, value in getattr(known, name)[cells[name]].items()}
    return found | {column: cells[column] for column in OWN}


def compact(cells: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """(text of published.csv, text of published.toml) from rows in the full columns, in their order."""
    names: dict[str, dict[tuple[str, ...], str]] = {name: {} for name in (*NAMES, "document")}
    out = io.StringIO()
    out.write(
        "# Published training steps; the names are resolved by published.toml (see published.py). step_time_s: seconds per optimizer step.\n"
    )
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("row_id", "source", "document", *NAMES, *OWN))
    for row in cells:
        document = _name(names["document"], row["source_id"], tuple(row[c] for c in ("source", "source_repo", "source_path", "source_ref")))
        known = [
            _name(names["model"], row["model_name"], tuple(row[column] for column in MODEL)),
            _name(names["machine"], row["gpu"], tuple(row[column] for column in MACHINE)),
            _name(
                names["setting"], row["framework"], tuple(_kept(row[column]) if column == "notes" else row[column] for column in SETTING)
            ),
        ]
        writer.writerow((row["row_id"], row["source_id"], document, *known, *(row[column] for column in OWN)))
    return out.getvalue(), _toml(names)


def _name(known: dict[tuple[str, ...], str], base: str, values: tuple[str, ...]) -> str:
    """The name of a set of values: the base, and a number where several share it."""
    if values not in known:
        slug = re.sub(r"[^a-z0-9.]+", "-", base.lower().split("(")[0]).strip("-.") or "unnamed"
        taken = set(known.values())
        known[values] = slug if slug not in taken else next(n for i in range(2, 10_000) if (n := f"{slug}_{i}") not in taken)
    return known[values]


def _kept(notes: str) -> str:
    return "; ".join(word for word in _KEPT_NOTES if word in notes)


def _toml(names: Mapping[str, Mapping[tuple[str, ...], str]]) -> str:
    lines = ["# What the rows of published.csv name. Empty values are left out: they are not known.", "", "[documents]"]
    lines += [
        f"{json.dumps(name)} = {_inline(('title', 'repository', 'path', 'revision'), values)}" for values, name in names["document"].items()
    ]
    for key, columns in NAMES.items():
        lines += ["", f"[{key}]", *(f"{json.dumps(name)} = {_inline(columns, values)}" for values, name in names[key].items())]
    return "\n".join(lines) + "\n"


def _inline(columns: Iterable[str], values: Iterable[str]) -> str:
    pairs = (f"{column} = {_value(column, value)}" for column, value in zip(columns, values, strict=True) if value)
    return "{" + ", ".join(pairs) + "}"


def _value(column: str, value: str) -> str:
    numbers = {name for name, kind in Row.__annotations__.items() if "None" in str(kind)}
    return str(int(value)) if column in numbers and value.isdigit() else json.dumps(value, ensure_ascii=False)


def write(table: Path) -> int:
    """Writes both files from a table in the full columns; returns the count of rows. Raises `BadInput` as `read_rows`."""
    scored = {row.row_id for row in read_rows(table) if row.scored and not row.problem}
    with table.open(encoding="utf-8-sig", newline="") as file:
        cells = [row for row in csv.DictReader(file) if row["row_id"] in scored]
    rows, names = compact(cells)
    (FOLDER / "published.csv").write_text(rows, "utf-8")
    (FOLDER / "published.toml").write_text(names, "utf-8")
    return len(cells)


if __name__ == "__main__":
    print(f"{write(Path(sys.argv[1]))} rows")
