"""Predicted against measured on this machine: small plans of every kind, trained by PyTorch's own machinery.

rows, summary = here(("ddp", "fsdp"), Path("runs/here"))

Each plan is predicted from a calibration of this machine with as many ranks, then trained (or played, where PyTorch has no such
training); the table says how far off the step time is, and whether the prediction names what the step really spent most on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import msgspec

from executor.periods import trained
from executor.training.limits import check_stock
from executor.twin import Say, calibrated, run_program
from executor.validation.here_plans import INPUTS, KINDS, MODELS, SHIPPED
from sim.align import Measured, step_of
from sim.files.planfile import load_plan
from sim.plan import Plan
from sim.predict import predict_setting
from sim.result.prediction import Prediction
from sim.setting.bind import Setting, bind, model_of
from sim.steady.detail import STEPS
from sim.timeline.asynchrony import mean_step
from sim.timeline.bottleneck import bottleneck, bottlenecks
from sim.timeline.metrics import Breakdown, breakdown
from sim.trace import Trace
from topologies.errors import Refused, SteptwinError, UnknownName

APART = 0.15
"""Two plans whose measured medians differ by more than this share should be ranked right by the predictions."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one plan. Times are seconds of a step; `error` is signed, (predicted - measured) / measured."""

    plan: str
    kind: str
    ranks: int
    how: str
    """stock: PyTorch's own training; play: the predicted program."""
    predicted: float = msgspec.field(default=0.0, name="predicted_s")
    measured: float = msgspec.field(default=0.0, name="measured_s")
    low: float = msgspec.field(default=0.0, name="low_s")
    high: float = msgspec.field(default=0.0, name="high_s")
    """10th and 90th percentile of the measured steps."""
    error: float = 0.0
    predicted_bound: str = ""
    measured_bound: str = ""
    """What the step was really bound by; several, joined by "or", if they tie (`sim.timeline.bottleneck.TIE`); "" if unknown."""
    failed: str = ""
    """Why there are no figures; "" if there are."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all rows together."""

    plans: int
    failed: int
    mean_error: float
    """Mean of |error|."""
    pairs: int
    """Pairs of plans whose measured medians lie more than `APART` apart."""
    ranked: int
    """How many of these pairs the predictions put in the same order."""
    bounds: int
    """Plans with a measured bottleneck."""
    named: int
    """How many of these have a prediction that names the measured bottleneck."""


def plans() -> dict[str, tuple[str, Plan]]:
    """All plans of the table by name, each with its kind."""
    found = {name: (kind, load_plan(tree | {"name": name})) for name, (kind, tree) in (KINDS | INPUTS | MODELS).items()}
    return found | {name: ("one bottleneck", load_plan(name)) for name in SHIPPED}


def here(names: Iterable[str] | None, folder: Path, steps: int = 30, say: Say = print) -> tuple[list[Row], Summary]:
    """Predicts and runs the plans `names` (None: all) on this machine; runs and calibrations lie in `folder`.

    A plan that cannot be run gives a row that says why. Raises `UnknownName` for a plan that is not in the table.
    """
    known = plans()
    wanted = list(known) if names is None else list(names)
    for name in wanted:
        if name not in known:
            raise UnknownName("plan of the table", name, known)
    rows = []
    for name in sorted(wanted, key=lambda name: known[name][1].world):
        kind, plan = known[name]
        rows.append(_guarded(name, kind, plan, folder, steps, say))
        say(line(rows[-1]))
    return rows, summary(rows)


def line(row: Row) -> str:
    """One row as text."""
    if row.failed:
        return f"{row.plan:20} {row.kind:26} failed: {row.failed}"
    spread = f"{row.measured * 1e3:8.1f} ms ({row.low * 1e3:.1f} to {row.high * 1e3:.1f})"
    bound = f"{row.predicted_bound} / {row.measured_bound or '-'}"
    return f"{row.plan:20} {row.kind:26} {row.how:5} {row.predicted * 1e3:8.1f} ms predicted, {spread:34} {row.error:+7.1%}  {bound}"


def _guarded(name: str, kind: str, plan: Plan, folder: Path, steps: int, say: Say) -> Row:
    how = how_to_run(plan)
    try:
        return _row(name, kind, plan, how, folder, steps, say)
    except SteptwinError as error:
        return Row(plan=name, kind=kind, ranks=plan.world, how=how, failed=str(error))


def how_to_run(plan: Plan) -> str:
    """`stock` if PyTorch can train the plan, else `play`."""
    try:
        check_stock(plan, model_of(plan))
    except Refused:
        return "play"
    return "stock"


def _row(name: str, kind: str, plan: Plan, how: str, folder: Path, steps: int, say: Say) -> Row:
    path = folder / f"calibration-{plan.world}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    setting = bind(plan, "this-machine")
    calibrated(plan.world, path, say, setting.topology)
    every = plan.averages_every
    predicted = predict_setting(setting, calibration=path, steps=max(STEPS, 1 + every), fold=False)
    assert predicted.program is not None and predicted.trace is not None
    seconds = step_of(predicted.trace, every) if every > 1 else predicted.step_time_s
    times, split = _run(setting, how, predicted, path, folder / name, steps)
    measured = Measured.of(times)
    return Row(
        plan=name,
        kind=kind,
        ranks=plan.world,
        how=how,
        predicted=seconds,
        measured=measured.median,
        low=measured.low,
        high=measured.high,
        error=seconds / measured.median - 1.0,
        predicted_bound=bottleneck(predicted.breakdown, cpu=True),
        measured_bound=" or ".join(bottlenecks(split, cpu=True)) if split is not None else "",
    )


def _run(
    setting: Setting, how: str, predicted: Prediction, calibration: Path, folder: Path, steps: int
) -> tuple[list[float], Breakdown | None]:
    """(measured step times in seconds, breakdown of a step). In stock runs each time is the mean over a period, if some work is not done in
    every step."""
    if how == "play":
        assert predicted.program is not None
        played = run_program(predicted.program, setting, calibration, folder, steps)
        return played.step_times, mean_step(played.trace) if setting.plan.asynchronous else breakdown(played.trace)
    stock, times = trained(setting.plan, folder, steps, setting.plan.period)
    return times, over_all(stock.trace)


def over_all(trace: Trace) -> Breakdown:
    """The breakdown of all profiled steps together, as if they were one step."""
    spans = [msgspec.structs.replace(span, step=0) for span in trace.spans]
    return breakdown(Trace(spans, trace.origin, trace.world, 1))


def summary(rows: list[Row]) -> Summary:
    """The summary over the rows that have figures: errors, ranking and bottlenecks."""
    good = [row for row in rows if not row.failed]
    apart = [
        (a.predicted - b.predicted) * (a.measured - b.measured)
        for a, b in combinations(good, 2)
        if abs(a.measured - b.measured) > APART * min(a.measured, b.measured)
    ]
    bounds = [row for row in good if row.measured_bound]
    return Summary(
        plans=len(good),
        failed=len(rows) - len(good),
        mean_error=statistics.fmean(abs(row.error) for row in good) if good else 0.0,
        pairs=len(apart),
        ranked=sum(product > 0 for product in apart),
        bounds=len(bounds),
        named=sum(row.predicted_bound in row.measured_bound.split(" or ") for row in bounds),
    )
