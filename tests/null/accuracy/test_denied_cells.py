"""Cells of numbers that say so in words: none of something, attention by its name, experts with what stands beside them."""

from __future__ import annotations

import pytest

from sim.accuracy.architecture.names import shipped_model
from sim.accuracy.row import rows_of
from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.wording import precision_of
from tests.null.accuracy.test_spellings import row


@pytest.mark.parametrize(
    ("column", "words", "value"),
    [
        ("vp", "no", 1), ("vp", "False", 1), ("vp", "no (1F1B)", 1), ("grad_accum", "off", 1), ("tp", "no", 1), ("cp", "disabled", 1), ("n_experts", "no", None),
        ("n_kv_heads", "MHA", 32), ("n_kv_heads", "multi-head", 32), ("n_kv_heads", "MQA", 1), ("n_kv_heads", "GQA", None), ("n_kv_heads", "GQA-8", 8), ("n_kv_heads", "8 (GQA)", 8),
        ("n_experts", "8 experts", 8), ("n_experts", "64 routed + 2 shared", 64), ("n_experts", "64 routed experts", 64), ("top_k", "top-2", 2), ("top_k", "Top 2", 2), ("top_k", "2 of 8", 2),
    ],
)  # fmt: skip
def test_words_in_cells_of_numbers(column: str, words: str, value: int | None) -> None:
    (found,) = rows_of([{"row_id": "a", "n_heads": "32", column: words}])
    assert (getattr(found, column), found.problem) == (value, "")


def test_a_number_that_cannot_be_denied_is_still_wrong() -> None:
    (found,) = rows_of([{"row_id": "a", "gpus": "no", "hidden": "off"}])
    assert "gpus" in found.problem and "hidden" in found.problem


def test_interleaving_that_is_denied_is_not_assumed() -> None:
    """Where nothing is said, Megatron-Core's pipelines interleave."""
    told = {"framework": "Megatron-Core", "sharding": "", "gpus": 4, "pp": 4, "tp": 1, "global_batch": 16}
    assert case_of(row(**told)).plan.parallel.virtual_stages > 1 == case_of(row(**(told | {"vp": 1}))).plan.parallel.virtual_stages


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("16 bit floating point", "fp16"),
        ("16-bit float", "fp16"),
        ("8-bit float", "fp8"),
        ("32-bit floating point", "fp32"),
        ("bfloat 16-bit", "bf16"),
    ],
)
def test_floats_by_their_bits(words: str, found: str) -> None:
    assert precision_of(row(precision=words)) == found


def test_phi_3_5_mini_has_the_layers_of_phi_3_mini() -> None:
    assert shipped_model("microsoft/Phi-3.5-mini-instruct") == "phi3-mini" and shipped_model("Phi-3.5-MoE") == "phi3.5-moe"
