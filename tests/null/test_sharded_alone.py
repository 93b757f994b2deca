"""Who shares parameters: FSDP2 over one rank has nobody to share with, and ranks of one sequence share as those of dp_shard do."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of, sharding_of
from sim.predict import predict
from sim.work import HostWork

BASE: dict[str, Any] = {
    "model": {"family": "decoder", "name": "d", "layers": 2, "hidden": 256, "heads": 4, "vocab": 1024}, "seq_len": 256, "batch": {"micro": 2},
}  # fmt: skip


def test_one_rank_that_asks_for_fsdp2_has_its_hooks_and_copies() -> None:
    """PyTorch's `fully_shard` over a mesh of one sends nothing, and does all the rest (torch 2.11, _fsdp_param_group.py: world_size == 1)."""
    plain, sharded = (predict(load_plan(BASE, changes), "dgx-h100") for changes in ((), ("parallel.zero=3",)))
    assert plain.program is not None and sharded.program is not None
    works = [work.what for ops in sharded.program.segments.values() for op in ops for work in op.works if isinstance(work, HostWork)]
    assert {"fsdp_unit", "fsdp_parameter"} <= set(works)
    assert not any(op.kind == "collective" for ops in sharded.program.segments.values() for op in ops)
    reduced = [op for ops in sharded.program.segments.values() for op in ops if op.id.startswith("grad/") and op.works]
    assert {op.id.rpartition(".")[2]: [str(work).partition(",")[0] for work in op.works] for op in reduced} == {
        "copy_in": ["memorybound(what=copy"],
        "alone": ["memorybound(what=copy"],
    }
    assert sharded.step_time_s > plain.step_time_s
    megatron = [
        predict(load_plan(BASE, ("framework=megatron-core", *changes)), "dgx-h100").step_time_s for changes in ((), ("parallel.zero=2",))
    ]
    assert megatron[0] == megatron[1], "whose distributed optimizer has nothing to do there"


@pytest.mark.parametrize(
    ("framework", "parallel", "level"),
    [
        ("torchtitan", {"cp": 2}, 3),
        ("torchtitan", {"cp": 2, "dp_replicate": 2}, 3),
        ("torchtitan", {"dp_replicate": 2}, 0),
        ("torchtitan", {"cp": 2, "zero": 0}, 0),
        ("megatron-core", {"cp": 2}, 1),
        ("megatron-core", {"cp": 2, "dp_replicate": 2}, 0),
        ("megatron-core", {"cp": 2, "dp_replicate": 2, "zero": 1}, 1),
        ("pytorch", {"cp": 2}, 0),
    ],
)
def test_ranks_of_one_sequence_share_as_those_of_dp_shard_do(framework: str, parallel: dict[str, Any], level: int) -> None:
    plan = load_plan({**BASE, "framework": framework, "parallel": parallel})
    assert sharding_of(plan, framework_of(plan))[0] == level
