"""Published training steps against predictions: the run over a table, in parallel processes, and its result.

result = validate_training("training.csv", workers=2)
result.mape, result.by_source["nv-dle"].median_ape, result.to_dict()
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import msgspec

from sim.accuracy import score
from sim.accuracy.plans import Case, case_of
from sim.accuracy.rows import Row, read_rows
from sim.accuracy.score import Outcome, Summary
from topologies.errors import BadInput


class Refusal(msgspec.Struct, frozen=True):
    """A row that has no prediction, and why."""

    row_id: str
    reason: str


class Found(msgspec.Struct, frozen=True):
    """What a prediction says of one plan, as far as the scores need it."""

    seconds: float
    ideal_s: float
    """Model FLOPs over the peak of all GPUs at the plan's precision."""
    breakdown: dict[str, float] = {}
    peak_memory_bytes: int = 0


PredictSeconds = Callable[[Case], Found]


class ValidationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Errors are fractions (0.12 = 12 %). `to_dict()` is the JSON of `steptwin validate --json`."""

    rows: int
    """Rows in the table."""
    eligible: int
    """Rows of quality A or B with a step time."""
    outcomes: tuple[Outcome, ...]
    refused: tuple[Refusal, ...]
    found: dict[str, Found] = {}
    seconds: float = 0.0

    @property
    def scored(self) -> int:
        return len(self.outcomes)

    @property
    def coverage(self) -> float:
        return self.scored / self.eligible if self.eligible else 0.0

    @property
    def all(self) -> Summary:
        return score.summarise([outcome.error for outcome in self.outcomes])

    @property
    def mape(self) -> float:
        return self.all.mape

    @property
    def by_source(self) -> dict[str, Summary]:
        return score.by(self.outcomes, lambda o: o.source_id)

    @property
    def by_gpu(self) -> dict[str, Summary]:
        return score.by(self.outcomes, lambda o: o.gpu)

    @property
    def by_family(self) -> dict[str, Summary]:
        return score.by(self.outcomes, lambda o: o.family)

    @property
    def by_framework(self) -> dict[str, Summary]:
        return score.by(self.outcomes, lambda o: o.framework)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only; the worst rows with what was assumed for them come last."""
        mfu, baseline = score.constant_mfu(self.outcomes)
        total = self.all
        worst = sorted(self.outcomes, key=lambda o: -abs(o.error))[:20]
        return {
            "rows": self.rows,
            "eligible": self.eligible,
            "scored": self.scored,
            "coverage": self.coverage,
            "refused": [msgspec.structs.asdict(one) for one in self.refused],
            "mape": total.mape,
            "median_ape": total.median_ape,
            "bias": total.bias,
            "by_source": _plain(self.by_source),
            "by_gpu": _plain(self.by_gpu),
            "by_family": _plain(self.by_family),
            "by_framework": _plain(self.by_framework),
            "baseline_constant_mfu": {"mfu": mfu, **msgspec.structs.asdict(baseline)},
            "rank_correlation": score.rank_correlations(self.outcomes),
            "rank_correlation_throughput": score.rank_correlations(self.outcomes, score.throughput),
            "assumed": _counts(assumption for outcome in self.outcomes for assumption in outcome.assumed),
            "worst": [_worst(outcome) for outcome in worst],
            "predictions": {o.row_id: {"measured_s": o.measured_s, "predicted_s": o.predicted_s} for o in self.outcomes},
            "seconds": self.seconds,
        }


def _plain(groups: dict[str, Summary]) -> dict[str, dict[str, float]]:
    return {name: msgspec.structs.asdict(summary) for name, summary in groups.items()}


