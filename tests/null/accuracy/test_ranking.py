"""Rank correlation, and what scatter of the measurements leaves of it."""

from __future__ import annotations

import math

import pytest

from sim.accuracy import ranking
from sim.accuracy.score import Outcome
from tests.null.accuracy.test_score import outcome


def test_spearman_of_order_and_reversal() -> None:
    assert ranking.spearman([1, 2, 3, 4], [10, 20, 25, 90]) == pytest.approx(1.0)
    assert ranking.spearman([1, 2, 3, 4], [9, 7, 5, 1]) == pytest.approx(-1.0)
    assert ranking.ranks([5.0, 1.0, 5.0]) == [2.5, 1.0, 2.5]
    assert ranking.spearman([1, 1, 1], [1, 2, 3]) == 0.0


def test_plans_measured_again_count_once() -> None:
    many = [outcome(p, measured=m, plan_key=str(k)) for k, (p, m) in enumerate([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)])]
    assert ranking.rank_correlations(many + many) == {}
    assert ranking.rank_correlations([*many, outcome(6, measured=6, plan_key="9")]) == {"m on H100": pytest.approx(1.0)}


def test_scatter_is_that_of_plans_measured_again() -> None:
    twice = [outcome(1, measured=m, plan_key="a", source_id="x") for m in (1.0, 1.1)]
    once = [outcome(1, measured=5.0, plan_key="b", source_id="y")]
    assert ranking.noise(once) == {}
    assert ranking.noise(twice + once) == {k: pytest.approx(math.log(1.1) / math.sqrt(2)) for k in ("", "x")}
    other = [outcome(1, measured=2.0, plan_key="c", source_id="y")] * 2
    assert ranking.noise(twice + other)[""] == pytest.approx(math.log(1.1) / 2)  # two plans, a degree of freedom each


def test_near_ties_are_not_ordered_by_another_measurement() -> None:
    again = [outcome(1, measured=m, plan_key="again", model="other") for m in (1.0, 1.05)]

    def plans(step: float) -> list[Outcome]:
        return [outcome(1, measured=1 + step * k, plan_key=str(k)) for k in range(6)]

    far, near = (ranking.measured_again(plans(step) + again)["m on H100"] for step in (1.0, 0.002))
    assert far == pytest.approx(1.0) and -0.1 < near < 0.4
    assert ranking.measured_again(plans(1.0)) == {}
    assert ranking.measured_again(plans(0.002) + again)["m on H100"] == near  # the same draws each time


def test_a_plan_measured_often_scatters_less() -> None:
    seen = [[outcome(1, measured=(1 + 0.03 * k) * m, plan_key=str(k)) for m in (0.95, 1.05)] for k in range(6)]
    once, often = (ranking.measured_again([o for plan in seen for o in plan * times])["m on H100"] for times in (1, 8))
    assert once < often
