"""How long a sequence is: what the plan says, what the model can take, and what it cuts."""

from __future__ import annotations

from typing import Any

import pytest

from sim.predict import predict
from sim.setting.bind import bind
from topologies.errors import BadInput


def tokens(model: str | dict[str, Any], **plan: Any) -> int:
    return bind({"model": model, **plan}, "dgx-h100").network.seq


@pytest.mark.parametrize(
    ("model", "length"),
    [
        ("llama3-8b", 2048),
        ("gpt2-124m", 1024),
        ("bert-base", 512),
        ("roberta-base", 512),
        ("whisper-tiny", 448),
        ("opt-1.3b", 2048),
        ("gnmt", 50),
    ],
)
def test_unsaid_it_is_2048_or_what_the_table_of_positions_holds(model: str, length: int) -> None:
    assert tokens(model) == length


def test_rotary_positions_have_no_end() -> None:
    assert tokens("gpt-j-6b", seq_len=8192) == 8192


def test_a_decoder_learns_as_many_positions_as_its_sequences_need() -> None:
    """1,024 as published; 4,096 rows of 768 for longer sequences."""
    short, long = (bind({"model": "gpt2-124m", "seq_len": n}, "dgx-h100").network.parameters for n in (512, 4096))
    assert short == 124_439_808 and long - short == (4096 - 1024) * 768
    with pytest.raises(BadInput, match=r"bert-base: seq_len = 1024 is more than positions = 512\. Set seq_len = 512 or less"):
        tokens("bert-base", seq_len=1024)


def test_tokens_that_a_model_cuts_off_are_not_counted() -> None:
    """GNMT's sentences have 50 tokens whatever the plan says: its rate is that of those, not of the plan's."""
    short, long = (predict({"model": "gnmt", "seq_len": n, "batch": {"micro": 8}}, "dgx-h100") for n in (50, 2048))
    assert (long.step_time_s, long.tokens_per_s, long.peak_memory_bytes) == (short.step_time_s, short.tokens_per_s, short.peak_memory_bytes)
    assert long.warnings == ["seq_len = 2048 has no effect: the model takes no sequences, or cuts them to its own `longest`"]
    assert not short.warnings
