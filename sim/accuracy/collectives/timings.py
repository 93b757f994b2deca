"""Published timings of collectives against the model: `steptwin validate --collectives`.

Errors are (predicted - measured) / measured of the time, summed up by GPU type, collective and size (from 1 MiB, and below).
"""

from __future__ import annotations

import csv
import math
import re
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from sim.accuracy.collectives.measuring import Tool, algorithm_of, source_of, tool_of, without_nvls
from sim.accuracy.row import rows_of
from sim.accuracy.rows.machines import machine_of
from sim.cost.collective import GroupShape, best, group_shape
from sim.quantile import quantile
from topologies.errors import BadInput, Refused, SteptwinError
from topologies.graph import Topology
from topologies.load import load_topology

_LARGE = 1 << 20
_MISPLACED = " n > 2, badly placed host"
_GPU = re.compile(r"(gb300|gb200|b300|b200|h200|h100|a100|v100|l40s|pro.?6000|mi3\d\dx?|mi250x?|4090|3090|5090)", re.I)


class Timing(msgspec.Struct, frozen=True):
    """One measured timing and its prediction, seconds."""

    gpu: str
    kind: str
    nodes: int
    bytes: int
    measured: float
    predicted: float
    machine: str
    ranks: int
    file: str
    shape: GroupShape
    source: str = "unnamed"
    algorithm: str = "auto"
    tool: Tool = Tool()

    @property
    def group(self) -> str:
        """The row of the table: the GPU type; L40S hosts with more than 2 GPUs apart (their GPUs reach each other at 2-6 GB/s)."""
        return f"{self.gpu}{_MISPLACED if self.ranks > 2 else ' n = 2'}" if self.gpu == "L40S" else self.gpu

    @property
    def error(self) -> float:
        return (self.predicted - self.measured) / self.measured


def validate_collectives(path: str | Path) -> dict[str, Any]:
    """Scores every row of a CSV in the columns of the published collectives, and of `facts/nccl_other_measured.csv` next to its folder
    where that is there.

    A row is (GPU type, collective, one node or several, size class, file); its `left_out` is the median error of a model fitted without that
    type's architecture, `source_out` of one fitted without those who published the row. Raises `BadInput` where a file cannot be read.
    """
    files, other = [Path(path)], Path(path).resolve().parent.parent / "facts" / "nccl_other_measured.csv"
    if other.is_file() and other != Path(path).resolve():
        files.append(other)
    found: list[Timing] = []
    refused: list[dict[str, object]] = []
    for file in files:
        for number, row in enumerate(_read(file), 2):
            try:
                found.append(_timing(row, file.name))
            except (SteptwinError, ValueError, KeyError) as error:
                refused.append({"file": file.name, "row": number, "reason": str(error)})
    if not found:
        raise BadInput(f"{path} holds no timing that can be predicted; first reason: {refused[0]['reason'] if refused else 'no rows'}")
    errors = [abs(t.error) for t in found]
    return {
        "scored": len(found),
        "refused": refused,
        "coverage": len(found) / (len(found) + len(refused)),
        "median_ape": median(errors),
        "mape": sum(errors) / len(errors),
        "bias": sum(t.error for t in found) / len(found),
        "rows": _table(found, *_left_out(found)),
        "by_gpu": {gpu: median(abs(t.error) for t in found if t.group == gpu) for gpu in sorted({t.group for t in found})},
    }


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, restval=""))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    rows = [_renamed(row) for row in rows]
    missing = {"kind", "gpus", "gpu", "message_bytes", "time_us"} - set(rows[0] if rows else ())
    if missing:
        raise BadInput(f"{path} lacks the columns {', '.join(sorted(missing))}: give a file in the columns of the published collectives")
    return rows


def _renamed(row: dict[str, str]) -> dict[str, str]:
    """Rows of `nccl_other_measured.csv` under the names of the published collectives; others as they are."""
    if not {"system", "op", "n_gpus", "bytes"} <= set(row):
        return row
    return {**row, "kind": row["op"], "gpus": row["n_gpus"], "gpu": row["system"], "message_bytes": row["bytes"]}


@cache
def _topology(name: str, edits: tuple[str, ...]) -> Topology:
    return load_topology(name, edits)


