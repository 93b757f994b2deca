"""The refit finds the clocks that made the rows, leaves out what it should, and says so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.accuracy import refit
from sim.accuracy.published import published_rows
from sim.accuracy.refit import ENOUGH, Response, fit, left_out, table
from sim.accuracy.result import Found
from sim.accuracy.rows.plans import Case, case_of
from sim.cost.kernel import assume
from topologies.devices import gpu
from topologies.errors import Refused


def rows(name: str, clock: float, fp8: float = 0.0, count: int = ENOUGH, source: str = "a") -> list[Response]:
    """Steps of 1 s at full clock, 0.6 s of them on tensor cores, as measured at `clock`; every other one of them with 8-bit products."""
    made = []
    for index in range(count):
        small = 0.4 if fp8 and index % 2 else 0.0
        measured = 1.0 + 0.6 * (1 / clock - 1) + (small * (1 / fp8 - 1) if fp8 else 0.0)
        made.append(Response(f"{name}-{source}-{index}", f"{source}{index % 2}", gpu(name), measured, 1.0, 0.6, small))
    return made


@settings(max_examples=25)
@given(st.integers(55, 95), st.integers(55, 95))
def test_the_clocks_that_made_the_rows_are_found(clock: int, fp8: int) -> None:
    found = fit(rows("h100-sxm", clock / 100, fp8 / 100))
    assert found.clock["h100-sxm"] == pytest.approx(clock / 100, abs=0.011)
    assert found.fp8["h100-sxm"] == pytest.approx(fp8 / 100, abs=0.011)


def test_few_rows_give_no_clock_and_take_their_kins() -> None:
    few = rows("h200-sxm", 0.6, count=ENOUGH - 1)
    found = fit([*few, *rows("h100-sxm", 0.8)])
    assert set(found.clock) == {"h100-sxm"}
    assert found.error(few[0]) == pytest.approx(few[0].error(0.8, 1.0))


def test_left_out_rows_do_not_see_their_own_clock() -> None:
    known = [*rows("h100-sxm", 0.8), *rows("a100-sxm-80gb", 0.9)]
    alone = left_out(known, lambda row: row.gpu.name)
    inside = [fit(known).error(row) for row in known]
    assert max(map(abs, inside)) < 0.01 < min(map(abs, alone))


def test_the_table_names_every_clock_and_all_four_sets() -> None:
    known = rows("h100-sxm", 0.8, 0.7)
    text = table(known, fit(known))
    assert "h100-sxm = 0.80" in text and "h100-sxm = 0.70" in text
    for name in ("in sample", "source left out", "GPU left out", "no clock fitted"):
        assert f"# {name}: mean" in text


@pytest.mark.no_cover
def test_steps_at_other_clocks_tell_what_hangs_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of which 3 s go with all products and 2 s more with 8-bit ones: what is found of each published row."""

    def step(clock: float, narrow: float, case: Case) -> Found:
        eight = "fp8" in case.plan.precision or "fp4" in case.plan.precision
        if case.row.framework.startswith("MaxText"):
            raise Refused("no such framework here")
        return Found(5.0 + 3.0 / clock + (2.0 / narrow if eight else 0.0), 1.0)

    monkeypatch.setattr(refit, "predict_at", step)
    monkeypatch.setattr("sim.accuracy.training.read_rows", lambda path: published_rows()[::4])
    found = {one.row_id: one for one in refit.responses("published.csv", workers=1)}
    rows_ = {row.row_id: row for row in published_rows()}
    assert 0 < len(found) < len(rows_) and not any(rows_[name].framework.startswith("MaxText") for name in found)
    for name, one in found.items():
        eight = "fp8" in rows_[name].precision.lower() or "fp4" in rows_[name].precision.lower()
        assert one.slope == pytest.approx(3.0) and one.narrow == pytest.approx(2.0 if eight else 0.0, abs=1e-12)
        assert one.error(0.8, 0.5) == pytest.approx((5 + 3 / 0.8 + (2 / 0.5 if eight else 0)) / one.measured - 1)
    assert sum(one.narrow > 0 for one in found.values()) > 5


def test_a_clock_is_that_of_the_prediction() -> None:
    """And the GPUs have their own again afterwards."""
    case = case_of(next(row for row in published_rows() if row.gpu == "A100" and row.gpus == 8))
    try:
        whole, half = (refit.predict_at(clock, clock, case).seconds for clock in (1.0, 0.5))
    finally:
        assume(None)
    assert 1.05 < half / whole < 2.0
