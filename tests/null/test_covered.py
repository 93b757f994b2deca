"""Where coverage is measured, tests with the mark `no_cover` and the fixtures that they are the first to need are left out, no others."""

from __future__ import annotations

import pytest
from coverage import Coverage


def measured() -> bool:
    """Whether anything measures coverage now."""
    return Coverage.current() is not None


@pytest.fixture
def measured_before() -> bool:
    return measured()


@pytest.mark.no_cover
def test_a_marked_test_is_not_measured(measured_before: bool) -> None:
    assert not measured_before and not measured()


def test_all_others_are_measured(pytestconfig: pytest.Config, measured_before: bool) -> None:
    """What a mark paused goes on after it."""
    assert (measured_before and measured()) or not pytestconfig.getoption("cov_source", None)
