"""`--auto`: what it tries for a model on so many GPUs can be built, or says why not; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import steptwin
from sim.files.planfile import load_plan, read_plan
from sim.plan import Plan
from sim.planning.explain.neighbours import neighbours
from sim.planning.sweeps.auto import auto_space, expanded
from sim.planning.sweeps.space import TooLarge, candidates, parse_space, size_of
from sim.planning.sweeps.told import batch
from sim.setting.bind import bind
from topologies.errors import BadInput


def base(model: str, seq: int = 2048) -> Plan:
    return load_plan({"model": model, "seq_len": seq, "framework": "megatron-core", "batch": {"global": 64, "micro": 1}})


@pytest.mark.no_cover
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


@pytest.mark.no_cover
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


@pytest.mark.parametrize(
    ("model", "framework", "modules"),
    [
        ("llama3-8b", "torchtitan", ("op",)),
        ("llama3-8b", "deepspeed", ("op",)),
        ("llama3-8b", "megatron-core", ("layernorm", "mlp")),
        ("mixtral-8x7b", "megatron-core", ("layernorm,moe_act",)),
        ("deepseek-v2-lite", "megatron-bridge", ("mla_up_proj,layernorm,moe_act",)),
        ("gpt3-175b", "megatron-2021", None),
    ],
)
def test_selective_recomputation_is_what_the_framework_has(model: str, framework: str, modules: tuple[str, ...] | None) -> None:
    """Where attention is written out its core alone saves memory; elsewhere operators, or modules in Megatron-Core's words."""
    plan = read_plan(base(model), (f"framework={framework}",))
    few = {"tp": ("1",), "pp": ("1",), "micro": ("1",), "zero": ("1",), "ep": ("1",), "dp_shard": ("rest",)}
    space = auto_space(plan, "2x dgx-h100", 16)
    assert space.get("memory.recompute_modules") == modules and space["recompute"] == ("none", "selective", "full")
    chosen = space | {key: values for key, values in few.items() if key in space}
    found = {one.key: plan for one, plan in candidates(plan, chosen, "2x dgx-h100") if isinstance(plan, Plan)}
    kept = [(one.memory.recompute, ",".join(one.memory.recompute_modules)) for one in found.values()]
    assert sorted(kept) == sorted([("none", ""), ("full", ""), *(("selective", one) for one in modules or ("",))])
    assert all(("recompute_modules" in key) is (one.memory.recompute == "selective" and modules is not None) for key, one in found.items())
    for one in found.values():
        bind(one, "2x dgx-h100")


def test_shards_within_groups_as_large_as_a_node_are_tried() -> None:
    plan = base("llama3-8b")
    space = auto_space(plan, "4x dgx-h100", 32)
    few = space | {"recompute": ("none",), "micro": ("1",), "virtual_stages": ("1",), "schedule": ("1f1b",), "pp": ("1",), "zero": ("3",)}
    found = [
        (one.parallel.tp, one.parallel.dp_replicate, one.parallel.dp_shard)
        for _, one in candidates(plan, few, "4x dgx-h100")
        if isinstance(one, Plan)
    ]
    assert found == [(1, 1, 32), (1, 4, 8), (2, 1, 16), (2, 2, 8), (4, 1, 8), (8, 1, 4)], "what comes to the same is tried once"
    assert "dp_shard" not in auto_space(plan, "4x dgx-h100", 8), "one node"
    local = read_plan(plan, ("update.mode=local", "update.every=10"))
    assert "dp_shard" not in auto_space(local, "4x dgx-h100", 32), "replicas are what local updates average over"
    spread = read_plan(plan, ("framework=deepspeed",))
    assert "dp_shard" not in auto_space(spread, "4x dgx-h100", 32), "its ZeRO-1 and -2 shard over all"
    assert "dp_shard" not in expanded(plan, parse_space("auto=32 dp_replicate=2"), "4x dgx-h100")
    assert expanded(plan, parse_space("auto=32 dp_shard=16"), "4x dgx-h100")["dp_shard"] == ("16",)


@pytest.mark.parametrize(
    ("framework", "more", "tried"),
    [
        ("megatron-lm", (), True),
        ("megatron-core", (), False),
        ("megatron-core", ("parallel.tp_overlap=false",), True),
        ("megatron-lm", ("parallel.sequence_parallel=false",), False),
        ("torchtitan", (), False),
        ("torchtitan", ("compile=true",), True),
        ("megatron-2021", (), False),
    ],
)
def test_messages_of_tensor_parallelism_are_tried_beside_products_where_a_plan_lacks_that(
    framework: str, more: tuple[str, ...], tried: bool
) -> None:
    """torchtitan's need the compiler, that of 2021 had none."""
    plan = read_plan(base("llama3-8b"), (f"framework={framework}", *more))
    space = auto_space(plan, "dgx-h100", 8)
    assert space.get("parallel.tp_overlap") == (("false", "true") if tried else None)
    one = load_plan(
        {"model": "llama3-8b", "seq_len": 2048, "parallel": {"tp": 2, "dp_shard": 4}, "framework": framework, "batch": {"global": 64}}, more
    )
    offered = [words for words, _ in neighbours(one) if "parallel.tp_overlap=true" in words]
    assert offered == (
        [("parallel.tp_overlap=true",)]
        if tried
        else [("compile=true", "parallel.tp_overlap=true")]
        if (framework, more) == ("torchtitan", ())
        else []
    )
    if tried:
        few = space | {
            "recompute": ("none",),
            "micro": ("1",),
            "pp": ("1",),
            "zero": ("1",),
            "virtual_stages": ("1",),
            "schedule": ("1f1b",),
        }
        keys = [candidate.key for candidate, found in candidates(plan, few, "dgx-h100") if isinstance(found, Plan)]
        assert (len(keys), sum("tp_overlap" in key for key in keys)) == (7, 6), "a plan without tensor parallelism has none to try"


@pytest.mark.parametrize(("framework", "stages"), [("torchtitan", "123"), ("deepspeed", "123"), ("megatron-core", "13")])
def test_the_stages_of_sharding_are_what_the_framework_has(framework: str, stages: str) -> None:
    assert "".join(auto_space(read_plan(base("llama3-8b"), (f"framework={framework}",)), "dgx-h100", 8)["zero"]) == stages
