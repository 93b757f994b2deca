"""A row's own word for its framework counts before the name of the source that printed it."""

from __future__ import annotations

import pytest

from sim.accuracy.rows.wording import framework_of_row
from tests.null.accuracy.test_spellings import row


@pytest.mark.parametrize(
    ("source", "stated", "framework"),
    [
        ("torchtitan-paper", "Megatron-LM", "megatron-lm"), ("torchtitan-paper", "DeepSpeed ZeRO-3", "deepspeed"), ("megatron-paper", "MaxText", "maxtext"),
        ("nemo-blog", "HF Trainer", "huggingface"), ("torchtitan", "PyTorch", "torchtitan"), ("torchtitan", "PyTorch FSDP2", "torchtitan"), ("torchtitan", "", "torchtitan"),
        ("maxtext-docs", "in-house", "maxtext"), ("mlperf-training", "NeMo", "mlperf-nvidia-mcore"), ("mlperf-training", "torchtitan", "torchtitan"),
    ],
)  # fmt: skip
def test_the_stated_framework_wins_over_the_sources_name(source: str, stated: str, framework: str) -> None:
    assert framework_of_row(row(source_id=source, framework=stated, precision="bf16"), []) == framework
