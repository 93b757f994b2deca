"""Targets on measured kernels, where the folder of facts is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.accuracy.kernels import attention_score, gemm_score, kernel_scores, memory_score, summary
from sim.accuracy.neusight import neusight_labels, summarise
from sim.cost.fit.data import NEUSIGHT, gemm_rows
from topologies.errors import BadInput

FACTS = Path(__file__).parents[4] / "shared" / "facts"
needs_facts = pytest.mark.skipif(not FACTS.is_dir(), reason="needs the folder of measured kernels beside the project")


@needs_facts
@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "b200-sxm", "l40s", "rtx-pro-6000"])
def test_bf16_products(name: str) -> None:
    score = gemm_score(FACTS, name, "bf16", 400)
    assert score.median <= 0.08
    assert score.p90 <= 0.25
    assert score.left_out <= 0.16
    assert score.median < 0.4 * score.roofline


@needs_facts
@pytest.mark.parametrize("name", ["h100-sxm", "b200-sxm", "gb200", "l40s", "rtx-pro-6000"])
def test_fp8_products(name: str) -> None:
    score = gemm_score(FACTS, name, "fp8", 400)
    assert score.median <= 0.08
    assert score.p90 <= 0.25


@needs_facts
@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "b200-sxm", "l40s", "rtx-pro-6000"])
def test_attention_forward(name: str) -> None:
    assert attention_score(FACTS, name, "bf16", 400).median <= 0.105


@needs_facts
@pytest.mark.parametrize("name", ["a100-pcie-80gb", "v100-pcie-32gb", "t4", "l4", "p100-pcie", "mi100"])
def test_memory_bound_kernels(name: str) -> None:
    assert memory_score(FACTS, name, 300).median <= 0.15


@needs_facts
def test_linear_layers_in_fp32() -> None:
    assert all(gemm_score(FACTS, name, "fp32", 200).median <= 0.15 for name in NEUSIGHT.values() if not name.startswith("mi"))


@needs_facts
def test_the_summary_holds_every_kind() -> None:
    rows = summary(kernel_scores(FACTS, 40))
    assert {(row["kind"], row["dtype"]) for row in rows} == {
        ("gemm", "bf16"), ("gemm", "fp8"), ("linear", "fp32"), ("attention", "bf16"), ("attention", "fp8"), ("memory-bound", "fp32"),
    }  # fmt: skip


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gemm_h100_sxm\.csv does not exist"):
        gemm_rows(tmp_path, "h100-sxm", "bf16")


@needs_facts
def test_neusight_passes_of_dense_models() -> None:
    labels = neusight_labels(FACTS)
    rows = summarise(labels)
    whole = rows[-1]
    assert whole["gpu"] == "all"
    assert whole["rows"] == len(labels) > 90
    assert isinstance(whole["mape"], float)
    assert whole["mape"] <= 0.1
    trained = summarise([label for label in labels if label.training])[-1]
    assert isinstance(trained["mape"], float)
    assert trained["mape"] <= 0.12
