"""Preference optimization: a frozen copy of the model goes first, and pairs are compared."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.framework.framework import load_framework
from sim.model import Shape, describe
from sim.model.load import load_model
from sim.model.reference import PREFIX, with_reference
from sim.predict import predict
from sim.setting.bind import bind
from topologies.errors import BadInput, Refused

LLAMA: dict[str, Any] = {
    "model": "llama3.2-1b",
    "seq_len": 1024,
    "batch": {"global": 32, "micro": 2},
    "parallel": {"dp_shard": 8, "zero": 3},
}


def _found(task: str, **more: Any) -> Any:
    return predict(LLAMA | {"task": task} | more, "dgx-h100", detail=False)


def test_the_copy_runs_forward_alone_and_keeps_nothing() -> None:
    plain = describe(load_model("llama3.2-1b"), Shape(micro=2, seq=1024), load_framework("pytorch"))
    both = with_reference(plain, 2)
    count = len(plain.blocks)
    assert [name for name, _ in both.blocks] == [f"{PREFIX}{name}" for name, _ in plain.blocks] + [name for name, _ in plain.blocks]
    for (_, copy), (_, block) in zip(both.blocks[:count], plain.blocks, strict=True):
        assert copy.detached and copy.params == block.params
        assert [part.forward for part in copy.parts] == [part.forward for part in block.parts]
        assert not any(part.backward or part.wgrad or part.saved for part in copy.parts)
    assert both.blocks[count:-1] == plain.blocks[:-1], "what is trained is as it was"
    *same, preference = both.blocks[-1][1].parts
    assert tuple(same) == plain.blocks[-1][1].parts and preference.forward and preference.backward and not preference.tensors
    assert len(both.kinds) == 2 * len(plain.kinds), "equal layers are one block in the copy too"
    assert both.parameters == 2 * plain.parameters
    assert both.flops_per_sample == plain.flops_per_sample + plain.forward_flops_per_sample


@pytest.mark.no_cover
@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed", "megatron-core"])
def test_a_step_is_a_training_step_and_a_forward_pass(framework: str) -> None:
    split = {"parallel": {"dp_shard": 8}} if framework == "megatron-core" else {}
    train, forward, both = (_found(task, framework=framework, **split) for task in ("train", "forward", "dpo"))
    assert both.step_time_s == pytest.approx(train.step_time_s + forward.step_time_s, rel=0.03)
    assert both.memory.optimizer == train.memory.optimizer and both.memory.gradients == train.memory.gradients
    assert both.memory.activations == pytest.approx(train.memory.activations, rel=1e-3)
    assert both.memory.parameters == pytest.approx(train.memory.parameters + forward.memory.parameters, rel=0.51), "two copies"
    assert both.tokens_per_s == pytest.approx(32 * 1024 / both.step_time_s)


def test_copies_of_a_replica_are_no_gradients() -> None:
    """DDP sums what is trained alone: as many bytes as without the reference."""
    from sim.setting.program import program_for

    def sent(task: str) -> int:
        program = program_for(bind(load_plan(LLAMA | {"task": task, "parallel": {"dp_replicate": 8}}), "dgx-h100"), 1)
        return sum(op.bytes for _, op in program.ops(0) if op.kind == "collective")

    assert sent("dpo") == sent("train") > 0


@pytest.mark.parametrize("again", [True, False, 2])
@pytest.mark.parametrize("framework", ["torchtitan", "pytorch", "deepspeed"])
def test_what_is_gathered_for_the_copy_is_given_back(framework: str, again: bool | int) -> None:
    """Its head, too, which nothing runs backward for."""
    from sim.setting.program import program_for

    model = {"base": "llama3-8b", "layers": 3}
    split = {"parallel": {"dp_shard": 4, "zero": 3, "reshard_after_forward": again}}
    program = program_for(bind(load_plan(LLAMA | {"model": model, "task": "dpo", "framework": framework} | split), "dgx-h100"), 2)
    for step in (0, 1):
        assert sum(op.alloc - op.free for call, op in program.ops(0) if call.step == step) == 0


@pytest.mark.parametrize("base", ["", "nf4"])
def test_beside_adapters_the_reference_is_the_model_without_them(base: str) -> None:
    """Its weights serve both passes: no byte more than adapters' training takes, and the time of a forward beside it."""
    adapted = {"base": "llama3.2-1b", "lora": {"rank": 16} | ({"base": base} if base else {})}
    split = {"parallel": {"dp_replicate": 8}}
    both, adapters = (_found(task, model=adapted, **split) for task in ("dpo", "lora"))
    forward = _found("forward", **split)
    assert both.peak_memory_bytes == pytest.approx(adapters.peak_memory_bytes, rel=1e-3)
    assert both.step_time_s == pytest.approx(adapters.step_time_s + forward.step_time_s, rel=0.3 if base else 0.03)
    assert both.step_time_s > adapters.step_time_s + 0.97 * forward.step_time_s, "packed weights are unpacked once more"
    assert both.parameters == adapters.parameters


@pytest.mark.no_cover
def test_folded_and_whole_agree() -> None:
    plan = LLAMA | {"task": "dpo", "parallel": {"dp_shard": 4, "tp": 2, "zero": 3}, "batch": {"global": 16, "micro": 2}}
    assert predict(plan, "dgx-h100").step_time_s == pytest.approx(predict(plan, "dgx-h100", detail=False).step_time_s, rel=1e-3)


def test_remedies_keep_pairs_whole() -> None:
    found = predict(
        {"model": "llama3-8b", "task": "dpo", "batch": {"micro": 16}, "seq_len": 8192, "parallel": {"dp_shard": 8, "zero": 3}}, "dgx-a100"
    )
    words = str(found.does_not_fit)
    assert "batch.micro = 2" in words and "batch.micro = 1 " not in words


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"batch": {"micro": 3}}, BadInput, "compares sequences in pairs"),
        ({"model": "bert-large"}, Refused, 'task = "dpo" needs a decoder; bert-large is none'),
        ({"model": {"base": "llama3.2-1b", "lora": {"rank": 8}}}, Refused, "beside adapters with zero = 3.* Set zero = 2 at most"),
        ({"parallel": {"pp": 2, "dp_shard": 4}}, Refused, r"no pipeline can cut it; set parallel.pp = 1"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        _found("dpo", **change)
