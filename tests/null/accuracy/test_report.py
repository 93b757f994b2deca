"""The page of validate: every row can be hovered, the baseline and what was missed are in sight, and it needs no network."""

from __future__ import annotations

from typing import Any

import pytest

from reports.figures.published import distribution, scatter
from reports.pages.validation import validation_page
from sim.accuracy.result import Found, Refusal, ValidationResult
from sim.accuracy.score import Outcome


def outcome(row_id: str, predicted: float, measured: float, **more: object) -> Outcome:
    fields = {
        "source_id": "press", "family": "dense", "gpu": "H100", "model": "gpt <1B>", "framework": "x", "samples": 8.0, "gpus": 8,
        "ideal_s": measured / 2, "interval_s": (predicted * 0.9, predicted * 1.1), "mark": "interpolated", "what": "8 GPUs, tp 2",
        "plan_key": row_id,
    }  # fmt: skip
    return Outcome(row_id=row_id, predicted_s=predicted, measured_s=measured, **(fields | more))  # type: ignore[arg-type]


@pytest.fixture
def summary() -> dict[str, Any]:
    outcomes = [outcome(f"press-{index}", 1.0 + index, 1.05 * (1.0 + index), plan_key=str(index)) for index in range(6)]
    outcomes += [outcome("far-1", 3.0, 1.0, source_id="mill", gpu="V100", mark="extrapolated", assumed=("recomputation not stated: none",))]
    outcomes += [outcome("far-2", 3.0, 1.5, source_id="mill", gpu="V100", plan_key="far-1")]
    found = {"far-1": Found(3.0, 0.5, shares={("gemm", "assumed"): 0.7, ("host", "fitted"): 0.3})}
    refused = (Refusal("lost-1", "no <machine>"), Refusal("lost-2", "no <machine>"))
    return ValidationResult(rows=10, eligible=10, outcomes=tuple(outcomes), refused=refused, found=found).to_dict()


def test_the_page_stands_alone_and_escapes_what_it_was_given(summary: dict[str, Any]) -> None:
    text = validation_page(summary)
    assert "<title>Predicted against published training steps</title>" in text and ">no &lt;machine&gt;</td>" in text
    head, _, body = text.partition("</script></head>")
    assert "src=" not in body.replace("data-src=", "") and len(head) > 1_000_000
    assert "lost-1, lost-2" in body


def test_misses_say_what_they_rest_on(summary: dict[str, Any]) -> None:
    text = validation_page(summary)
    assert "gemm 70% (assumed), host 30% (fitted); the same plan was measured 50% apart; recomputation not stated: none" in text
    assert "+200%" in text


def test_targets_that_are_missed_are_told(summary: dict[str, Any]) -> None:
    text = validation_page(summary)
    for told in ("Mean error is", "Bias is", "80.0% of the rows are predicted"):
        assert told in text
    near = {**summary, "mape": 0.05, "median_ape": 0.05, "bias": 0.0, "coverage": 1.0}
    near["interval"] = {**summary["interval"], "coverage": 0.8}
    near["by_gpu"] = near["by_family"] = near["rank_correlation"] = {}
    near["interval"]["by_gpu"] = near["interval"]["by_family"] = {}
    assert 'class="warn"' not in validation_page(near)


def test_every_row_is_a_point_with_its_plan(summary: dict[str, Any]) -> None:
    figure = scatter(summary["predictions"])
    points = {text.split("</b>")[0][3:]: text for trace in figure.data if trace.mode == "markers" for text in trace.text}
    assert set(points) == set(summary["predictions"])
    assert "8 GPUs, tp 2" in points["far-1"] and "(+200.0%)" in points["far-1"] and "extrapolated" in points["far-1"]
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_cells_of_a_table_are_text_and_no_markup(summary: dict[str, Any]) -> None:
    cell = '<a href="x">y</a>'
    row = next(iter(summary["predictions"].values())) | dict.fromkeys(("source", "model", "gpu", "what"), cell)
    text = scatter({cell: row}).to_plotly_json()
    assert "<a href" not in str(text) and "&lt;a href" in str(text)


def test_the_baseline_stands_beside_the_errors(summary: dict[str, Any]) -> None:
    base, ours = distribution(summary).data
    assert (base.name, ours.name) == ("one MFU for everything", "StepTwin")
    assert len(base.x) == len(ours.x) == 8 and max(ours.x) == 99.0
    assert all(abs(value) < 1e-9 for value in base.x)  # every row of this table has the same utilisation
    assert summary["baseline_constant_mfu"]["mfu"] == pytest.approx(0.5)
    assert set(summary["baseline_constant_mfu"]["by_gpu"]) == {"H100", "V100"}
