"""Means over periods, and the pace of ranks that do not wait for each other."""

from __future__ import annotations

import pytest

from executor.repeats import means, together


def test_means_are_of_whole_periods() -> None:
    assert means([1, 3, 5, 7, 9], 2) == [2, 6]


def test_paces_of_ranks_that_wait_for_nobody_add_up() -> None:
    """Steps of 1 s and of 2 s: 3 steps in 2 s, 2 for 2 ranks in 4/3 s."""
    assert together([[1.5, 2.5, 3.5, 4.5], [0.5, 2.5, 4.5]]) == pytest.approx(4 / 3)


def test_steps_that_end_after_the_first_rank_has_do_not_count() -> None:
    """Its core is free then, and the others are quicker: of the second rank the step of 2 s counts, not that of 0.5."""
    assert together([[1.0, 2.0, 3.0], [1.0, 3.0, 3.5]]) == pytest.approx(4 / 3)
