"""Means over periods, and the pace of ranks that do not wait for each other."""

from __future__ import annotations

import pytest

from executor.repeats import means, together


def test_means_are_of_whole_periods() -> None:
    assert means([1, 3, 5, 7, 9], 2) == [2, 6]


def test_paces_of_ranks_that_wait_for_nobody_add_up() -> None:
    """One makes a step in 1 s, one in 3: 4 steps in 3 s, 2 for 2 ranks in 1.5 s."""
    assert together([[1.0] * 6, [3.0] * 2], 2) == [pytest.approx(1.5)]


def test_steps_after_the_first_has_ended_do_not_count() -> None:
    """Its core is free then, and the others are quicker."""
    assert together([[1.0, 1.0, 1.0], [1.5, 1.5, 0.5]], 1) == [pytest.approx(2 / (1 + 1 / 1.5))] * 2


def test_a_rank_that_makes_less_than_a_period_counts_by_its_mean() -> None:
    assert together([[1.0] * 6, [9.0, 9.0]], 3) == [pytest.approx(2 / (1 + 1 / 9))]
