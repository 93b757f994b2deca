"""Errors, the constant-utilisation baseline, and rank correlation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.accuracy import score
from sim.accuracy.score import Outcome

times = st.floats(0.01, 1000.0)


def outcome(predicted: float, measured: float = 1.0, ideal: float = 0.5, **more: object) -> Outcome:
    fields = {"row_id": "r", "source_id": "s", "family": "f", "gpu": "H100", "model": "m", "framework": "x", "samples": 8.0, "gpus": 8}
    return Outcome(predicted_s=predicted, measured_s=measured, ideal_s=ideal, **(fields | more))  # type: ignore[arg-type]


def test_signs_and_sizes() -> None:
    found = score.summarise([-0.1, 0.3, 0.1])
    assert (found.rows, found.mape, found.median_ape, found.bias) == (3, pytest.approx(0.5 / 3), 0.1, pytest.approx(0.1))
    assert outcome(1.2).error == pytest.approx(0.2)


def test_groups_come_largest_first() -> None:
    groups = score.by([outcome(1, gpu="A"), outcome(2, gpu="B"), outcome(3, gpu="B")], lambda o: o.gpu)
    assert list(groups) == ["B", "A"] and groups["B"].mape == pytest.approx(1.5)


def test_one_utilisation_recovers_a_constant() -> None:
    mfu, errors = score.constant_mfu([outcome(9, measured=m, ideal=0.4 * m) for m in (1.0, 2.0, 5.0)])
    assert mfu == pytest.approx(0.4) and errors.mape == pytest.approx(0.0)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=12), st.floats(0.5, 2.0))
def test_no_other_constant_is_better(pairs: list[tuple[float, float]], other: float) -> None:
    outcomes = [outcome(1, measured=m, ideal=i) for m, i in pairs]
    mfu, best = score.constant_mfu(outcomes)
    rival = score.summarise([o.ideal_s / (mfu * other) / o.measured_s - 1 for o in outcomes])
    assert best.mape <= rival.mape * (1 + 1e-9) + 1e-12
