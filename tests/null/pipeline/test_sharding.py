"""ZeRO in pipelines: what frameworks run, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from sim.lower.step import lower
from sim.memory.report import memory_of
from sim.result.figures import figures_of_memory
from sim.setting.bind import bind
from topologies.errors import Refused

PLAN: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 1024, "batch": {"micro": 1, "global": 16}}


def lowered(framework: str, **parallel: int) -> Any:
    setting = bind(PLAN | {"framework": framework, "parallel": {"dp_shard": 4, **parallel}}, "dgx-h100")
    return lower(setting.plan, setting.network, setting.framework, "cuda")


@pytest.mark.parametrize("zero", [2, 3])
def test_deepspeed_s_pipelines_refuse_split_gradients(zero: int) -> None:
    with pytest.raises(Refused, match="megatron-deepspeed runs pipelines with zero = 1 at most"):
        lowered("megatron-deepspeed", pp=2, zero=zero)
    lowered("megatron-deepspeed", pp=2, zero=1)
    lowered("megatron-deepspeed", zero=zero)


def reductions(program: Any) -> int:
    """Sets of reduce-scatters that rank 0 runs in a step, by micro-batch."""
    return len({call.at for call, op in program.ops(0) if call.step == 1 and op.name == "reduce_scatter"})


def test_who_reduces_after_every_micro_batch_of_a_pipeline() -> None:
    """Megatron-FSDP's optim_grads do (grad_reduce_every_bprop); its distributed optimizer and torch's FSDP wait for the last."""
    split = lowered("megatron-lm", pp=2, zero=2)
    assert reductions(split) == 4 and any("after every micro-batch" in note for note in split.notes)
    assert reductions(lowered("megatron-lm", pp=2, zero=1)) == 1
    assert reductions(lowered("torchtitan", pp=2, zero=2)) == 1


def test_what_a_framework_refuses_is_no_remedy() -> None:
    plan = PLAN | {"model": "gpt3-175b", "parallel": {"dp_shard": 4, "pp": 2}, "framework": "megatron-deepspeed"}
    setting = bind(plan, "dgx-a100")
    ways = " ".join(memory_of(setting.plan, setting.network, setting.framework, setting.topology.device(0)).remedies)
    assert "zero = 2" not in ways and "zero = 3" not in ways


def test_copies_are_sharded_as_far_as_the_framework_goes() -> None:
    """What is too large in copies on every rank of a pipeline has the remedies of one that is sharded already."""
    parallel = {"dp_replicate": 8, "pp": 2, "tp": 2}
    plan = PLAN | {"model": "llama2-13b", "seq_len": 4096, "parallel": parallel, "framework": "megatron-deepspeed"}
    missing = figures_of_memory(bind(plan, "4x dgx-a100-40gb"))[1]
    assert missing is not None and missing.remedies
    sharded = 'parallel.dp_shard = 8, parallel.dp_replicate = 1, parallel.zero = 1 and memory.recompute = "full"'
    assert missing.remedies[0].startswith(sharded) and not any("zero = 3" in way for way in missing.remedies)
    changed = plan | {"parallel": {"dp_shard": 8, "zero": 1, "pp": 2, "tp": 2}, "memory": {"recompute": "full"}}
    assert figures_of_memory(bind(changed, "4x dgx-a100-40gb"))[1] is None
