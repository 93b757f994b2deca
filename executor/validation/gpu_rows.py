"""Results of `executor.validation.gpu_twin` for one plan and for all plans: plain values that are kept on disk between calls."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sim.align import Comparison, Measured
from sim.cost.calibration import Calibration
from sim.files.planfile import dump_plan
from sim.files.runs import write_atomic
from sim.plan import Plan

NEAR = 0.1
"""An op counts as right if its predicted seconds differ from the played ones by at most this share."""
_CLASSES = 8


class OpClass(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per step and rank in one class of op; None if a run has no such figure."""

    cls: str
    uncalibrated: float | None = None
    calibrated: float | None = None
    played: float | None = None
    stock: float | None = None


class Row(msgspec.Struct, kw_only=True):
    """The results of one plan. Seconds are of one optimizer step; None: there is no figure, and `failed` or `refused` says why."""

    plan: str
    kind: str
    model: str
    ranks: int
    key: str = ""
    """A key of what the row depends on: plan, device, driver, torch, repetitions. A row with another key is made again."""
    made_with: dict[str, str] = {}
    """Versions of driver and torch, and the program's commit, when the row was made: rows of one table may be from different calls."""
    uncalibrated: float | None = None
    calibrated: float | None = None
    clock: float = 1.0
    """The clock of the calibrated prediction over the boost clock, below 1 if the power limit lowers it."""
    mark: str = ""
    measured_share: float = 0.0
    """Share of the calibrated prediction's time in ops whose costs come from the calibration."""
    played_predicted: float | None = None
    """The calibrated prediction of what was played, which is without output if the player leaves that out."""
    played: Measured | None = None
    stock: Measured | None = None
    ops_within: float | None = None
    """Share of the time in ops whose calibrated and played seconds differ by at most `NEAR`."""
    predicted_memory: int = 0
    stock_memory: int = 0
    """Peak bytes of tensors on the fullest rank (torch.cuda.max_memory_allocated). Neither this nor `predicted_memory` includes the
    allocator's free blocks and the CUDA context."""
    classes: tuple[OpClass, ...] = ()
    clocks: dict[str, Any] = {}
    failed: dict[str, str] = {}
    """What failed (plan, calibration, played, stock) -> why, so that its figures are missing. Such a row is made again."""
    refused: dict[str, str] = {}
    """played or stock -> why it cannot run such a plan. Such a row is not made again."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    """Seconds that making the row took."""

    def error(self, of: str, against: str = "stock") -> float | None:
        """Signed error of the prediction `of` ("uncalibrated", "calibrated") against a measured median ("stock", "played"); None if one is
        missing."""
        predicted = getattr(self, of)
        if predicted is not None and against == "played" and of == "calibrated":
            predicted = self.played_predicted
        measured: Measured | None = getattr(self, against)
        return predicted / measured.median - 1.0 if predicted is not None and measured is not None else None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all rows together: means of absolute errors (None if no row has one) and numbers of plans."""

    plans: int
    measured: int
    """Plans with a stock or a played step."""
    uncalibrated: float | None
    calibrated: float | None
    """Mean |error| of the step against stock training or, for plans without that, against the played program."""
    against_played: float | None
    """Mean |error| of the calibrated prediction against the played program."""
    ops_within: float | None
    classes: tuple[tuple[str, float, float], ...] = ()
    """(class of op, seconds of it in all played plans, signed error of the calibrated prediction)."""
    failed: dict[str, str] = {}
    """Plan -> what is missing and why."""


def key_of(plan: Plan, *made_with: object) -> str:
    """A hash of all that a row depends on."""
    return hashlib.sha256("\n".join([dump_plan(plan), *map(str, made_with)]).encode()).hexdigest()[:16]


def read_row(folder: Path, key: str, whole: bool = True) -> Row | None:
    """The row that an earlier call has left, if it has the same key and (with `whole`) nothing in it failed; else None."""
    try:
        row = msgspec.json.decode((folder / "row.json").read_bytes(), type=Row)
    except (OSError, msgspec.DecodeError):
        return None
    return row if row.key == key and not (whole and row.failed) else None


