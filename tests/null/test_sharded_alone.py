"""FSDP2 over one rank, which has nobody to share with."""

from __future__ import annotations

from typing import Any

from sim.files.planfile import load_plan
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
    assert sharded.step_time_s > plain.step_time_s
    megatron = [
        predict(load_plan(BASE, ("framework=megatron-core", *changes)), "dgx-h100").step_time_s for changes in ((), ("parallel.zero=2",))
    ]
    assert megatron[0] == megatron[1], "whose distributed optimizer has nothing to do there"
