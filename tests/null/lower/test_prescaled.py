"""A bucket of gradients that is divided by the number of ranks before it is sent, in a pass of its own."""

from __future__ import annotations

import pytest

from sim.lower.step import lower
from sim.plan import Plan
from sim.program import Op
from sim.sections import Batch, Parallel
from sim.setting.bind import bind
from sim.work import MemoryBound


def sent(framework: str) -> list[Op]:
    """The ops of all buckets, in their order."""
    plan = Plan(model="resnet50", framework=framework, precision="fp32", batch=Batch(global_=8, micro=4), parallel=Parallel(dp_replicate=2))
    setting = bind(plan, "dgx1-v100")
    program = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, 2)
    return [op for ops in program.segments.values() for op in ops if op.id.startswith("grad/")]


@pytest.mark.parametrize(("framework", "divided"), [("pytorch-planar", True), ("pytorch-native-amp", False)])
def test_a_full_bucket_is_divided_once_before_it_is_sent(framework: str, divided: bool) -> None:
    ops = sent(framework)
    names = [op.id.rsplit(".", 1)[-1] for op in ops]
    assert names.count("mean") == (names.count("all_reduce") if divided else 0)
    means = [op.works[0] for op in ops if op.id.endswith(".mean")]
    messages = [op.bytes for op in ops if op.id.endswith(".all_reduce")]
    assert [work.bytes for work in means if isinstance(work, MemoryBound)] == ([2 * size for size in messages] if divided else [])
    for at, name in enumerate(names):
        assert name != "mean" or names[at - 1] == "copy"


@pytest.mark.parametrize(
    ("framework", "passes"),
    [("megatron-lm", ["check", "mean"]), ("megatron-core", ["check", "mean"]), ("megatron-2022", ["mean"]), ("nemo", [])],
)
def test_megatron_looks_at_a_bucket_and_divides_it_before_it_is_sent(framework: str, passes: list[str]) -> None:
    """Each a pass over the whole bucket; averages are made in the collective only where that is asked for, as NeMo does."""
    plan = Plan(model="gpt2-124m", framework=framework, batch=Batch(global_=8, micro=1), parallel=Parallel(dp_shard=8, zero=1))
    setting = bind(plan, "dgx-h100")
    program = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, 2)
    ops = [op for ops in program.segments.values() for op in ops if op.id.startswith("grad/")]
    buckets = [op for op in ops if op.kind == "collective"]
    made = [op for op in ops if op.id.endswith((".check", ".mean"))]
    assert buckets and [op.id.rpartition(".")[2] for op in made] == passes * len(buckets)
    size = {op.id.split(".")[0]: op.bytes for op in buckets}
    for op in made:
        assert [work.read for work in op.works if isinstance(work, MemoryBound)] == [size[op.id.split(".")[0]]]
