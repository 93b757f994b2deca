"""`make accuracy`: every table of accuracy in one go, each with its target and with the baseline that knows less.

Errors are fractions. What ships with the project (published steps, peak memory) is always scored; kernels, collectives and
NeuSight's passes need the folder with the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from sim.accuracy import ranking, score
from sim.accuracy.result import ValidationResult
from sim.accuracy.score import Summary
from sim.accuracy.training import validate_training

Say = Callable[[str], None]
Table = list[dict[str, object]]

KERNELS = {"gemm": (0.08, 0.15), "attention": (0.10, None), "memory-bound": (0.15, None), "linear": (0.15, None)}
"""Kind of kernel -> targets of the median error: with its GPU's parameters, and with the GPU left out."""
PASSES, PEAKS, STEPS, GROUPS = 0.15, 0.05, 0.12, 0.18
"""Targets of mean errors: NeuSight's training passes, SimuMax's peaks, all published steps, each GPU and family from 8 rows on."""
RANK = 0.9
"""Least rank correlation within each model and GPU that has enough plans."""
FEWEST = 8
_SHOWN = 10


def accuracy_tables(
    shared: Path, workers: int = 2, say: Say | None = None, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Tables by name. `shared` holds `facts/` and `groundtruth/`; tables whose measurements are absent are left out, and `say` tells it."""
    truth, facts = shared / "groundtruth", shared / "facts"
    found: dict[str, Any] = {}
    if facts.is_dir():
        _tell(say, "kernels ...")
        found["kernels"] = _kernels(facts)
        _tell(say, "passes of single GPUs ...")
        found["passes (NeuSight, training)"] = _passes(facts)
    else:
        _tell(say, f"{facts} is absent: no tables of kernels and passes")
    if truth.is_dir():
        _tell(say, "collectives ...")
        found["collectives"] = _collectives(truth / "collectives.csv")
    else:
        _tell(say, f"{truth} is absent: no table of collectives; the published steps are those that ship")
    _tell(say, "peak memory ...")
    found["peak memory"] = _peaks()
    _tell(say, "published steps ...")
    table = truth / "training.csv"
    return found | step_tables(validate_training(table if table.is_file() else None, workers, progress=progress))


def _tell(say: Say | None, what: str) -> None:
    if say:
        say(what)


def _kernels(facts: Path) -> Table:
    from sim.accuracy.kernels import kernel_scores, summary

    def targets(kind: object) -> dict[str, object]:
        own, left_out = KERNELS.get(str(kind), (None, None))
        return {"target": own or "-", "left_out_target": left_out or "-"}

    return [_rounded({**row, **targets(row["kind"])}) for row in summary(kernel_scores(facts))]


def _passes(facts: Path) -> Table:
    from sim.accuracy.neusight import neusight_labels, summarise

    labels = [label for label in neusight_labels(facts) if label.training]
    return [_rounded({**row, "target": PASSES if row["gpu"] == "all" else "-"}) for row in summarise(labels)]


def _collectives(path: Path) -> Table:
    from sim.accuracy.collectives.timings import validate_collectives

    rows: Table = validate_collectives(path)["rows"]
    return rows


def _peaks() -> Table:
    from sim.accuracy.memory import ALLOCATED, memory_scores, memory_table

    scores = [one for one in memory_scores() if not one.refused]
    table: Table = []
    for row in memory_table(scores):
        baseline = fmean(abs(one.state / one.measured - 1.0) for one in scores if one.source == row["source"])
        table.append(_rounded({**row, "states_only": baseline, "target": PEAKS if row["source"] in ALLOCATED else "-"}))
    return table


def step_tables(result: ValidationResult) -> dict[str, Table]:
    """What a run over published steps found: of all rows, by source, GPU and family, by rank, and what is off or refused."""
    outcomes = result.outcomes
    base = score.baseline_table(outcomes)
    held = score.coverage_table(outcomes)
    whole = {**_row(result.all), "baseline": base["mape"], "in_interval": held["coverage"], "target": STEPS}
    tables: dict[str, Table] = {"published steps": [_rounded({"rows": "all scored", **whole})]}
    groups = {"source": result.by_source, "gpu": result.by_gpu, "family": result.by_family}
    for name, group in groups.items():
        others, inside = base[f"by_{name}"], held[f"by_{name}"]
        assert isinstance(others, dict) and isinstance(inside, dict)
        rows: Table = []
        for key, one in sorted(group.items()):
            target = GROUPS if name != "source" and one.rows >= FEWEST else "-"
            beside = others[key]["mape"] if key in others else "-"
            rows.append(_rounded({name: key, **_row(one), "baseline": beside, "in_interval": inside[key], "target": target}))
        tables[f"published steps by {'GPU' if name == 'gpu' else name}"] = rows
    return tables | {name: rows for name, rows in _ends(result).items() if rows}


def _ends(result: ValidationResult) -> dict[str, Table]:
    """Rank correlations, the rows that are furthest off, and refusals by reason."""
    ranks = sorted(ranking.rank_correlations(result.outcomes).items(), key=lambda item: item[1])
    again = ranking.measured_again(result.outcomes)
    worst = sorted(result.outcomes, key=lambda o: -abs(o.error))[:_SHOWN]
    reasons: dict[str, int] = {}
    for refusal in result.refused:
        reasons[refusal.reason] = reasons.get(refusal.reason, 0) + 1
    return {
        "rank correlation (worst)": [
            {
                "model and GPU": name,
                "step time": round(value, 3),
                "measured again": round(again[name], 3) if again else "-",
                "target": f"{RANK:g}",
            }
            for name, value in ranks[:_SHOWN]
        ],
        "furthest off": [
            {"row": o.row_id, "model": o.model, "measured_s": o.measured_s, "predicted_s": o.predicted_s, "error": round(o.error, 3)}
            for o in worst
        ],
        "refused": [{"reason": reason, "rows": count} for reason, count in reasons.items()],
    }


def _row(summary: Summary) -> dict[str, object]:
    values: dict[str, object] = msgspec.to_builtins(summary)
    return values


def _rounded(row: dict[str, object]) -> dict[str, object]:
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
