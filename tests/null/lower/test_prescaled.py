"""A bucket of gradients that is divided by the number of ranks before it is sent, in a pass of its own."""

from __future__ import annotations

import pytest

from sim.lower.step import lower
from sim.plan import Batch, Parallel, Plan
from sim.program import Op
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
