"""Where a row says that it trains adapters, and what the precision of their frozen base is."""

from __future__ import annotations

import pytest

from sim.accuracy.architecture.adapters import adapters_of, trains_adapters
from sim.accuracy.rows.plans import case_of
from sim.accuracy.rows.wording import precision_of
from tests.null.accuracy.test_spellings import row


@pytest.mark.parametrize(
    ("changes", "trains"),
    [
        ({"task": "", "framework": "HF Trainer + PEFT"}, True), ({"task": "sft", "framework": "LLaMA-Factory (LoRA)"}, True), ({"task": "finetune", "arch_note": "LoRA r=16"}, True),
        ({"task": "finetune", "model_type": "llama + rsLoRA"}, True), ({"task": "", "model_name": "llama2_70b_lora"}, True),
        ({"task": "full fine-tuning", "framework": "HF PEFT / TRL"}, False), ({"task": "sft", "framework": "TRL (no LoRA)"}, False), ({"task": "full fine-tuning (not LoRA)"}, False),
        ({"task": "finetune", "arch_note": "MLA: kv_lora 512, q_lora 1536"}, False), ({"task": "finetune", "arch_note": "kv_lora_rank=512 q-lora 1536"}, False), ({"task": "sft", "model_name": "Pandora-7B"}, False),
    ],
)  # fmt: skip
def test_adapters_are_found_wherever_a_row_speaks_of_them(changes: dict[str, str], trains: bool) -> None:
    assert trains_adapters(row(**changes)) is trains


@pytest.mark.parametrize("words", ["int8", "INT8 (bnb)", "8-bit", "LLM.int8()", "int4", "8 bit"])
def test_a_base_of_integers_is_computed_with_in_16_bits(words: str) -> None:
    told = {"task": "LoRA", "framework": "PEFT", "sharding": "", "gpus": 8, "precision": words}
    case = case_of(row(**told))
    assert case.plan.precision == "bf16" and case.plan.task == "lora" and any("frozen base" in note for note in case.assumed)
    assert precision_of(row(**(told | {"gpu": "V100"}))) == "fp16"
    assert adapters_of(row(**told), []).base == ("nf4" if words == "int4" else "")


def test_adapters_in_8_bit_floats_are() -> None:
    assert precision_of(row(task="LoRA", precision="fp8")) == "fp8"
