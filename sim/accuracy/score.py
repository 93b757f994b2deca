"""Errors of predictions: signed, mean, median, by group; and the baseline that any tool must beat.

An error is (predicted - measured) / measured of the step time. MAPE is the mean of its absolute value, `bias`
the mean of its sign-carrying value, in fractions (0.12 = 12 %).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

import msgspec


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One row with its prediction. `ideal_s` is model FLOPs over the peak of all GPUs; the baseline divides it by one utilisation for all
    rows."""

    row_id: str
    source_id: str
    family: str
    gpu: str
    model: str
    framework: str
    measured_s: float
    predicted_s: float
    interval_s: tuple[float, float] | None = None
    """Where the measurement lies with the stated probability (`sim.result.uncertainty`)."""
    mark: str = ""
    """calibrated | interpolated | extrapolated."""
    ideal_s: float
    samples: float
    """Sequences or images per step, to compare throughputs."""
    gpus: int
    machine: str = ""
    """The topology expression."""
    edits: tuple[str, ...] = ()
    """The what-ifs on that topology."""
    plan_key: str = ""
    """Identifies the plan and its machine, without the plan's name. Rows with equal keys measured the same plan."""
    what: str = ""
    """The plan in one line of text."""
    assumed: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0

    @property
    def inside(self) -> bool:
        """The measurement lies in the interval."""
        return self.interval_s is not None and self.interval_s[0] <= self.measured_s <= self.interval_s[1]


class Summary(msgspec.Struct, frozen=True):
    """Errors of one group, in fractions."""

    rows: int
    mape: float
    median_ape: float
    bias: float


def summarise(errors: Sequence[float]) -> Summary:
    """Summary of `errors`, which are signed fractions. An empty group gives zeros and rows = 0."""
    if not errors:
        return Summary(0, 0.0, 0.0, 0.0)
    size = [abs(error) for error in errors]
    return Summary(len(errors), fmean(size), median(size), fmean(errors))


def by(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, Summary]:
    """Summaries of the groups that `key` makes, largest group first."""
    groups: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        groups[key(outcome)].append(outcome.error)
    return {name: summarise(errors) for name, errors in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))}


def coverage(outcomes: Iterable[Outcome]) -> float:
    """Share of measurements that lie in the interval of their prediction. Predictions without an interval are not counted; 0 if none has
    one."""
    inside = [outcome.inside for outcome in outcomes if outcome.interval_s is not None]
    return fmean(inside) if inside else 0.0


def coverage_by(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, float]:
    """`coverage` of the groups that `key` makes, largest group first."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[key(outcome)].append(outcome)
    return {name: coverage(group) for name, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))}


def coverage_table(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Coverage of the intervals: of all rows and by source, GPU, family and mark. `mean_width` is the mean of width / prediction."""
    widths = [(o.interval_s[1] - o.interval_s[0]) / o.predicted_s for o in outcomes if o.interval_s is not None]
    return {
        "coverage": coverage(outcomes),
        "mean_width": fmean(widths) if widths else 0.0,
        "by_source": coverage_by(outcomes, lambda o: o.source_id),
        "by_gpu": coverage_by(outcomes, lambda o: o.gpu),
        "by_family": coverage_by(outcomes, lambda o: o.family),
        "by_mark": coverage_by(outcomes, lambda o: o.mark or "none"),
    }


def constant_mfu(outcomes: Sequence[Outcome]) -> tuple[float, Summary]:
    """The one utilisation that fits these rows best (chosen with hindsight), and its errors.

    With t = ideal / mfu the sum of |ideal / (mfu x measured) - 1| is smallest at the median of measured / ideal
    weighted by ideal / measured.
    """
    pairs = sorted((o.measured_s / o.ideal_s, o.ideal_s / o.measured_s) for o in outcomes if o.ideal_s > 0)
    if not pairs:
        return 0.0, summarise(())
    half, passed, inverse = sum(weight for _, weight in pairs) / 2, 0.0, pairs[-1][0]
    for ratio, weight in pairs:
        passed += weight
        if passed >= half:
            inverse = ratio
            break
    return 1.0 / inverse, summarise([inverse * o.ideal_s / o.measured_s - 1.0 for o in outcomes if o.ideal_s > 0])


def baseline_table(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """`constant_mfu` of all rows, and the errors of predictions with this one utilisation, by source, GPU and family."""
    mfu, total = constant_mfu(outcomes)
    keys: dict[str, Callable[[Outcome], str]] = {"source": lambda o: o.source_id, "gpu": lambda o: o.gpu, "family": lambda o: o.family}
    as_baseline = [msgspec.structs.replace(o, predicted_s=o.ideal_s / mfu) for o in outcomes if o.ideal_s > 0 and mfu > 0]
    found: dict[str, object] = {"mfu": mfu, **msgspec.structs.asdict(total)}
    for name, key in keys.items():
        found[f"by_{name}"] = {group: msgspec.structs.asdict(one) for group, one in by(as_baseline, key).items()}
    return found
