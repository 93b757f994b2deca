"""What a twin says of a large error: the class of op that accounts for it, or that none does."""

from __future__ import annotations

import pytest

from executor.twin import _cause
from sim.align import ClassError, Comparison, Measured, guilty


def compared(predicted: float, timed: float, **classes: tuple[float, float]) -> Comparison:
    rows = tuple(ClassError(name, *seconds, 1) for name, seconds in classes.items())
    return Comparison(predicted, Measured.of([timed]), rows)


def test_the_guilty_class_is_off_in_the_direction_of_the_step() -> None:
    one = compared(0.1, 0.2, gemm=(0.09, 0.03), host=(0.01, 0.05))
    assert guilty(one) == ("host", pytest.approx(-0.04))
    assert guilty(compared(0.1, 0.2, gemm=(0.09, 0.03))) == ("", 0.0)


@pytest.mark.parametrize(
    ("host", "recorded", "words"),
    [
        (0.10, 0.200, "most of it in class 'host' (-90.00 ms a step)"),
        (0.04, 0.200, "the largest part in class 'host' (-30.00 ms a step)"),
        (0.04, 0.120, "most of it in no class: the step that was recorded op by op took 120.00 ms, those that were timed 200.00"),
        (0.01, 0.190, "no class of op is off in that direction"),
    ],
)
def test_the_cause_of_an_error_is_told(host: float, recorded: float, words: str) -> None:
    assert _cause(compared(0.1, 0.2, gemm=(0.09, 0.09), host=(0.01, host)), recorded).startswith(words)
