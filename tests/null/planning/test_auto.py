"""`--auto`: what it tries for a model on so many GPUs can be built, or says why not; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import steptwin
from sim.files.planfile import load_plan, read_plan
from sim.plan import Plan
from sim.planning.sweeps.auto import auto_space
from sim.planning.sweeps.space import TooLarge, candidates, parse_space, size_of
from sim.planning.sweeps.told import batch
from topologies.errors import BadInput


def base(model: str, seq: int = 2048) -> Plan:
    return load_plan({"model": model, "seq_len": seq, "framework": "megatron-core", "batch": {"global": 64, "micro": 1}})


@pytest.mark.parametrize(("model", "on", "gpus"), [("llama3-8b", "2x dgx-h100", 16), ("mixtral-8x7b", "4x dgx-h100", 32)])
def test_every_split_takes_all_gpus_and_tensors_stay_in_a_node(model: str, on: str, gpus: int) -> None:
    plan = base(model)
    space = auto_space(plan, on, gpus) | {"recompute": ("none",), "schedule": ("1f1b",), "virtual_stages": ("1",)}
    found = [one for _, one in candidates(plan, space, on)]
    plans = [one for one in found if isinstance(one, Plan)]
    assert {one.world for one in plans} == {gpus} and not any(isinstance(one, TooLarge) for one in found)
    assert {one.parallel.tp for one in plans} == {1, 2, 4, 8}
    assert {one.parallel.pp for one in plans} >= {1, 2, 4}
    assert len(plans) > len(found) / 5, "much of what is tried should be plans"
    assert {one.batch.micro for one in plans} == {1, 2, 4, 8}
    assert {one.parallel.ep for one in plans} == ({1, 2, 4, 8} if model.startswith("mixtral") else {1})


def test_long_sequences_are_split_over_ranks() -> None:
    assert "cp" not in auto_space(base("llama3-8b", 8192), "2x dgx-h100", 16)
    plan = base("llama3-8b", 32768)
    space = auto_space(plan, "2x dgx-h100", 16)
    assert space["cp"] == ("1", "2", "4", "8")
    few = space | {"tp": ("1",), "pp": ("1",), "micro": ("1",), "recompute": ("full",)}
    sizes = {one.parallel.cp: one.world for _, one in candidates(plan, few, "2x dgx-h100") if isinstance(one, Plan)}
    assert sizes == {1: 16, 2: 16, 4: 16, 8: 16}


def test_windows_are_split_over_ranks_by_what_takes_them() -> None:
    """Long sequences of a model with sliding windows: rings are refused for them."""
    plan, on = base("gpt-oss-20b", 65536), "2x dgx-h100"
    space = auto_space(plan, on, 16) | {"recompute": ("full",), "schedule": ("1f1b",), "virtual_stages": ("1",), "micro": ("1",)}
    plans = [one for _, one in candidates(plan, space, on) if isinstance(one, Plan)]
    assert {one.parallel.cp for one in plans} >= {1, 2, 4} and {one.parallel.cp_kind for one in plans} == {"all_to_all"}
    assert "parallel.cp_kind" not in auto_space(base("llama3-8b", 65536), on, 16)
    assert auto_space(base("glm-5.2", 65536), "32x dgx-h100", 256)["parallel.cp_kind"] == ("all_gather",)


def test_tensor_parallelism_divides_the_heads() -> None:
    """GPT-2 XL has 25 heads: none of the powers of two but one."""
    assert auto_space(base("gpt2-1.5b", 1024), "dgx-h100", 8)["tp"] == ("1",)


@pytest.mark.parametrize(
    ("model", "gpus", "said"),
    [
        ("resnet50", 8, "knows how to split transformers; resnet50 is none"),
        ("llama3-8b", 17, "1 to 16 GPUs"),
        ("llama3-8b", 0, "1 to 16 GPUs"),
    ],
)
def test_what_it_refuses(model: str, gpus: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        auto_space(load_plan({"model": model}), "2x dgx-h100", gpus)


def test_a_space_without_end_is_refused_before_it_is_walked() -> None:
    space = parse_space("tp=1..10000:1 pp=1..10000:1")
    with pytest.raises(BadInput, match="100,000,000 points"):
        size_of(space)
    with pytest.raises(BadInput, match="narrow it"):
        next(candidates(base("llama3-8b"), space, "dgx-h100"))


def test_a_base_that_does_not_divide_its_own_batch_is_split_anew(tmp_path: Path) -> None:
    """A batch for few GPUs over the plan of many: the base's own data parallelism is replaced, so it need not divide the batch."""
    plan = {"model": "gpt2-124m", "seq_len": 512, "batch": {"global": 16, "micro": 1}, "parallel": {"dp_shard": 128}}
    with pytest.raises(BadInput, match=r"batch.global = 16 is no multiple"):
        load_plan(plan)
    draft = read_plan(plan)
    space = auto_space(draft, "dgx-h100", 8) | {"tp": ("1",), "pp": ("1",), "micro": ("1",), "recompute": ("none",)}
    plans = [one for _, one in candidates(draft, space, "dgx-h100") if isinstance(one, Plan)]
    assert {(one.world, one.global_batch) for one in plans} == {(8, 16)}
    found = steptwin.sweep(plan, "tp=1 gpus=8", "dgx-h100", tmp_path / "s.sqlite")
    assert found.best is not None and found.best.gpus == 8
    with pytest.raises(BadInput, match=r"nothing in the space can run \(1 points\): batch.global = 16 is no multiple"):
        steptwin.sweep(plan, "tp=1", "16x dgx-h100", tmp_path / "t.sqlite")


def test_the_batch_that_all_plans_had_is_said(tmp_path: Path) -> None:
    """On many GPUs a plan's own small batch leaves pipelines of one micro-batch."""
    found = steptwin.sweep(base("gpt2-124m", 512), "auto=8 micro=4 recompute=none tp=1 pp=1 zero=1", "dgx-h100", tmp_path / "s.sqlite")
    space = parse_space("auto=8 micro=4")
    assert batch(base("gpt2-124m", 512), space, found)["batch"].startswith("64 samples (32,768 tokens) a step, as the plan says")
    assert "without accumulation" in batch(Plan(model="gpt2-124m"), space, found)["batch"]
    assert (
        batch(base("gpt2-124m", 512), parse_space("auto=8 global=64"), found) == batch(base("gpt2-124m"), parse_space("tp=1"), found) == {}
    )
