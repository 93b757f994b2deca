"""`make accuracy`: every table of accuracy in one go, from a folder with the published measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sim.accuracy import score
from sim.accuracy.score import Summary
from sim.accuracy.training import ValidationResult, validate_training
from topologies.errors import BadInput

Say = Callable[[str], None]


def accuracy_tables(shared: Path, workers: int = 2, say: Say | None = None) -> dict[str, Any]:
    """Tables by name: published steps by source, GPU and family, kernels, collectives, peak memory.

    `shared` holds `groundtruth/` and `facts/`. Raises `BadInput` where it does not.
    """
    truth, facts = shared / "groundtruth", shared / "facts"
    if not truth.is_dir() or not facts.is_dir():
        raise BadInput(f"{shared} has no groundtruth/ and facts/: give the folder that holds the published measurements with --shared")
    found: dict[str, Any] = {}
    _tell(say, "kernels")
    found["kernels"] = _kernels(facts)
    _tell(say, "collectives")
    found["collectives"] = _collectives(truth / "collectives.csv")
    _tell(say, "published steps")
    found |= _steps(validate_training(truth / "training.csv", workers))
    return found


def _tell(say: Say | None, what: str) -> None:
    if say:
        say(f"{what} ...")


def _kernels(facts: Path) -> list[dict[str, object]]:
    from sim.accuracy.kernels import kernel_scores, summary

    return summary(kernel_scores(facts))


def _collectives(path: Path) -> list[dict[str, object]]:
    from sim.accuracy.collectives import validate_collectives

    rows: list[dict[str, object]] = validate_collectives(path)["rows"]
    return rows


def _steps(result: ValidationResult) -> dict[str, list[dict[str, object]]]:
    whole = [{"rows": "all scored", **_row(result.all)}]
    whole.append({"rows": "baseline: one MFU for everything", **_row(score.constant_mfu(result.outcomes)[1])})
    groups = {"by source": result.by_source, "by GPU": result.by_gpu, "by family": result.by_family}
    tables: dict[str, list[dict[str, object]]] = {"published steps": whole}
    for name, group in groups.items():
        tables[f"published steps {name}"] = [{name[3:]: key, **_row(one)} for key, one in sorted(group.items())]
    return tables


def _row(summary: Summary) -> dict[str, object]:
    values = msgspec.to_builtins(summary)
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}
