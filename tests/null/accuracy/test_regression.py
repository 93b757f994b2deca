"""The published steps keep their accuracy: a fixed sample, predicted from plan and machine alone.

The bounds stand about two points from what is reached, so that a change which makes predictions worse is seen here.
"""

from __future__ import annotations

import pytest

from sim.accuracy.published import published_rows, sample
from sim.accuracy.result import ValidationResult
from sim.accuracy.score import constant_mfu, coverage
from sim.accuracy.training import validate_training

ROWS = 60
DEEPEST = 4
"""Pipeline stages at most: deeper pipelines take most of the time to simulate."""
MAPE, MEDIAN, BIAS = 0.115, 0.082, 0.05
"""Bounds on the mean, the median and the size of the signed mean of the errors: 0.094, 0.061 and -0.030 were reached."""


@pytest.fixture(scope="module")
def result() -> ValidationResult:
    chosen = {row.row_id for row in sample(ROWS, [row for row in published_rows() if (row.pp or 1) <= DEEPEST])}
    return validate_training(None, workers=1, only=lambda row: row.row_id in chosen)


@pytest.mark.no_cover
def test_all_rows_are_predicted(result: ValidationResult) -> None:
    assert result.scored == ROWS and not result.refused


def test_errors_stay_within_bounds(result: ValidationResult) -> None:
    found = result.all
    assert found.mape <= MAPE
    assert found.median_ape <= MEDIAN
    assert abs(found.bias) <= BIAS


def test_one_utilisation_for_everything_is_far_worse(result: ValidationResult) -> None:
    assert result.mape < 0.6 * constant_mfu(result.outcomes)[1].mape


def test_intervals_hold_about_as_many_as_they_say(result: ValidationResult) -> None:
    assert 0.62 <= coverage(result.outcomes) <= 0.95
    assert {outcome.mark for outcome in result.outcomes} <= {"interpolated", "extrapolated"}
