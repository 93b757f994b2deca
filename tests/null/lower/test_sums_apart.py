"""Gradients summed in a buffer of another dtype than autograd leaves them in (DeepSpeed's BF16_Optimizer): kernels, messages, memory, rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sim.accuracy.published import published_rows
from sim.accuracy.rows.plans import case_of
from sim.lower.step import lower
from sim.memory.report import MemoryReport, memory_of_stages
from sim.setting.bind import bind
from sim.work import MemoryBound

PLAN: dict[str, Any] = {
    "model": "gpt2-124m",
    "seq_len": 256,
    "batch": {"micro": 1, "global": 16},
    "framework": "megatron-deepspeed-bf16",
    "parallel": {"dp_shard": 4, "pp": 2},
}


def moved(plan: dict[str, Any], what: str) -> Iterator[tuple[str, int, int]]:
    """Of rank 0's ops whose names end so, in the second step: kernel, bytes read and written."""
    setting = bind(plan, "dgx-h100")
    for call, op in lower(setting.plan, setting.network, setting.framework, "cuda").ops(0):
        if call.step == 1 and op.id.endswith(what):
            yield from ((work.what, work.read, work.written) for work in op.works if isinstance(work, MemoryBound))


def memory(plan: dict[str, Any]) -> MemoryReport:
    """Of the last stage, whichever is the fullest."""
    setting = bind(plan, "dgx-h100")
    return memory_of_stages(setting.plan, setting.network, setting.framework)[-1]


def test_each_micro_batch_s_gradients_are_cast_and_added_to_a_buffer_that_is_cleared_once() -> None:
    weight = 3 * 768 * 768
    found = list(moved(PLAN, "wgrad/L0.attn.qkv.add"))
    assert found[:2] == [("cast", 2 * weight, 4 * weight), ("add_", 8 * weight, 4 * weight)]
    assert len(found) == 4 * 2 * 2, "four micro-batches, the first too; weight and bias"
    (_, nothing, zeros), *others = moved(PLAN, "optimizer/zero")
    assert not others and nothing == 0 and zeros > 4 * 40_000_000


def test_they_travel_in_sixteen_bits() -> None:
    (kind, read, written), *_ = moved(PLAN, ".cast")
    assert kind == "cast" and read == 2 * written


def test_memory_holds_the_sums_what_autograd_left_and_a_copy_that_travels() -> None:
    apart, narrow = memory(PLAN), memory(PLAN | {"framework": "megatron-deepspeed", "precision": "bf16"})
    assert apart.parameters == narrow.parameters and apart.optimizer == narrow.optimizer
    assert apart.gradients == 3 * narrow.gradients, "4 + 2 bytes for 2"
    assert apart.gathered == narrow.gradients, "2 bytes for their message"
    assert memory(PLAN | {"precision": "fp32"}).gradients == 2 * narrow.gradients, "one dtype needs no sums apart"


@pytest.mark.no_cover
@pytest.mark.parametrize(("row_id", "framework"), [("0101", "megatron-deepspeed-bf16"), ("0009", "megatron-deepspeed")])
def test_bloom_s_own_runs_in_bf16_are_its_optimizer_s(row_id: str, framework: str) -> None:
    row = next(row for row in published_rows() if row.row_id == f"bigscience-bloom-topology-{row_id}")
    assert case_of(row).plan.framework_name == framework
