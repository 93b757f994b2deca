"""A key that has no effect is named; the figures with and without it are the same, and where it is not named they are not."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import about, load_plan, presets
from sim.plan import Plan
from sim.predict import predict_setting
from sim.result.figures import figures_of_memory
from sim.result.idle import RULES, idle, value
from sim.setting.bind import bind

BASE: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 8, "micro": 1}}
MOE: dict[str, Any] = {"model": "qwen3-30b-a3b", "seq_len": 256, "batch": {"global": 8, "micro": 1}}
SAID: dict[str, tuple[dict[str, Any], str, tuple[str, ...], dict[str, Any] | None]] = {
    # key: (a plan where it is idle, its value, what makes it work, another plan to do so)
    "seq_len": ({"model": "resnet50", "batch": {"global": 8}}, "64", (), BASE),
    "attention": ({"model": "resnet50", "batch": {"global": 8}}, "math", (), BASE),
    "parallel.zero": (BASE, "1", ("parallel.dp_shard=8",), None),
    "parallel.reshard_after_forward": (BASE, "false", ("parallel.dp_shard=8", "parallel.zero=3"), None),
    "parallel.prefetch": (BASE, "0", ("parallel.dp_shard=8", "parallel.zero=3", "seq_len=8"), None),
    "parallel.sequence_parallel": (BASE, "false", ("parallel.tp=2",), None),
    "parallel.tp_overlap": (BASE, "true", ("parallel.tp=2", "seq_len=1024"), None),
    "parallel.schedule": (BASE, "gpipe", ("parallel.pp=4",), None),
    "parallel.virtual_stages": (BASE | {"parallel": {"schedule": "interleaved"}}, "2", ("parallel.pp=2",), None),
    "parallel.cp_kind": (BASE, "all_gather", ("parallel.cp=2",), None),
    "parallel.cp_ulysses": (BASE, "2", ("parallel.cp=4", "parallel.cp_kind=all_to_all+p2p"), None),
    "parallel.ep": (BASE | {"parallel": {"dp_shard": 8}}, "2", (), MOE | {"parallel": {"dp_shard": 8}}),
    "parallel.etp": (BASE | {"parallel": {"tp": 2}}, "1", (), MOE | {"parallel": {"tp": 2}}),
    "parallel.capacity": (BASE, "2.0", (), MOE | {"parallel": {"dp_shard": 8, "ep": 8}}),
    "memory.recompute": (BASE | {"task": "forward"}, "full", ("task=train",), None),
    "memory.recompute_modules": (BASE, '["layernorm"]', ("memory.recompute=selective",), None),
    "memory.recompute_layers": (BASE, "2", ("memory.recompute=full",), None),
    "memory.offload": (BASE | {"task": "forward"}, "activations", ("task=train",), None),
    "memory.offload_layers": (BASE, "2", ("memory.offload=activations",), None),
    "optimizer.name": (BASE | {"task": "forward"}, "sgd", ("task=train",), None),
    "optimizer.implementation": (BASE | {"optimizer": {"on": "cpu"}}, "fused", ("optimizer.on=gpu",), None),
    "optimizer.clip": (BASE | {"task": "forward"}, "true", ("task=train",), None),
    "optimizer.on": (BASE | {"task": "forward"}, "cpu", ("task=train",), None),
    "optimizer.states": (BASE | {"optimizer": {"name": "sgd", "implementation": "fused"}}, "fp8", ("optimizer.name=adamw",), None),
    "comm.bucket": (BASE | {"parallel": {"dp_shard": 2, "zero": 3}}, '"1 MiB"', ("parallel.zero=0",), None),
    "comm.overlap": (BASE | {"framework": "tf2-horovod", "parallel": {"dp_replicate": 2}}, "false", ("framework=pytorch",), None),
    "comm.algorithm": (
        BASE | {"parallel": {"dp_replicate": 2}},
        "tree",
        ("seq_len=1024",),
        BASE | {"parallel": {"dp_replicate": 8}, "comm": {"overlap": False}},
    ),
    "comm.reduce_dtype": (BASE | {"parallel": {"dp_replicate": 2}, "update": {"mode": "local"}}, "fp32", ("update.mode=sync",), None),
    "update.mode": (BASE | {"task": "forward", "parallel": {"dp_replicate": 2}}, "local", ("task=train",), None),
    "update.aggregate": (BASE | {"task": "forward", "parallel": {"dp_replicate": 2}}, "primary", ("task=train",), None),
    "update.every": (BASE | {"parallel": {"dp_replicate": 2}}, "4", ("update.mode=local",), None),
    "update.outer": (BASE | {"parallel": {"dp_replicate": 2}}, "nesterov", ("update.mode=local",), None),
    "data.sample": (BASE, '"1 GiB"', ("data.source=disk",), None),
    "data.document": (BASE | {"seq_len": 8192, "attention": "math"}, "1024", ("attention=flash",), None),
    "data.prefetch": (BASE, "9", (), None),
    "data.pinned": (BASE, "false", (), BASE | {"data": {"source": "disk", "sample": "1 MiB"}}),
    "data.stream": (BASE, "compute", (), BASE | {"data": {"source": "disk", "sample": "64 MiB", "workers": 8}}),
    "data.handover": (BASE | {"data": {"stream": "compute"}}, "synchronize", ("data.stream=copy",), None),
    "output.sync_every": (BASE, "1", (), BASE),
    "output.item_every": (BASE, "1", (), BASE),
    "output.checkpoint_to": (BASE, "store", ("output.checkpoint_every=1",), None),
    "output.checkpoint_mode": (BASE | {"parallel": {"dp_replicate": 2}}, "full", ("output.checkpoint_every=1",), None),
}


CPU = ("data.pinned", "data.stream", "comm.algorithm", "output.sync_every", "output.item_every")
"""Idle on a CPU host alone."""


def _where(key: str) -> str:
    return "cpu-host" if key in CPU else "dgx-h100"


def _figures(plan: Plan, on: str = "dgx-h100") -> tuple[float, int]:
    found = predict_setting(bind(plan, on))
    return found.step_time_s, found.peak_memory_bytes


def _without(plan: Plan, key: str) -> Plan:
    """The plan with the key at its default."""
    section, _, name = key.rpartition(".")
    import msgspec

    default = value(Plan(model=""), key)
    if not section:
        return msgspec.structs.replace(plan, **{name: default})
    return msgspec.structs.replace(plan, **{section: msgspec.structs.replace(getattr(plan, section), **{name: default})})


def test_every_rule_has_its_case() -> None:
    assert [rule.key for rule in RULES] == list(SAID)


@pytest.mark.no_cover
@pytest.mark.parametrize("key", SAID)
def test_an_idle_key_is_named_and_changes_no_figure(key: str) -> None:
    tree, said, _, _ = SAID[key]
    plan = load_plan(tree, (f"{key}={said}",))
    named = idle(bind(plan, _where(key)))
    assert [text for text in named if text.startswith(f"{key} = ")], named
    assert _figures(plan, _where(key)) == _figures(_without(plan, key), _where(key))


@pytest.mark.no_cover
@pytest.mark.parametrize("said", ["data.stream=compute", "data.handover=synchronize", "data.handover=none", "data.pinned=false"])
def test_a_cpu_hands_no_batch_over_to_a_device(said: str) -> None:
    """Not even into pinned memory, whoever loads."""
    tree = BASE | {"data": {"source": "disk", "workers": 2, "sample": "4 MiB", "preprocess": "5 ms"}}
    plan = load_plan(tree, (said,))
    assert [text.partition(" = ")[0] for text in idle(bind(plan, "cpu-host"))] == [said.partition("=")[0]]
    assert _figures(plan, "cpu-host") == _figures(load_plan(tree), "cpu-host")


def test_buckets_of_one_message_are_none() -> None:
    """Horovod under XLA has all gradients when backward has ended: no size and no overlap cuts them."""
    tree = BASE | {"framework": "tf2-horovod", "parallel": {"dp_replicate": 4}}
    plan = load_plan(tree, ("comm.bucket=1 MiB",))
    assert [text.partition(" = ")[0] for text in idle(bind(plan, "dgx-h100"))] == ["comm.bucket"]
    assert _figures(plan) == _figures(load_plan(tree))


def test_an_algorithm_that_none_of_the_collectives_has_is_named() -> None:
    """A tree is for all_reduce alone; which collectives there are, the program says."""
    for parallel, named in (({"dp_shard": 4, "zero": 3}, True), ({"dp_shard": 2, "dp_replicate": 2, "zero": 3}, False)):
        found = predict_setting(bind(load_plan(BASE | {"parallel": parallel, "comm": {"algorithm": "tree"}}), "dgx-h100"))
        assert any("none of the step's collectives has such an algorithm" in text for text in found.warnings) is named


@pytest.mark.no_cover
def test_more_layers_than_a_model_has_are_all_of_them() -> None:
    tree = BASE | {"memory": {"recompute": "full"}}
    few, all_, beyond = (load_plan(tree, (f"memory.recompute_layers={layers}",)) for layers in (2, 12, 13))
    assert [any("recompute_layers" in text for text in idle(bind(plan, "dgx-h100"))) for plan in (few, all_, beyond)] == [
        False,
        False,
        True,
    ]
    assert _figures(beyond) == _figures(all_) == _figures(load_plan(tree)) != _figures(few)


def test_shards_of_who_splits_nothing_are_doubted() -> None:
    """pytorch's zero is 0 unless it is said; torchtitan's is 3."""

    def doubted(**changed: Any) -> bool:
        found = predict_setting(bind(load_plan(BASE | changed), "dgx-h100"), detail=False)
        return any("dp_shard = 8 splits nothing" in text for text in found.warnings)

    split = {"dp_shard": 8}
    assert doubted(parallel=split)
    assert not doubted(parallel=split | {"zero": 0}) and not doubted(parallel=split | {"zero": 3})
    assert not doubted(parallel=split, framework="torchtitan") and not doubted(parallel={"dp_replicate": 8})


@pytest.mark.no_cover
def test_torchtitan_without_fsdp_computes_in_fp32_where_something_is_split() -> None:
    def doubted(parallel: dict[str, Any], framework: str = "torchtitan") -> bool:
        plan = load_plan(BASE | {"parallel": parallel, "framework": framework, "precision": "bf16"})
        return any("computes in fp32" in text for text in predict_setting(bind(plan, "dgx-h100"), detail=False).warnings)

    assert doubted({"tp": 2}) and not doubted({"tp": 2}, "pytorch")
    assert not any(map(doubted, ({}, {"dp_replicate": 2}, {"tp": 2, "dp_shard": 2}, {"tp": 2, "cp": 2})))


def test_a_dense_models_gradients_are_not_summed_over_experts() -> None:
    tree = BASE | {"framework": "tf1-horovod", "parallel": {"dp_replicate": 4}}
    plan = load_plan(tree, ("parallel.ep=2",))
    assert any("the model has no experts" in text for text in idle(bind(plan, "dgx-h100")))
    assert _figures(plan) == _figures(load_plan(tree))


def test_a_forward_pass_has_no_optimizer_to_split() -> None:
    """Nor updated parameters to gather."""
    tree = BASE | {"task": "forward", "parallel": {"dp_shard": 4, "zero": 0}}
    plan = load_plan(tree, ("parallel.zero=1",))
    assert any(text.startswith("parallel.zero = 1 has no effect") for text in idle(bind(plan, "dgx-h100")))
    assert _figures(plan) == _figures(load_plan(tree))
    assert _figures(load_plan(tree, ("parallel.zero=3",))) != _figures(plan)


def test_a_pipeline_keeps_what_it_gathers_whatever_is_said() -> None:
    sharded = BASE | {"parallel": {"dp_shard": 4, "zero": 3, "pp": 2}}
    plan = load_plan(sharded, ("parallel.reshard_after_forward=false",))
    assert any("a pipeline's stages keep them" in text for text in idle(bind(plan, "dgx-h100")))
    assert _figures(plan) == _figures(load_plan(sharded))


@pytest.mark.no_cover
@pytest.mark.parametrize("key", [key for key, case in SAID.items() if case[2] or case[3]])
def test_a_key_at_work_is_not_named(key: str) -> None:
    tree, said, more, other = SAID[key]
    plan = load_plan(other or tree, (*more, f"{key}={said}"))
    assert not [text for text in idle(bind(plan, "dgx-h100")) if text.startswith(f"{key} = ")]
    if key == "parallel.cp_ulysses":  # has no default there
        assert _figures(plan) != _figures(load_plan(tree, (*more, f"{key}=4")))
    else:
        assert _figures(plan) != _figures(_without(plan, key))


@pytest.mark.parametrize("name", presets())
def test_shipped_plans_say_nothing_in_vain_and_fit_their_machine(name: str) -> None:
    what, machine = about(presets()[name])
    setting = bind(load_plan(name), machine)
    assert what and idle(setting) == []
    assert figures_of_memory(setting, remedies=False)[1] is None


@pytest.mark.no_cover
@pytest.mark.parametrize("said", ["memory.offload=optimizer", "optimizer.on=cpu", "optimizer.implementation=fused", "optimizer.clip=true"])
@pytest.mark.parametrize("update", [{"mode": "async"}, {"aggregate": "cpu"}])
def test_a_server_updates_in_its_own_way(update: dict[str, str], said: str) -> None:
    key = said.partition("=")[0]
    plan = load_plan(BASE | {"parallel": {"dp_replicate": 2}, "update": update}, (said,))
    assert [text.partition(" = ")[0] for text in idle(bind(plan, "dgx-h100"))] == [key]
    assert _figures(plan) == _figures(_without(plan, key))


def test_fsdp_gathers_ahead_at_zero_2_too() -> None:
    """In PyTorch it is FSDP2 that keeps its parameters after forward; DeepSpeed's gathers none."""
    for framework, named in (("pytorch", []), ("torchtitan", []), ("deepspeed", ["parallel.prefetch"])):
        plan = load_plan(BASE | {"framework": framework, "parallel": {"dp_shard": 8, "zero": 2, "prefetch": 0}})
        assert [text.partition(" = ")[0] for text in idle(bind(plan, "dgx-h100"))] == named, framework
