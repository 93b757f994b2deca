"""One plan of the GPU table predicted, played and trained: its row."""

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
"""Steps are timed for about so long: short ones more often."""
_PLAN_SECONDS = 150.0
"""No plan may take longer than this in all."""
_FEWEST_SECONDS = 30.0
"""With less than this left, no further plan is begun: two contexts on the GPU and preparing take half of it, torch is imported before."""
NOT_RUN = "not begun: the minutes were over. The next call goes on from here"


def row_of(case: Case, site: Site) -> Row:
    """The row that lies in the plan's folder, or a new one; never raises but for an interrupt."""
    folder = site.folder / case.name
    key = case_key(case, site)
    known = read_row(folder, key)
    if known is not None:
        return known
    tried = read_row(folder, key, whole=False)
    row = Row(plan=case.name, kind=case.kind, model=case.plan.model_name, ranks=case.plan.world, key=key, made_with=site.versions)
    left = site.end - time.monotonic()
    if (left < _FEWEST_SECONDS and site.device == "cuda") or left < 0:
        if tried is not None:  # half of a row is more than none
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
    """Names all that a row of this plan depends on here."""
    return key_of(case.plan, *site.made_with)


def _ranks(case: Case, site: Site) -> AbstractContextManager[None]:
    return sharing() if case.where == "shared" and site.device == "cuda" else nullcontext()


def _guarded(row: Row, what: str, folder: Path, call: Callable[[], T]) -> T | None:
    """What `call` gives; where it fails, None, and the row says why."""
    try:
        return call()
    except Interrupted:
        raise
    except Refused as error:
        (row.refused if what in ("played", "stock") else row.failed)[what] = str(error)
    except Exception as error:  # one plan's fault, whatever it is, must not end the others
        words = str(error) or type(error).__name__
        row.failed[what] = words.replace(str(folder), folder.name)  # the row is published, the folder's place is not
        write_atomic(folder / f"{what}.error.txt", traceback.format_exc())
    return None


def _fill(row: Row, case: Case, site: Site, folder: Path) -> None:
    """Predicts, plays and trains one plan; each on its own, so that one that fails leaves the others."""
    setting, plan = fitting(case, site)
    row.model, row.notes = plan.model_name, notes(case, setting)
    from_catalog = predict_setting(setting, steps=STEPS, fold=False)
    row.uncalibrated, row.predicted_memory = from_catalog.step_time_s, from_catalog.memory.allocated
    path = _guarded(row, "calibration", folder, lambda: calibration_of(case, site))
    best = from_catalog  # where the probe has failed; `row.failed` tells
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
    """Plays the program, with its output where that comes with every step."""
    if case.where == "shared" and setting.topology.kind == "cuda":
        raise Refused("gloo's collectives of device tensors hold the host thread; the program's do not. Stock training is measured")
    assert best.program is not None and best.trace is not None
    program = best.program
    row.played_predicted = step_time(best.trace)
    if set(setting.plan.output.periods) == {1}:
        program, row.played_predicted = program_for(setting, STEPS), best.step_time_s
    return run_program(program, setting, path, folder, steps)


def _stock(row: Row, plan: Plan, best: Prediction, folder: Path, steps: int) -> Comparison | None:
    """Trains the plan with PyTorch's own machinery; None where the profiler saw nothing of the device. Raises `Refused` where it has none for it."""
    stock, times = trained(plan, folder, steps, plan.period)
    assert best.trace is not None
    write_trace(stock.trace, folder / "stock.json.gz")
    row.stock, row.stock_memory = Measured.of(times), stock.memory
    if not any(span.kind == "compute" for span in stock.trace.spans):  # without CUPTI, as in some containers, torch profiles the host alone
        row.notes += ("torch's profiler saw no kernels: there are no stock figures by class",)
        return None
    return align_by_class(best.trace, stock.trace, times)
