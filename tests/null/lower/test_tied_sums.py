"""A table that several blocks read has several gradients, which one kernel each joins where they are on one rank."""

from __future__ import annotations

from typing import Any

import pytest

from sim.lower.step import lower
from sim.setting.bind import bind
from sim.work import MemoryBound

PLAN: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 64, "batch": {"micro": 1, "global": 2}, "parallel": {"dp_replicate": 2}}
TABLE = 50257 * 768


def joined(rank: int = 0, at: str = "embed.tokens", **changes: Any) -> list[tuple[int, int]]:
    """Bytes read and written by what joins the table's gradients in backward, beside the gradient of part `at`."""
    setting = bind(PLAN | changes, "dgx-h100")
    calls = lower(setting.plan, setting.network, setting.framework, "cuda").ops(rank)
    ops = [op for call, op in calls if call.step == 1 and op.id.endswith(f"wgrad/{at}")]
    return [(work.read, work.written) for op in ops for work in op.works if isinstance(work, MemoryBound) and work.what == "add_"]


@pytest.mark.parametrize(("changes", "width"), [({}, 2), ({"framework": "pytorch-amp"}, 4), ({"precision": "fp32"}, 4)])
def test_a_lookup_s_gradient_and_the_head_s_are_added(changes: dict[str, Any], width: int) -> None:
    assert joined(**changes) == [(2 * TABLE * width, TABLE * width)]


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"pp": 2}},  # each rank has a copy of its own
        {"framework": "megatron-lm"},  # products add to the main gradient
        {"task": "lora"},
        {"model": "llama2-7b"},
    ],
)
def test_who_has_one_gradient_adds_none(changes: dict[str, Any]) -> None:
    assert joined(**changes) == []


def test_three_readers_are_two_sums() -> None:
    """T5's encoder, decoder and head read one table."""
    assert len(joined(model="t5-base")) == 2


def test_speech_reads_its_table_where_its_text_begins() -> None:
    table = 2 * 51865 * 384
    assert joined(at="target.tokens", model="whisper-tiny") == [(2 * table, table)]


@pytest.mark.parametrize(("tied", "lookups", "products"), [(False, 2, 2), (True, 5, 0)])
def test_predicting_two_more_tokens_reads_table_and_head_twice_more(tied: bool, lookups: int, products: int) -> None:
    model = {"family": "decoder", "layers": 2, "hidden": 256, "heads": 4, "vocab": 1024, "mtp": 2, "tied": tied}
    assert [len(joined(at=at, model=model)) for at in ("embed.tokens", "head.logits")] == [lookups, products]


def test_a_stage_with_two_readers_joins_what_its_copy_gets() -> None:
    """The second of two has T5's decoder, and so the decoder's lookup and the head."""
    changes: dict[str, Any] = {"model": "t5-small", "parallel": {"pp": 2}, "batch": {"micro": 1, "global": 4}}
    assert joined(rank=1, at="target.tokens", **changes)
    assert not joined(rank=0, **changes)
