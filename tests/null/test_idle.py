"""A key that has no effect is named; the figures with and without it are the same, and where it is not named they are not."""

from __future__ import annotations

from typing import Any

import pytest

from sim.bind import bind
from sim.files.planfile import about, load_plan, presets
from sim.plan import Plan
from sim.predict import predict_setting
from sim.result.figures import figures_of_memory
from sim.result.idle import RULES, idle, value

BASE: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 8, "micro": 1}}
MOE: dict[str, Any] = {"model": "qwen3-30b-a3b", "seq_len": 256, "batch": {"global": 8, "micro": 1}}
SAID: dict[str, tuple[dict[str, Any], str, tuple[str, ...], dict[str, Any] | None]] = {
    # key: (a plan where it is idle, its value, what makes it work, another plan to do so)
    "seq_len": ({"model": "resnet50", "batch": {"global": 8}}, "64", (), BASE),
    "parallel.zero": (BASE, "3", ("parallel.dp_shard=8",), None),
    "parallel.reshard_after_forward": (BASE, "false", ("parallel.dp_shard=8", "parallel.zero=3"), None),
    "parallel.prefetch": (BASE, "0", ("parallel.dp_shard=8", "parallel.zero=3", "seq_len=8"), None),
    "parallel.sequence_parallel": (BASE, "false", ("parallel.tp=2",), None),
    "parallel.tp_overlap": (BASE, "true", ("parallel.tp=2", "seq_len=1024"), None),
    "parallel.schedule": (BASE, "gpipe", ("parallel.pp=4",), None),
    "parallel.virtual_stages": (BASE | {"parallel": {"schedule": "interleaved"}}, "2", ("parallel.pp=2",), None),
    "parallel.cp_kind": (BASE, "all_gather", ("parallel.cp=2",), None),
    "parallel.ep": (BASE | {"parallel": {"dp_shard": 8}}, "2", (), MOE | {"parallel": {"dp_shard": 8}}),
    "parallel.etp": (BASE | {"parallel": {"tp": 2}}, "1", (), MOE | {"parallel": {"tp": 2}}),
    "parallel.capacity": (BASE, "2.0", (), MOE | {"parallel": {"dp_shard": 8, "ep": 8}}),
    "memory.recompute": (BASE | {"task": "forward"}, "full", ("task=train",), None),
    "memory.recompute_modules": (BASE, '["layernorm"]', ("memory.recompute=selective",), None),
    "memory.recompute_layers": (BASE, "2", ("memory.recompute=full",), None),
    "optimizer.name": (BASE | {"task": "forward"}, "sgd", ("task=train",), None),
    "optimizer.states": (BASE | {"optimizer": {"name": "sgd", "implementation": "fused"}}, "fp8", ("optimizer.name=adamw",), None),
    "comm.reduce_dtype": (BASE | {"parallel": {"dp_replicate": 2}, "update": {"mode": "local"}}, "fp32", ("update.mode=sync",), None),
    "update.mode": (BASE | {"task": "forward", "parallel": {"dp_replicate": 2}}, "local", ("task=train",), None),
    "update.aggregate": (BASE | {"task": "forward", "parallel": {"dp_replicate": 2}}, "primary", ("task=train",), None),
    "update.every": (BASE | {"parallel": {"dp_replicate": 2}}, "4", ("update.mode=local",), None),
    "update.outer": (BASE | {"parallel": {"dp_replicate": 2}}, "nesterov", ("update.mode=local",), None),
    "data.sample": (BASE, '"1 GiB"', ("data.source=disk",), None),
    "data.prefetch": (BASE, "9", (), None),
    "data.pinned": (BASE, "false", (), BASE | {"data": {"source": "disk", "sample": "1 MiB"}}),
    "data.stream": (BASE, "compute", (), BASE | {"data": {"source": "disk", "sample": "64 MiB", "workers": 8}}),
    "data.handover": (BASE | {"data": {"stream": "compute"}}, "synchronize", ("data.stream=copy",), None),
    "output.checkpoint_to": (BASE, "store", ("output.checkpoint_every=1",), None),
    "output.checkpoint_mode": (BASE | {"parallel": {"dp_replicate": 2}}, "full", ("output.checkpoint_every=1",), None),
}


CPU = ("data.pinned", "data.stream")
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


@pytest.mark.parametrize("said", ["data.stream=compute", "data.handover=synchronize", "data.handover=none", "data.pinned=false"])
def test_a_cpu_hands_no_batch_over_to_a_device(said: str) -> None:
    """Not even into pinned memory, whoever loads."""
    tree = BASE | {"data": {"source": "disk", "workers": 2, "sample": "4 MiB", "preprocess": "5 ms"}}
    plan = load_plan(tree, (said,))
    assert [text.partition(" = ")[0] for text in idle(bind(plan, "cpu-host"))] == [said.partition("=")[0]]
    assert _figures(plan, "cpu-host") == _figures(load_plan(tree), "cpu-host")


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
    assert _figures(plan) != _figures(_without(plan, key))


@pytest.mark.parametrize("name", presets())
def test_shipped_plans_say_nothing_in_vain_and_fit_their_machine(name: str) -> None:
    what, machine = about(presets()[name])
    setting = bind(load_plan(name), machine)
    assert what and idle(setting) == []
    assert figures_of_memory(setting, remedies=False)[1] is None
