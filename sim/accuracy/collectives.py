"""Published timings of collectives against the model: `steptwin validate --collectives`.

Errors are (predicted - measured) / measured of the time, summed up by GPU type, collective and size (from 1 MiB, and below).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from sim.cost.collective import collective_cost
from topologies.errors import BadInput, SteptwinError
from topologies.graph import Topology
from topologies.load import load_topology

_MACHINES = (
    (r"p6-b200", "aws-p6-b200"), (r"p5en", "aws-p5en"), (r"p5\b|p5\.48|aws p5", "aws-p5"), (r"p4de", "aws-p4de"), (r"p4d", "aws-p4d"),
    (r"a3.?ultra", "gcp-a3-ultra"), (r"a3.?mega", "gcp-a3-mega"), (r"gb300", "gb300-nvl72"), (r"gb200", "gb200-nvl72"),
    (r"b300", "dgx-b300"), (r"b200", "dgx-b200"), (r"h200", "dgx-h200"), (r"h100.*pcie", "h100-pcie-x8"), (r"h100", "dgx-h100"),
    (r"a100.*pcie", "a100-pcie-x8"), (r"a100", "dgx-a100"), (r"v100", "dgx1-v100"), (r"l40s", "l40s-x8"), (r"pro.?6000", "rtx-pro-6000-x8"),
    (r"5090", "rtx-5090-x4"), (r"4090", "rtx-4090-x8"), (r"3090", "rtx-3090-x4"), (r"mi325", "mi325x-x8"), (r"mi300", "mi300x-x8"),
)  # fmt: skip
_LARGE = 1 << 20
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

    @property
    def error(self) -> float:
        return (self.predicted - self.measured) / self.measured


def validate_collectives(path: str | Path) -> dict[str, Any]:
    """Scores every row of a CSV in the columns of the published collectives. Raises `BadInput` where it cannot be read."""
    found: list[Timing] = []
    refused: list[dict[str, object]] = []
    for number, row in enumerate(_read(Path(path)), 2):
        try:
            found.append(_timing(row))
        except (SteptwinError, ValueError, KeyError) as error:
            refused.append({"row": number, "reason": str(error)})
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
        "rows": _table(found),
        "by_gpu": {gpu: median(abs(t.error) for t in found if t.gpu == gpu) for gpu in sorted({t.gpu for t in found})},
    }


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    missing = {"kind", "gpus", "gpu", "message_bytes", "time_us"} - set(rows[0] if rows else ())
    if missing:
        raise BadInput(f"{path} lacks the columns {', '.join(sorted(missing))}: give a file in the columns of the published collectives")
    return rows


@cache
def _topology(name: str) -> Topology:
    return load_topology(name)


def _timing(row: dict[str, str]) -> Timing:
    gpus, nodes = int(row["gpus"]), max(1, int(row.get("nodes") or 1))
    text = f"{row.get('system', '')} {row['gpu']}".lower()
    machine = next((name for pattern, name in _MACHINES if re.search(pattern, text)), "")
    if not machine:
        raise BadInput(f"no machine of the catalog has the GPU '{row['gpu']}'")
    rack = _topology(machine).gpus
    expression = machine if gpus <= rack and (nodes == 1 or "nvl72" in machine) else f"{max(nodes, -(-gpus // rack))}x {machine}"
    topology = _topology(expression)
    each = gpus // nodes if topology.nodes > 1 else gpus
    ranks = tuple(node * topology.ranks_per_node + local for node in range(topology.nodes) for local in range(each))[:gpus]
    measured = float(row["time_us"]) * 1e-6
    if measured <= 0 or int(float(row["message_bytes"])) <= 0:
        raise BadInput("the row has no time or no size")
    bytes_ = int(float(row["message_bytes"]))
    kind = {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather"}.get(row["kind"], row["kind"])
    cost = collective_cost(kind, bytes_, ranks, topology)
    match = _GPU.search(row["gpu"])
    return Timing(match.group(1).upper() if match else row["gpu"], kind, topology.nodes, bytes_, measured, cost.seconds, expression)


def _table(found: list[Timing]) -> list[dict[str, object]]:
    keys: dict[tuple[str, str, str, str], list[Timing]] = {}
    for t in found:
        span = "one node" if t.nodes == 1 else "several nodes"
        keys.setdefault((t.gpu, t.kind, span, ">= 1 MiB" if t.bytes >= _LARGE else "< 1 MiB"), []).append(t)
    return [_row(key, group, abs) for key, group in sorted(keys.items())]


def _row(key: tuple[str, str, str, str], group: list[Timing], size: Callable[[float], float]) -> dict[str, object]:
    errors = sorted(size(t.error) for t in group)
    return {
        "gpu": key[0],
        "collective": key[1],
        "span": key[2],
        "size": key[3],
        "timings": len(group),
        "median_ape": round(median(errors), 4),
        "p90": round(errors[int(0.9 * (len(errors) - 1))], 4),
        "bias": round(sum(t.error for t in group) / len(group), 4),
    }
