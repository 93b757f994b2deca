"""Published measurements, one typed value a row.

The columns are those of the ground-truth table (`row_id, source_id, ..., step_time_s, quality, notes`; see its
SOURCES page): one published training step with its configuration. An empty cell is unknown: `None` for a
number, "" for a text. A cell that cannot be read makes its row unusable with a reason, not the file.
"""

from __future__ import annotations

import csv
import os
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from sim.accuracy.cells import date, number, word
from topologies.errors import BadInput

_LARGEST = 256 << 20
"""Bytes of a table that is read at most; the published one has 1 MB."""
_NOT_FROM_START = (
    r"tun(e|ing)|\bsft\b|[dlq]ora\b|\bpeft\b|adapter|\bdpo\b|preference|post-?training|squad|glue|^(inference|forward|eval|prefill)"
)
"""Words of tasks on a model that has been trained."""
TORCH_2 = "2023-03"
"""PyTorch 2.0: torch.optim calls one kernel for many tensors, and zero_grad frees gradients (its release notes)."""
_AFTER = r"h[128]00|h20\b|gh200|b[23]00|mi3|l40|\bl20\b|l4\b|40[5-9]0|50[5-9]0|\bada\b|pro ?[456]000"
"""GPUs that PyTorch before 2.0 was not built for (compute capabilities 8.9 and 9.0 came with CUDA 11.8)."""

_COUNTED = r"[\dkmb][\s-]+(tok(?:ens?)?|seqs?|sequences?|samples?|images?|imgs?)$"
"""What a batch's own cell says that it counts: "4M tokens"."""

_MULTI_HEAD = r"mha\b|multi[- ]head"
"""Attention with as many key-value heads as heads."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One published step. Names and units are the table's; texts are as printed."""

    row_id: str
    source_id: str = ""
    source: str = ""
    family: str = ""
    model_name: str = ""
    model_type: str = ""
    n_layers: int | None = None
    hidden: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None
    ffn_hidden: int | None = None
    activation: str = ""
    vocab_size: int | None = None
    params: int | None = None
    n_experts: int | None = None
    top_k: int | None = None
    moe_ffn_hidden: int | None = None
    arch_note: str = ""
    gpu: str = ""
    gpu_form: str = ""
    gpu_mem_gb: float | None = None
    system: str = ""
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    intra_net: str = ""
    inter_net: str = ""
    task: str = ""
    precision: str = ""
    seq_len: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    batch_unit: str = ""
    grad_accum: int | None = None
    tp: int | None = None
    pp: int | None = None
    vp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    sharding: str = ""
    fsdp_size: int | None = None
    sequence_parallel: str = ""
    recompute: str = ""
    recompute_detail: str = ""
    flash_attn: str = ""
    compile: str = ""
    comm_overlap: str = ""
    optimizer: str = ""
    framework: str = ""
    framework_version: str = ""
    date: str = ""
    step_time_s: float | None = None
    peak_mem_gb: float | None = None
    quality: str = ""
    notes: str = ""
    problem: str = ""
    """Why the row cannot be used: a cell that is no number."""

    @property
    def scored(self) -> bool:
        """Meant to be held against a prediction: quality A or B, with a step time, if only one that cannot be read (`problem`)."""
        return self.quality.upper() in ("A", "B") and (self.step_time_s is not None or "step_time_s = " in self.problem)

    @property
    def pretrains(self) -> bool:
        """Trains from the start: the task, or where none is stated the model's name and family, speaks of nothing else."""
        return re.search(_NOT_FROM_START, (self.task or f"{self.model_name} {self.family}").lower()) is None

    @property
    def of_torch_2(self) -> bool:
        """PyTorch 2.0 or later, where it ran PyTorch: the row's release says so, its date, or its GPU."""
        if found := re.search(r"torch\W*(?:v|version)? ?(\d)\.\d", f"{self.framework} {self.framework_version}".lower()):
            return int(found[1]) >= 2
        return self.date >= TORCH_2 if self.date else re.search(_AFTER, self.gpu.lower()) is not None

    @property
    def submitted(self) -> bool:
        """Of a submission to MLPerf, as the framework, its version or the source says."""
        return "mlperf" in f"{self.framework} {self.framework_version} {self.source_id} {self.source}".lower()

    @property
    def drops_tokens(self) -> bool:
        """Tokens beyond an expert's capacity are dropped, as the notes say."""
        return "tokendrop" in self.notes.lower()


_NUMBERS: dict[str, type] = {
    name: int if int in typing.get_args(hint) else float
    for name, hint in typing.get_type_hints(Row).items()
    if isinstance(hint, types.UnionType)
}


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a CSV file in the table's columns; columns that are not known are passed over.

    Raises `BadInput` where the file is absent, too large, not UTF-8 text, or lacks the columns that make a row
    usable (row_id, gpu, gpus, framework, global_batch, step_time_s).
    """
    source = Path(path)
    if not os.path.isfile(source):
        wrong = "is no file" if os.path.exists(source) else "does not exist"
        raise BadInput(f"table {path} {wrong}. Give a CSV file with the columns of the published table (row_id, source_id, ...)")
    if source.stat().st_size > _LARGEST:
        raise BadInput(f"table {path} has {source.stat().st_size} bytes; at most {_LARGEST} are read")
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            return list(_rows(csv.DictReader(file), str(path)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"table {path} is no CSV text in UTF-8: {error}") from None


def _rows(reader: csv.DictReader[str], where: str) -> Iterator[Row]:
    needed = ("row_id", "gpu", "gpus", "framework", "global_batch", "step_time_s")
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing:
        raise BadInput(f"table {where} lacks the columns {', '.join(missing)}; it must have those of the published table")
    yield from rows_of(reader)


def rows_of(table: Iterable[Mapping[str, str | None]]) -> Iterator[Row]:
    """Rows from cells by column; a `row_id` that comes twice is no usable row."""
    seen: set[str] = set()
    for line, cells in enumerate(table, start=2):
        row = _row(cells, f"line-{line}")
        if row.row_id in seen:
            row = msgspec.structs.replace(row, problem=f"row_id {row.row_id} appears twice")
        seen.add(row.row_id)
        yield row


def _row(cells: Mapping[str, str | None], fallback: str) -> Row:
    values: dict[str, object] = {"row_id": (cells.get("row_id") or fallback).strip()}
    problems = []
    for name in Row.__struct_fields__:
        text = word(cells.get(name))
        if name in ("row_id", "problem") or not text:
            continue
        if name not in _NUMBERS:
            values[name] = date(text) if name == "date" else text
            continue
        try:
            if (value := number(text, name, _NUMBERS[name])) is not None:
                values[name] = value
        except ValueError:
            problems.append(f"{name} = {text[:40]!r} is no positive number")
    if counted := re.search(_COUNTED, (cells.get("global_batch") or "").strip().lower()):
        values["batch_unit"] = counted[1]  # nearer to the number than the column's word
    if re.match(_MULTI_HEAD, (cells.get("n_kv_heads") or "").strip().lower()) and "n_heads" in values:
        values["n_kv_heads"] = values["n_heads"]
    return Row(**values, problem="; ".join(problems))  # type: ignore[arg-type]
