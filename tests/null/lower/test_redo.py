"""Modules that are recomputed by themselves (Megatron-Core's recompute_modules): what runs again, when, and what it saves."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.lower.binding import job_of
from sim.lower.blocks import lower_block
from sim.memory.report import memory_of
from sim.memory.timeline import memory_timelines
from sim.model.layers.redo import MODULES, redone
from sim.predict import predict, predict_setting
from sim.setting.bind import Setting, bind
from topologies.errors import BadInput


def _setting(model: Any, modules: tuple[str, ...], **parallel: int) -> Setting:
    memory = {"recompute": "selective", "recompute_modules": list(modules)} if modules else {}
    plan = {"model": model, "seq_len": 512, "batch": {"global": 8, "micro": 2}, "memory": memory, "parallel": parallel}
    return bind(plan | {"framework": "megatron-core"}, "dgx-h100")


def _again(setting: Setting, layer: str) -> list[str]:
    """Parts that a layer runs again, and (after a bar) the part before whose gradients they run."""
    job = job_of(setting.plan, setting.network, setting.framework, "cuda", 2)
    made = lower_block(job, layer, dict(setting.network.blocks)[layer])
    found = []
    for part in reversed(made.parts):
        again = [op.id.split(f"{layer}.")[1] for op in part.joint if op.kind == "compute" and op.id.startswith("recompute/")]
        found += [f"{' '.join(again)} | {part.part.name}"] if again else []
    return found


@pytest.mark.parametrize(
    ("model", "layer", "module", "expected"),
    [
        ("llama3.2-1b", "L0", "layernorm", ["norm2 | mlp.up", "norm1 | attn.qkv"]),
        ("llama3.2-1b", "L0", "mlp", ["mlp.up mlp.act mlp.down | mlp.down"]),
        ("llama3.2-1b", "L0", "core_attn", ["attn.core | attn.core"]),
        ("deepseek-v3", "L3", "layernorm", ["norm2 | moe.shared.up", "norm1 | attn.q_down"]),
        ("deepseek-v3", "L3", "moe_act", ["moe.act | moe.down"]),
        ("deepseek-v3", "L3", "mla_up_proj", ["attn.q_norm attn.q_up attn.kv_norm attn.kv_up attn.rope attn.join | attn.core"]),
        ("deepseek-v3", "L3", "shared_experts", ["moe.shared.up moe.shared.act moe.shared.down | moe.shared.down"]),
        ("deepseek-v3", "L0", "moe_act", []),
        ("deepseek-v3", "L3", "mlp", []),
    ],
)
def test_what_runs_again_before_which_gradients(model: str, layer: str, module: str, expected: list[str]) -> None:
    assert _again(_setting(model, (module,)), layer) == expected


def test_nothing_said_is_attentions_core() -> None:
    said, unsaid = (
        bind({"model": "llama3.2-1b", "seq_len": 512, "memory": {"recompute": "selective"} | more}, "dgx-h100")
        for more in ({"recompute_modules": ["core_attn"]}, {})
    )
    assert predict_setting(said, steps=2).step_time_s == predict_setting(unsaid, steps=2).step_time_s


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("model", "modules"),
    [
        *(("llama3.2-1b", modules) for modules in (("layernorm",), ("mlp",), ("core_attn", "layernorm", "mlp"))),
        *(("qwen3-30b-a3b", modules) for modules in (("moe_act",), ("moe",), ("layernorm", "moe_act"))),
        *(("deepseek-v2-lite", modules) for modules in (("mla_up_proj",), ("moe", "mlp"), ("mla_up_proj", "layernorm", "moe_act", "shared_experts"))),
    ],
)  # fmt: skip
def test_the_line_peaks_where_the_report_does_and_costs_time(model: str, modules: tuple[str, ...]) -> None:
    """What the program takes and frees is what the report says, less than without; the step is longer by what runs again."""
    setting, plain = _setting(model, modules), _setting(model, ())
    found, whole = (predict(one.plan, "dgx-h100", steps=2) for one in (setting, plain))
    assert found.trace is not None
    (line,) = memory_timelines(setting, found.trace).values()
    report, without = (memory_of(one.plan, one.network, one.framework, one.topology.device(0), remedies=False) for one in (setting, plain))
    assert max(used for _, used in line) == report.peak < without.peak
    assert line[-1][1] == line[0][1], "all that is taken is given back"
    assert found.step_time_s > whole.step_time_s


@pytest.mark.parametrize("module", MODULES)
def test_what_is_dropped_comes_back(module: str) -> None:
    block = dict(_setting("deepseek-v3", ()).network.blocks)["L3"]
    some = redone(block, (module,))
    assert sum(some.back.values()) == sum(some.dropped)
    for at, (size, part) in enumerate(zip(some.dropped, block.parts, strict=True)):
        assert size <= part.saved and (size >= 0 or at in some.runs), (
            "where a layer begins to run again it may keep more than its part does"
        )


@pytest.mark.parametrize(
    ("modules", "match"),
    [
        (("mla_up_proj",), "no layer of this model has mla_up_proj. Allowed: core_attn, layernorm, mlp"),
        (("attention",), "core_attn"),
    ],
)
def test_modules_that_are_not_there(modules: tuple[str, ...], match: str) -> None:
    with pytest.raises(BadInput, match=match):
        _setting("llama3.2-1b", modules)


def test_a_module_inside_another_is_an_error() -> None:
    with pytest.raises(BadInput, match="moe holds moe_act"):
        _setting("deepseek-v3", ("moe", "moe_act"))


def test_a_plan_file_keeps_them() -> None:
    plan = load_plan("deepseek-v3-2k", ('memory.recompute_modules=["moe_act"]', "memory.recompute=selective"))
    assert plan.memory.modules == ("moe_act",)


@pytest.mark.parametrize(
    ("model", "module", "holds"),
    [("llama3.2-1b", "mlp", "mlp.up"), ("qwen3-30b-a3b", "moe", "moe.router"), ("deepseek-v2-lite", "moe", "moe.shared.up")],
)
@pytest.mark.parametrize("framework", ["torchtitan", "megatron-core"])
def test_what_runs_again_keeps_its_input_as_the_rank_has_it(framework: str, model: str, module: str, holds: str) -> None:
    """DTensor's linears keep what was gathered, which a checkpoint gathers again."""
    plan = {
        "model": model,
        "seq_len": 512,
        "batch": {"global": 4, "micro": 2},
        "parallel": {"dp_shard": 2, "tp": 4},
        "framework": framework,
    }
    block = dict(bind(plan, "dgx-h100").network.blocks)["L1"]
    some = redone(block, (module,))  # type: ignore[arg-type]
    prefix = holds.partition(".")[0] + "."
    kept = {part.name: part.saved - away for part, away in zip(block.parts, some.dropped, strict=True) if part.name.startswith(prefix)}
    assert {name: size for name, size in kept.items() if size} == {holds: block.saved_input}