def _machine(row: dict[str, str], gpus: int, nodes: int) -> tuple[str, tuple[str, ...]]:
    """The topology expression and its what-ifs, as of a published step: its columns of the machine are the same.

    A rack whose switches join all its GPUs is one node, whatever trays a row counts.
    """
    each = {"gpus_per_node": str(-(-gpus // nodes))} if nodes else {}
    return machine_of(next(rows_of([{**row, **each}])), [])


def _timing(row: dict[str, str], file: str) -> Timing:
    gpus, nodes = int(row["gpus"]), int(row.get("nodes") or 0)
    measured, size = float(row["time_us"]) * 1e-6, float(row["message_bytes"])
    if gpus < 1 or not 0 < measured < math.inf or not 1 <= size < math.inf:
        raise BadInput(f"the row has no time, size or GPUs: {row['time_us']} us, {row['message_bytes']} bytes, {row['gpus']} GPUs")
    machine = _machine(row, gpus, nodes)
    topology = _topology(*machine)
    bytes_ = int(size)
    kind = _kind(row["kind"])
    shape = group_shape(topology, tuple(range(gpus))) if kind != "send" else _longest(topology, gpus)
    algorithm, tool = _algorithm(row, kind, bytes_, shape), tool_of(row, topology, shape.local)
    seconds = tool.seconds(best(kind, bytes_, shape, algorithm).seconds)
    match = _GPU.search(row["gpu"])
    gpu = match.group(1).upper() if match else row["gpu"]
    return Timing(
        gpu, kind, topology.nodes, bytes_, measured, seconds, machine[0], gpus, file, shape, source_of(row), algorithm, tool
    )  # fmt: skip


def _longest(topology: Topology, ranks: int) -> GroupShape:
    """The two neighbours whose message takes longest, of ranks that each send to the next at once (nccl-tests' sendrecv_perf)."""
    held = range(min(ranks, topology.ranks_per_node + 1))
    pairs = (group_shape(topology, (rank, (rank + 1) % ranks)) for rank in held)
    return max(pairs, key=lambda shape: best("send", _LARGE, shape).seconds)


_KINDS = {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
_KINDS |= {"sendrecv": "send", "send_recv": "send"}


def _kind(told: str) -> str:
    """The collective in our words, from nccl-tests' or others' ("AllReduce", "reduce-scatter", "sendrecv_perf")."""
    plain = told.lower().replace("-", "_").removesuffix("_perf")
    return _KINDS.get(plain, plain)


def _algorithm(row: dict[str, str], kind: str, size: int, shape: GroupShape) -> str:
    """What the row says that NCCL ran; its own choice where the model knows no such way for the group."""
    if without_nvls(row) and kind == "all_reduce":
        return min(("ring", "tree"), key=lambda name: best(kind, size, shape, name).seconds)
    try:
        best(kind, 1, shape, algorithm_of(row))
    except Refused:
        return "auto"
    return algorithm_of(row)


def _left_out(found: list[Timing]) -> tuple[dict[int, float], dict[int, float]]:
    """Errors with the GPU type left out, and with the source left out."""
    from sim.accuracy.collectives.left_out import left_out, source_out

    judged = [t for t in found if not t.group.endswith(_MISPLACED)]
    return left_out(found, judged), source_out(found, judged)


def _table(found: list[Timing], withheld: dict[int, float], unsourced: dict[int, float]) -> list[dict[str, object]]:
    keys: dict[tuple[str, str, str, str, str], list[int]] = {}
    for at, t in enumerate(found):
        span = "one node" if t.nodes == 1 else "several nodes"
        keys.setdefault((t.group, t.kind, span, ">= 1 MiB" if t.bytes >= _LARGE else "< 1 MiB", t.file), []).append(at)
    return [
        _row(key, [found[at] for at in group], [withheld[at] for at in group], [unsourced[at] for at in group])
        for key, group in sorted(keys.items())
    ]


def target(gpu: str, span: str, large: bool) -> float | None:
    """The median absolute error that the project aims at; None for rows that are shown and not judged."""
    if gpu.endswith(_MISPLACED):
        return None
    return (0.15 if span == "several nodes" else 0.10) if large else 0.25


def _row(key: tuple[str, str, str, str, str], group: list[Timing], withheld: list[float], unsourced: list[float]) -> dict[str, object]:
    errors = [abs(t.error) for t in group]
    middle, aim = median(errors), target(key[0], key[2], key[3] == ">= 1 MiB")
    return {
        "gpu": key[0],
        "collective": key[1],
        "span": key[2],
        "size": key[3],
        "file": key[4],
        "timings": len(group),
        "median_ape": round(middle, 4),
        "p90": round(quantile(errors, 0.9), 4),
        "bias": round(sum(t.error for t in group) / len(group), 4),
        "left_out": round(median(abs(error) for error in withheld), 4),
        "source_out": round(median(abs(error) for error in unsourced), 4),
        "target": aim,
        "met": None if aim is None else middle <= aim,
    }
