"""A table that several blocks read has several gradients, which one kernel each joins where they are on one rank."""

from __future__ import annotations

from typing import Any

import pytest

from sim.lower.step import lower
from sim.setting.bind import bind
from sim.work import MemoryBound

PLAN: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 64, "batch": {"micro": 1, "global": 2}, "parallel": {"dp_replicate": 2}}
TABLE = 50257 * 768


def joined(**changes: Any) -> list[tuple[int, int]]:
    """Bytes read and written by what joins the table's gradients in backward."""
    setting = bind(PLAN | changes, "dgx-h100")
    calls = lower(setting.plan, setting.network, setting.framework, "cuda").ops(0)
    ops = [op for call, op in calls if call.step == 1 and op.id.endswith("wgrad/embed.tokens")]
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
