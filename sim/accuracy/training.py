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

import msgspec

from sim.accuracy.published import published_rows
from sim.accuracy.result import Found, Refusal, ValidationResult
from sim.accuracy.row import Row, read_rows
from sim.accuracy.rows.plans import Case, case_of
from sim.accuracy.score import Outcome
from sim.orphans import end_with_parent
from sim.plan import Plan
from sim.result.uncertainty import interval
from topologies.errors import BadInput

__all__ = ["Found", "PredictSeconds", "Refusal", "ValidationResult", "predict_case", "validate_training"]

PredictSeconds = Callable[[Case], Found]


def _what(plan: Plan, machine: str) -> str:
    """A plan in a line: `64 GPUs (8x dgx-h100), tp 8, pp 2, zero 1, batch 512 by 1, seq 4096, bf16, nemo`."""
    p = plan.parallel
    sizes = {"tp": p.tp, "pp": p.pp, "chunks": p.virtual_stages, "cp": p.cp, "ep": p.ep, "zero": p.zero}
    split = [f"{name} {size}" for name, size in sizes.items() if (size or 0) > (0 if name == "zero" else 1)]
    batch = f"batch {plan.global_batch} by {plan.batch.micro}"
    tail = [f"seq {plan.seq_len}"] if plan.seq_len else []
    return ", ".join([f"{plan.world} GPUs ({machine})", *split, batch, *tail, plan.precision, plan.framework_name])


def predict_case(case: Case) -> Found:
    """The prediction of one case. Raises `BadInput` and its kinds where the plan cannot be lowered or placed."""
    from sim.accuracy.shares import shares_of_case
    from sim.accuracy.steady import step_seconds

    seconds, ideal = step_seconds(case.plan, case.topology, case.edits)
    shares, beyond = shares_of_case(case, seconds)
    seconds, ideal = seconds / case.turns, ideal / case.turns
    return Found(seconds, ideal, interval=interval(seconds, shares, beyond), shares=shares, beyond=bool(beyond))


def validate_training(
    path: str | Path | None,
    workers: int = 2,
    limit: int | None = None,
    *,
    predict_seconds: PredictSeconds = predict_case,
    progress: Callable[[int, int], None] | None = None,
    only: Callable[[Row], bool] | None = None,
) -> ValidationResult:
    """Predicts every row of quality A or B that has a step time, and scores the predictions.

    Args:
        path: a CSV file in the published table's columns; None: the table that ships (`sim.accuracy.published`).
        workers: processes; 1 runs in this one.
        limit: at most so many rows, spread evenly over the table (a fixed sample).
        predict_seconds: what turns a case into seconds.
        progress: called with (done, all) after each plan.
        only: rows to look at; all where None.

    Raises `BadInput` where the table cannot be read. Rows that cannot be predicted are refused with their reason.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"limit = {limit}: at least one row is scored")
    started = time.monotonic()
    rows = read_rows(path) if path is not None else published_rows()
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
        groups.setdefault(_same(case), []).append(case)
    return groups, refused


def _same(case: Case) -> bytes:
    """Equal for rows that are one plan on one machine, whose step is as many of theirs."""
    return msgspec.json.encode((msgspec.structs.replace(case.plan, name=""), case.topology, case.edits, case.turns))


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
    with ProcessPoolExecutor(workers, initializer=end_with_parent) as pool:
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
    return Outcome(
        row_id=row.row_id,
        source_id=row.source_id,
        family=row.family,
        gpu=row.gpu,
        model=row.model_name,
        framework=plan.framework_name,
        measured_s=row.step_time_s,
        predicted_s=found.seconds,
        interval_s=(found.interval.low, found.interval.high) if found.interval else None,
        mark=found.interval.mark if found.interval else "",
        ideal_s=found.ideal_s,
        samples=plan.global_batch / case.turns,
        gpus=plan.world,
        machine=case.topology,
        edits=case.edits,
        plan_key=hashlib.sha256(_same(case)).hexdigest()[:16],
        what=_what(plan, case.topology),
        assumed=case.assumed,
    )
