"""SQuAD's fine-tuning as NVIDIA's script runs it: the norm is read on the host, and Adam written out for each tensor."""

from __future__ import annotations

import pytest

from sim.lower.step import lower
from sim.plan import Plan
from sim.program import Op
from sim.sections import Batch, Optimizer
from sim.setting.bind import bind
from sim.work import MemoryBound


def update(framework: str, implementation: str | None) -> dict[str, Op]:
    plan = Plan(
        model="bert-base",
        framework=framework,
        precision="fp32",
        seq_len=384,
        batch=Batch(global_=4, micro=4),
        optimizer=Optimizer(name="adamw", implementation=implementation),  # type: ignore[arg-type]
    )
    setting = bind(plan, "dgx1-v100")
    program = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, 2)
    return {op.id: op for op in program.segments["update"]}


@pytest.mark.parametrize(("framework", "kernels", "moved"), [("pytorch-apex-squad", 14, 33), ("pytorch-apex-ddp", 8, 20)])
def test_adam_written_out_is_fourteen_kernels_a_tensor(framework: str, kernels: int, moved: int) -> None:
    """Reads and writes of fp32 values: 19 and 14, torch's own 12 and 8."""
    works = [work for work in update(framework, "for-loop")["optimizer/step"].works if isinstance(work, MemoryBound)]
    fused = [work for work in update(framework, None)["optimizer/step"].works if isinstance(work, MemoryBound)]
    elements = sum(work.ops * work.repeat for work in fused)
    assert sum(work.bytes for work in works) == pytest.approx(4 * moved * elements)
    assert sum(work.ops * work.repeat for work in works) == pytest.approx(kernels * elements)


def test_the_host_waits_for_the_norm_before_it_clips() -> None:
    names = list(update("pytorch-apex-squad", None))
    assert names.index("optimizer/norm") < names.index("optimizer/norm.read") < names.index("optimizer/clip")
    assert "optimizer/norm.read" not in update("pytorch-apex-ddp", None)
