"""What older scripts in PyTorch do between backward and forward: gradients zeroed one by one, running statistics sent from the first rank."""

from __future__ import annotations

import pytest

from sim.lower.step import lower
from sim.plan import Plan
from sim.program import Op
from sim.sections import Batch, Parallel
from sim.setting.bind import bind
from sim.work import MemoryBound

CHANNELS = 26_560
"""Of ResNet-50's batch norms: half of their 53,120 parameters."""


def _begin(framework: str, ranks: int, model: str = "resnet50") -> tuple[Op, ...]:
    plan = Plan(
        model=model, framework=framework, precision="fp16", batch=Batch(global_=8 * ranks, micro=8), parallel=Parallel(dp_replicate=ranks)
    )
    setting = bind(plan, "dgx-a100")
    return lower(setting.plan, setting.network, setting.framework, setting.topology.kind, 2).segments.get("begin", ())


def test_statistics_go_from_the_first_rank_in_two_messages() -> None:
    """Two fp32 numbers a channel, and a count of eight bytes a norm; each tensor is copied back."""
    ops = {op.id: op for op in _begin("pytorch-native-amp", 4)}
    assert (ops["buffers/fp32"].name, ops["buffers/fp32"].bytes) == ("broadcast", 8 * CHANNELS)
    assert ops["buffers/int64"].bytes == 8 * 53
    back = ops["buffers/back"].works
    assert sum(work.repeat for work in back if isinstance(work, MemoryBound)) == 3 * 53
    assert [op.id for op in _begin("pytorch-native-amp", 4)].index("buffers/fp32") < list(ops).index("buffers/back")


def test_statistics_are_as_wide_as_the_parameters() -> None:
    """Plain PyTorch in 16 bits makes them 16 bits too, which the plan says are fp16."""
    ops = {op.id: op for op in _begin("pytorch", 4)}
    assert (ops["buffers/fp16"].bytes, ops["buffers/int64"].bytes) == (4 * CHANNELS, 8 * 53)


@pytest.mark.parametrize(
    ("framework", "ranks", "model"),
    [
        ("pytorch-native-amp", 1, "resnet50"),
        ("pytorch-ssd", 4, "ssd300"),
        ("pytorch-detection", 4, "mask-rcnn-r50-fpn"),
        ("deepspeed", 4, "resnet50"),
        ("pytorch", 4, "gpt2-124m"),
    ],
)
def test_nothing_is_sent_where_nobody_asks_for_it(framework: str, ranks: int, model: str) -> None:
    assert not [op.id for op in _begin(framework, ranks, model) if op.id.startswith("buffers/")]


def test_gradients_are_zeroed_one_by_one() -> None:
    """161 tensors of ResNet-50, 25,557,032 elements of four bytes; torch since 2.0 drops them."""
    zero = next(op for op in _begin("pytorch-native-amp", 1) if op.id == "optimizer/zero")
    works = [work for work in zero.works if isinstance(work, MemoryBound)]
    assert len(works) == 161 and {work.what for work in works} == {"zero"}
    assert (sum(work.read for work in works), sum(work.written for work in works)) == (0, 4 * 25_557_032)
    assert _begin("pytorch", 1) == ()
