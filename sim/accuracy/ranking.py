"""Are plans put in the right order? Rank correlation within each model and GPU, and how far measurements themselves agree on the order."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from sim.accuracy.score import Outcome

MIN_PLANS = 6
"""Least number of different plans for which a (model, GPU) pair is ranked."""
_DRAWS = 400

Plans = dict[str, list[Outcome]]
"""Plan -> its measurements; more than one if the same plan was measured again, in another release or at another date."""


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values sharing their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for index in order[at : end + 1]:
            found[index] = (at + end) / 2 + 1
        at = end + 1
    return found


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation in [-1, 1]: Pearson's of the ranks. Constant input has none: 0."""
    ra, rb = ranks(a), ranks(b)
    ma, mb = fmean(ra), fmean(rb)
    cov = sum((x - ma) * (y - mb) for x, y in zip(ra, rb, strict=True))
    va, vb = sum((x - ma) ** 2 for x in ra), sum((y - mb) ** 2 for y in rb)
    return cov / (va * vb) ** 0.5 if va > 0 and vb > 0 else 0.0


def rank_correlations(outcomes: Iterable[Outcome], value: Callable[[Outcome], tuple[float, float]] | None = None) -> dict[str, float]:
    """Spearman's of (measured, predicted) in each "model on GPU" with enough different plans.

    A plan measured more than once counts once, by the mean of its measurements. `value` gives (measured, predicted); default: step times.
    """
    value = value or (lambda o: (o.measured_s, o.predicted_s))
    found = {}
    for name, plans in _groups(outcomes).items():
        pairs = [[value(outcome) for outcome in seen] for seen in plans.values()]
        found[name] = spearman([fmean(m for m, _ in seen) for seen in pairs], [fmean(p for _, p in seen) for seen in pairs])
    return found


def measured_again(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The rank correlation, in each "model on GPU", between the measurements and a second measurement of the same plans. An exact
    prediction can be expected to reach this value, because measurements scatter. It is the mean of 400 log-normal draws around the measured
    times, with the scatter of `noise`, divided by sqrt(n) for a plan that was measured n times. Empty if no plan was measured twice."""
    scatter = noise(outcomes)
    if not scatter:
        return {}
    found = {}
    for name, plans in _groups(outcomes).items():
        draw = random.Random(name)  # a group's draws do not depend on which others there are
        measured = [fmean(o.measured_s for o in seen) for seen in plans.values()]
        sigma = [scatter.get(seen[0].source_id, scatter[""]) / math.sqrt(len(seen)) for seen in plans.values()]
        again = ([time * math.exp(draw.gauss(0.0, s)) for time, s in zip(measured, sigma, strict=True)] for _ in range(_DRAWS))
        found[name] = fmean(spearman(measured, times) for times in again)
    return found


def noise(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Standard deviation of the logarithm of a measured step time, by source, pooled over its plans that were measured more than once;
    "": of all sources together. Empty where there is none."""
    squares: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for seen in _plans(outcomes).values():
        if len(seen) > 1:
            logs = [math.log(o.measured_s) for o in seen]
            one = sum((x - fmean(logs)) ** 2 for x in logs), len(logs) - 1
            squares[seen[0].source_id].append(one)
            squares[""].append(one)
    return {source: math.sqrt(sum(s for s, _ in found) / sum(n for _, n in found)) for source, found in squares.items()}


def spread(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Row -> largest over smallest measurement of its plan, less 1, where a plan was measured more than once: what no
    prediction can be closer than."""
    return {
        o.row_id: max(x.measured_s for x in same) / min(x.measured_s for x in same) - 1.0
        for same in _plans(outcomes).values()
        if len(same) > 1
        for o in same
    }


def throughput(outcome: Outcome) -> tuple[float, float]:
    """(measured, predicted) samples per second and GPU, for `rank_correlations`. The order is harder to predict than that of step times, as
    the batch size no longer helps."""
    per = outcome.samples / outcome.gpus
    return per / outcome.measured_s, per / outcome.predicted_s


def _plans(outcomes: Iterable[Outcome]) -> Plans:
    found: Plans = defaultdict(list)
    for outcome in outcomes:
        found[outcome.plan_key or outcome.row_id].append(outcome)
    return found


def _groups(outcomes: Iterable[Outcome]) -> dict[str, Plans]:
    """The plans of each "model on GPU" that has enough of them, by name."""
    rows: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        rows[f"{outcome.model} on {outcome.gpu}"].append(outcome)
    groups = {name: _plans(group) for name, group in sorted(rows.items())}
    return {name: plans for name, plans in groups.items() if len(plans) >= MIN_PLANS}
