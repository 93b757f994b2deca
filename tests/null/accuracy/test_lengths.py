"""How long sequences are where a row does not say it, and what a batch of tokens then holds."""

from __future__ import annotations

from typing import Any

import pytest

from sim.accuracy.rows.plans import case_of
from tests.null.accuracy.test_kin import SILENT
from tests.null.accuracy.test_spellings import row

BLANK = SILENT | {"seq_len": None, "global_batch": 64, "micro_batch": 1, "gpus": 64}


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"model_name": "Llama-3.1-70B"}, 8192), ({"model_name": "llama3-8b"}, 8192), ({"model_name": "LLaMA-30B"}, 2048), ({"model_name": "Llama-2-13B"}, 4096),
        ({"model_name": "Mixtral 8x7B"}, 4096), ({"model_name": "Qwen2.5-7B"}, 4096), ({"model_name": "GPT-3 175B"}, 2048), ({"model_name": "GPT-2 XL"}, 1024),
        ({"model_name": "Llama-2-7B", "framework": "torchtitan"}, 8192), ({"model_name": "llama2_70b_lora", "source_id": "mlperf", "task": "lora"}, 8192),
        ({"model_name": "llama31_405b", "source_id": "mlperf"}, 8192), ({"model_name": "gpt3", "source_id": "mlperf"}, 2048), ({"model_name": "MPT-7B"}, 2048),
    ],
)  # fmt: skip
def test_sequences_are_as_long_as_benchmarks_and_authors_have_them(changes: dict[str, Any], tokens: int) -> None:
    case = case_of(row(**(BLANK | changes)))
    assert case.plan.seq_len == tokens and f"seq_len not stated: {tokens}" in case.assumed


@pytest.mark.parametrize(
    ("changes", "sequences"),
    [
        ({"global_batch": 4 << 20, "batch_unit": "tokens"}, 512), ({"global_batch": 4194304, "batch_unit": ""}, 512), ({"global_batch": 512, "batch_unit": ""}, 512),
        ({"global_batch": 4 << 20, "batch_unit": "tokens", "model_name": "GPT-3 1.3B"}, 2048),
    ],
)  # fmt: skip
def test_tokens_make_sequences_of_the_length_that_is_assumed(changes: dict[str, Any], sequences: int) -> None:
    case = case_of(row(**(BLANK | {"model_name": "Llama-3-8B"} | changes)))
    told = (changes["global_batch"] >> 20) * any("tokens: " in note for note in case.assumed)
    assert case.plan.global_batch == sequences and told == changes["global_batch"] >> 20
