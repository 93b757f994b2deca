"""The same row in other letters is the same plan: capitals, and hyphens, spaces or underscores between words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import msgspec
import pytest

from sim.accuracy.published import published_rows
from sim.accuracy.row import Row
from sim.accuracy.rows.plans import case_of
from tests.null.accuracy.test_spellings import row as made

ROWS = published_rows()[::37]
WORDS = ("framework", "gpu", "gpu_form", "system", "intra_net", "inter_net", "task", "precision", "batch_unit", "sharding", "sequence_parallel",
         "recompute", "flash_attn", "compile", "comm_overlap", "optimizer", "arch_note", "activation", "model_type")  # fmt: skip
PARTED = ("framework", "gpu", "system", "precision", "sharding", "recompute", "activation", "model_type")


def plan_of(row: Row) -> str:
    """Everything that is predicted from, but names."""
    case = case_of(row)
    tree = msgspec.to_builtins(case.plan)
    tree["name"] = tree["model"]["name"] = ""
    return json.dumps((tree, case.topology, case.edits), sort_keys=True)


@pytest.mark.no_cover
@pytest.mark.parametrize("write", [str.upper, str.lower])
def test_capitals_say_nothing(write: Callable[[str], str]) -> None:
    for row in ROWS:
        assert plan_of(msgspec.structs.replace(row, **{word: write(getattr(row, word)) for word in WORDS})) == plan_of(row), row.row_id


@pytest.mark.no_cover
@pytest.mark.parametrize("between", [" ", "_"])
def test_what_parts_words_says_nothing(between: str) -> None:
    for row in ROWS:
        for word in PARTED:
            other = msgspec.structs.replace(row, **{word: getattr(row, word).replace("-", between)})
            assert plan_of(other) == plan_of(row), (row.row_id, word, getattr(other, word))


@pytest.mark.no_cover
def test_what_follows_from_the_rest_may_be_left_out() -> None:
    for row in ROWS:
        assert plan_of(msgspec.structs.replace(row, dp=None, grad_accum=None)) == plan_of(row), row.row_id


@pytest.mark.no_cover
def test_a_container_says_when_a_row_ran() -> None:
    """NVIDIA's BERT of 21.11 was run as that of before 2021: twice as slow."""
    latest = [row for row in published_rows() if row.framework_version == "NGC pytorch 21.11"]
    for published in (*latest[:2], *ROWS):
        if re.search(r"NGC pytorch.?2\d|NeMo \d|container", published.framework_version):
            assert plan_of(msgspec.structs.replace(published, date="")) == plan_of(published), published.row_id


def test_a_date_says_which_release_of_a_recipe_a_row_ran() -> None:
    for published in ROWS:
        if re.fullmatch(r"NeMo container \d\d\.\d\d", published.framework_version):
            assert plan_of(msgspec.structs.replace(published, framework_version="")) == plan_of(published), published.row_id


@pytest.mark.parametrize("gpu", ["NVIDIA GB200 NVL72", "DGX-GB200", "gb200"])
def test_a_recipes_board_by_any_of_its_names(gpu: str) -> None:
    bridge = {"framework": "Megatron-Bridge", "framework_version": "26.04", "gpus": 64, "sharding": "", "ep": 8}
    moe = {"model_name": "DeepSeek-V3", "model_type": "moe (MLA)", "n_layers": None, "hidden": None}
    assert case_of(made(gpu=gpu, **bridge, **moe)).plan.framework == case_of(made(gpu="GB200", **bridge, **moe)).plan.framework


def test_a_recipe_is_found_where_experts_are_those_of_the_name() -> None:
    """Without their number the recipe of a dense model was taken: DeepSeek-V3 on GB300 1.6 times as slow, GPT-OSS a fifth too fast."""
    for published in ROWS:
        if published.n_experts and published.source_id.startswith("megatron-bridge"):
            silent = msgspec.structs.replace(published, n_experts=None)
            assert plan_of(silent) == plan_of(published), published.row_id


def test_a_large_batch_of_short_sequences_is_no_batch_of_tokens() -> None:
    """LAMB trained BERT with 65,536 sequences; of a decoder so many are tokens."""
    silent = {"batch_unit": "", "global_batch": 1 << 16, "seq_len": 512, "sharding": "none"}
    assert case_of(made(model_name="BERT-Large", model_type="bert", n_layers=None, hidden=None, **silent)).plan.global_batch == 1 << 16
    assert case_of(made(**silent)).plan.global_batch == 128
