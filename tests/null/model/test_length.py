"""How long a sequence is: what the plan says, what the model can take, and what it cuts."""

from __future__ import annotations

from typing import Any

import pytest

from sim.bind import bind
from sim.predict import predict
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


def test_a_decoder_has_no_more_tokens_than_learned_positions() -> None:
    assert tokens("gpt2-124m", seq_len=1024) == 1024
    with pytest.raises(
        BadInput, match=r"gpt2-124m: seq_len = 1025 is more than positions = 1024\. Set seq_len = 1024 or less, or give it more"
    ):
        tokens("gpt2-124m", seq_len=1025)
    assert tokens({"base": "gpt2-124m", "positions": 4096}, seq_len=4096) == 4096


def test_tokens_that_a_model_cuts_off_are_not_counted() -> None:
    """GNMT's sentences have 50 tokens whatever the plan says: its rate is that of those, not of the plan's."""
    short, long = (predict({"model": "gnmt", "seq_len": n, "batch": {"micro": 8}}, "dgx-h100") for n in (50, 2048))
    assert (long.step_time_s, long.tokens_per_s, long.peak_memory_bytes) == (short.step_time_s, short.tokens_per_s, short.peak_memory_bytes)
    assert long.warnings == ["seq_len = 2048 has no effect: the model takes no sequences, or cuts them to its own `longest`"]
    assert not short.warnings
