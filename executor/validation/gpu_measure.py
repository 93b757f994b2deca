"""Makes the row of one plan of the GPU table: predicts, plays and trains it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

from executor.nvml import clocks
from executor.periods import trained
from executor.play import PlayResult
from executor.ranks.environment import sharing
from executor.ranks.launch import Interrupted, time_limit
from executor.twin import run_program
from executor.validation.gpu_calibration import calibration_of
from executor.validation.gpu_cases import Case
from executor.validation.gpu_fit import fitting, notes
from executor.validation.gpu_rows import Row, classes_of, key_of, ops_within, read_row, write_row
from executor.validation.gpu_site import Site
from sim.align import Comparison, Measured, align_by_class, align_by_id
from sim.files.chrome import write_trace
from sim.files.runs import write_atomic
from sim.plan import Plan
from sim.predict import predict_setting
from sim.result.prediction import Prediction
from sim.setting.bind import Setting
from sim.setting.program import program_for
from sim.steady.detail import STEPS
from sim.timeline.metrics import step_time
from topologies.errors import Refused

T = TypeVar("T")
_SECONDS_OF_STEPS = 4.0
"""Seconds for which steps are timed, about: of short steps more are timed."""
_PLAN_SECONDS = 150.0
"""The most seconds that one plan may take in all."""
_FEWEST_SECONDS = 30.0
"""With fewer seconds left, no further plan is begun: two CUDA contexts and preparation take half of that, although torch is imported
before."""
NOT_RUN = "not begun: the minutes were over. The next call goes on from here"


def row_of(case: Case, site: Site) -> Row:
    """The row that an earlier call has left in the plan's folder, or a new one. Raises only `Interrupted`."""
    folder = site.folder / case.name
    key = case_key(case, site)
    known = read_row(folder, key)
    if known is not None:
        return known
    tried = read_row(folder, key, whole=False)
    row = Row(plan=case.name, kind=case.kind, model=case.plan.model_name, ranks=case.plan.world, key=key, made_with=site.versions)
    left = site.end - time.monotonic()
    if (left < _FEWEST_SECONDS and site.device == "cuda") or left < 0:
        if tried is not None:  # an incomplete row is better than none
            return tried
        row.failed["plan"] = NOT_RUN
        return row
    begin = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with time_limit(min(_PLAN_SECONDS, max(left, _FEWEST_SECONDS))), _ranks(case, site):
        _guarded(row, "plan", folder, lambda: _fill(row, case, site, folder))
    row.seconds = time.monotonic() - begin
    write_row(folder, row)
    return row


def case_key(case: Case, site: Site) -> str:
    """A key of all that a row of this plan depends on here."""
    return key_of(case.plan, *site.made_with)


def _ranks(case: Case, site: Site) -> AbstractContextManager[None]:
    return sharing() if case.where == "shared" and site.device == "cuda" else nullcontext()


def _guarded(row: Row, what: str, folder: Path, call: Callable[[], T]) -> T | None:
    """The result of `call`; None if it fails, and then the row says why. Raises only `Interrupted`."""
    try:
        return call()
    except Interrupted:
        raise
    except Refused as error:
        (row.refused if what in ("played", "stock") else row.failed)[what] = str(error)
    except Exception as error:  # one plan's fault, whatever it is, must not end the others
        words = str(error) or type(error).__name__
        row.failed[what] = words.replace(str(folder), folder.name)  # rows are published without the folder's path
        write_atomic(folder / f"{what}.error.txt", traceback.format_exc())
    return None


def _fill(row: Row, case: Case, site: Site, folder: Path) -> None:
    """Predicts, plays and trains one plan. If one of these fails, the others still run."""
    setting, plan = fitting(case, site)
    row.model, row.notes = plan.model_name, notes(case, setting)
    from_catalog = predict_setting(setting, steps=STEPS, fold=False)
    row.uncalibrated, row.predicted_memory = from_catalog.step_time_s, from_catalog.memory.allocated
    path = _guarded(row, "calibration", folder, lambda: calibration_of(case, site))
    best = from_catalog  # used if the probe has failed; `row.failed` says so
    if path is not None:
        best = predict_setting(setting, calibration=path, steps=STEPS, fold=False)
        row.calibrated, row.mark, row.measured_share = best.step_time_s, best.mark, best.sources.get("measured", 0.0)
        row.clock = best.clock
    assert best.trace is not None and from_catalog.trace is not None
    write_trace(best.trace, folder / "predicted.json.gz")
    count = max(5, min(site.steps, round(_SECONDS_OF_STEPS / best.step_time_s)))
    catalog_to_played = best_to_played = best_to_stock = None
    with clocks() as row.clocks:
        played = _guarded(row, "played", folder, lambda: _played(row, case, setting, best, path, folder, count))
        if played is not None:
            write_trace(played.trace, folder / "played.json.gz")
            catalog_to_played = align_by_id(from_catalog.trace, played.trace, played.step_times)
            best_to_played = align_by_id(best.trace, played.trace, played.step_times)
            row.played, row.ops_within = Measured.of(played.step_times), ops_within(best_to_played)
        best_to_stock = _guarded(row, "stock", folder, lambda: _stock(row, plan, best, folder, count))
    row.classes = classes_of(catalog_to_played, best_to_played if path is not None else None, best_to_stock)


def _played(row: Row, case: Case, setting: Setting, best: Prediction, path: Path | None, folder: Path, steps: int) -> PlayResult:
    """Plays the program; with its output (checkpoints, logs) only if that comes in every step. Raises `Refused` for ranks that share a
    GPU."""
    if case.where == "shared" and setting.topology.kind == "cuda":
        raise Refused("gloo's collectives of device tensors hold the host thread; the program's do not. Stock training is measured")
    assert best.program is not None and best.trace is not None
    program = best.program
    row.played_predicted = step_time(best.trace)
    if set(setting.plan.output.periods) == {1}:
        program, row.played_predicted = program_for(setting, STEPS), best.step_time_s
    return run_program(program, setting, path, folder, steps)


def _stock(row: Row, plan: Plan, best: Prediction, folder: Path, steps: int) -> Comparison | None:
    """Trains the plan with PyTorch's own machinery, and compares; None if the profiler saw nothing of the device. Raises `Refused` if
    PyTorch cannot train it."""
    stock, times = trained(plan, folder, steps, plan.period)
    assert best.trace is not None
    write_trace(stock.trace, folder / "stock.json.gz")
    row.stock, row.stock_memory = Measured.of(times), stock.memory
    if not any(span.kind == "compute" for span in stock.trace.spans):  # without CUPTI, as in some containers, torch profiles the host alone
        row.notes += ("torch's profiler saw no kernels: there are no stock figures by class",)
        return None
    return align_by_class(best.trace, stock.trace, times)