def _counts(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _worst(outcome: Outcome) -> dict[str, Any]:
    return {
        "row_id": outcome.row_id,
        "model": outcome.model,
        "gpu": outcome.gpu,
        "measured_s": outcome.measured_s,
        "predicted_s": outcome.predicted_s,
        "error": outcome.error,
        "assumed": list(outcome.assumed),
    }


def predict_case(case: Case) -> Found:
    """The prediction of one case. Raises `BadInput` and its kinds where the plan cannot be lowered or placed."""
    from sim.accuracy.steady import step_seconds

    seconds, breakdown, ideal = step_seconds(case.plan, case.topology)
    return Found(seconds, ideal, breakdown)


def validate_training(
    path: str | Path,
    workers: int = 2,
    limit: int | None = None,
    *,
    predict_seconds: PredictSeconds = predict_case,
    progress: Callable[[int, int], None] | None = None,
    only: Callable[[Row], bool] | None = None,
) -> ValidationResult:
    """Predicts every row of quality A or B that has a step time, and scores the predictions.

    Args:
        path: a CSV file in the published table's columns.
        workers: processes; 1 runs in this one.
        limit: at most so many rows, spread evenly over the table (a fixed sample).
        predict_seconds: what turns a case into seconds.
        progress: called with (done, all) after each plan.
        only: rows to look at; all where None.

    Raises `BadInput` where the table cannot be read. Rows that cannot be predicted are refused with their reason.
    """
    started = time.monotonic()
    rows = read_rows(path)
    eligible = [row for row in rows if row.scored and (only is None or only(row))]
    if limit is not None and limit < len(eligible):
        eligible = [eligible[index * len(eligible) // limit] for index in range(limit)]
    groups, refused = _grouped(eligible)
    outcomes: list[Outcome] = []
    found: dict[str, Found] = {}
    for cases, result in _run([cases[0] for cases in groups.values()], groups, workers, predict_seconds, progress):
        if isinstance(result, str):
            refused += [Refusal(case.row.row_id, result) for case in cases]
            continue
        outcomes += [_outcome(case, result) for case in cases]
        found |= {case.row.row_id: result for case in cases}
    order = {row.row_id: index for index, row in enumerate(rows)}
    return ValidationResult(
        rows=len(rows),
        eligible=len(eligible),
        outcomes=tuple(sorted(outcomes, key=lambda o: order[o.row_id])),
        refused=tuple(sorted(refused, key=lambda r: order[r.row_id])),
        found=found,
        seconds=time.monotonic() - started,
    )


def _grouped(rows: list[Row]) -> tuple[dict[bytes, list[Case]], list[Refusal]]:
    """Cases by what is predicted: a plan that was measured several times is predicted once."""
    groups: dict[bytes, list[Case]] = {}
    refused = []
    for row in rows:
        try:
            case = case_of(row)
        except BadInput as error:
            refused.append(Refusal(row.row_id, str(error)))
            continue
        key = msgspec.json.encode((msgspec.structs.replace(case.plan, name=""), case.topology))
        groups.setdefault(key, []).append(case)
    return groups, refused


def _run(
    firsts: list[Case],
    groups: dict[bytes, list[Case]],
    workers: int,
    predict_seconds: PredictSeconds,
    progress: Callable[[int, int], None] | None,
) -> Iterable[tuple[list[Case], Found | str]]:
    members = list(groups.values())
    if workers <= 1:
        for done, case in enumerate(firsts, start=1):
            yield members[done - 1], _guarded(predict_seconds, case)
            if progress:
                progress(done, len(firsts))
        return
    # Large plans first: the last process to finish then holds a small one.
    order = sorted(range(len(firsts)), key=lambda index: -_size(firsts[index]))
    with ProcessPoolExecutor(workers) as pool:
        futures = {pool.submit(_guarded, predict_seconds, firsts[index]): index for index in order}
        for done, future in enumerate(as_completed(futures), start=1):
            yield members[futures[future]], future.result()
            if progress:
                progress(done, len(firsts))


def _size(case: Case) -> int:
    return case.plan.microbatches * case.plan.parallel.pp * case.plan.parallel.virtual_stages


def _guarded(predict_seconds: PredictSeconds, case: Case) -> Found | str:
    """The prediction, or why there is none: one row that fails does not end the run."""
    try:
        return predict_seconds(case)
    except BadInput as error:
        return str(error)
    except Exception as error:  # a defect of ours: shown as a refusal, counted against coverage
        return f"internal error, please report: {type(error).__name__}: {error}"


def _outcome(case: Case, found: Found) -> Outcome:
    row, plan = case.row, case.plan
    assert row.step_time_s is not None
    p = plan.parallel
    key = (plan.framework, plan.precision, plan.seq_len, plan.batch, p, plan.memory, plan.compile, case.topology, plan.model)
    return Outcome(
        row_id=row.row_id,
        source_id=row.source_id,
        family=row.family,
        gpu=row.gpu,
        model=row.model_name,
        framework=plan.framework,
        measured_s=row.step_time_s,
        predicted_s=found.seconds,
        ideal_s=found.ideal_s,
        samples=float(plan.global_batch),
        gpus=plan.world,
        machine=case.topology,
        plan_key=hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:16],
        assumed=case.assumed,
    )