def write_row(folder: Path, row: Row) -> None:
    """Writes the row into the folder, whole or not at all."""
    write_atomic(folder / "row.json", msgspec.json.format(msgspec.json.encode(row), indent=1))


def ops_within(found: Comparison) -> float | None:
    """Share of the played time in ops whose prediction is off by at most `NEAR`; None if no op took time."""
    pairs = [(pair.predicted, pair.measured) for pair in found.pairs if pair.kind != "host" and pair.measured > 0]
    total = sum(measured for _, measured in pairs)
    return sum(measured for predicted, measured in pairs if abs(predicted - measured) <= NEAR * measured) / total if total else None


def classes_of(uncalibrated: Comparison | None, calibrated: Comparison | None, stock: Comparison | None) -> tuple[OpClass, ...]:
    """The classes with most time; `uncalibrated` and `calibrated` are compared with the played run, `stock` with stock training."""
    parts: dict[str, dict[str, float]] = {}
    for name, found in (("uncalibrated", uncalibrated), ("calibrated", calibrated), ("stock", stock)):
        for row in found.classes if found is not None else ():
            at = parts.setdefault(row.cls, {})
            if name == "stock":
                at["stock"] = row.measured
                at.setdefault("calibrated", row.predicted)
            else:
                at[name], at["played"] = row.predicted, row.measured
    largest = sorted(parts, key=lambda cls: -max(parts[cls].values()))[:_CLASSES]
    return tuple(OpClass(cls=cls, **parts[cls]) for cls in largest)


def summary(rows: Sequence[Row]) -> Summary:
    """The summary over all rows that have the figures."""
    errors: dict[str, list[float]] = {"uncalibrated": [], "calibrated": []}
    for row in rows:
        against = "stock" if row.stock is not None else "played"
        for of, found in errors.items():
            error = row.error(of, against)
            if error is not None:
                found.append(abs(error))
    return Summary(
        plans=len(rows),
        measured=sum(row.stock is not None or row.played is not None for row in rows),
        uncalibrated=_mean(errors["uncalibrated"]),
        calibrated=_mean(errors["calibrated"]),
        against_played=_mean([abs(error) for row in rows if (error := row.error("calibrated", "played")) is not None]),
        ops_within=_mean([row.ops_within for row in rows if row.ops_within is not None]),
        classes=_classes(rows),
        failed={row.plan: "; ".join(f"{what}: {why}" for what, why in row.failed.items()) for row in rows if row.failed},
    )


def _classes(rows: Sequence[Row]) -> tuple[tuple[str, float, float], ...]:
    sums: dict[str, list[float]] = {}
    for row in rows:
        for one in row.classes:
            if one.played and one.calibrated is not None:
                at = sums.setdefault(one.cls, [0.0, 0.0])
                at[0] += one.played
                at[1] += one.calibrated
    return tuple((cls, played, predicted / played - 1.0) for cls, (played, predicted) in sorted(sums.items(), key=lambda item: -item[1][0]))


def rates(found: Calibration) -> dict[str, float]:
    """The probe's results in short: the best rate of each kind, in FLOP/s, bytes/s or launches/s."""
    best: dict[str, float] = {}

    def note(name: str, amount: float, seconds: float) -> None:
        best[name] = max(best.get(name, 0.0), amount / seconds)

    for s in found.rows("gemm"):
        note(f"gemm {s.dtype} FLOP/s", 2.0 * math.prod(s.shape), s.median)
    for s in found.rows("memory"):
        note(f"memory-bound {s.dtype} bytes/s", s.shape[0], s.median)
    for s in found.rows("copy"):
        note(f"copy {s.name} bytes/s", s.shape[0], s.median)
    for s in found.rows("collective"):
        note(f"{s.name} over {s.shape[0]} algbw bytes/s", s.shape[1], s.median)
    for s in found.rows("host", "kernel"):
        note("launches/s", 1.0, s.median)
    return best


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
