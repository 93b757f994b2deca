"""Some layers of each stage run again in backward: as few as leave room, where none of them is too few and all are more than needed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from sim.planning.explain.changes import best_changes
from sim.planning.explain.partly import partly
from sim.predict import predict_setting
from sim.result.figures import fill_of, fits
from sim.setting.bind import Setting, bind

TIGHT: dict[str, Any] = {
    "model": {"base": "gpt2-1.5b", "layers": 24},
    "seq_len": 1024,
    "framework": "megatron-core",
    "batch": {"global": 512, "micro": 32},
    "parallel": {"dp_shard": 8, "zero": 1},
    "memory": {"recompute": "full"},
}
MACHINE = "dgx-a100-40gb"


def _roomy(setting: Setting, count: int) -> bool:
    plan = setting.plan
    there = bind(replace(plan, memory=replace(plan.memory, recompute="full", recompute_layers=count)), MACHINE)
    return fits(there) and not fill_of(there).nearly_full


@pytest.mark.parametrize(
    "parallel", [{}, {"dp_shard": 4, "pp": 2}, {"dp_shard": 4, "pp": 2, "schedule": "interleaved", "virtual_stages": 2}], ids=str
)
def test_one_layer_fewer_leaves_no_room(parallel: dict[str, Any]) -> None:
    setting = bind(TIGHT | {"parallel": TIGHT["parallel"] | parallel}, MACHINE)
    ((overrides, plan),) = partly(setting)
    count = plan.memory.recompute_layers
    assert overrides == ("memory.recompute=full", f"memory.recompute_layers={count}")
    assert plan == replace(setting.plan, memory=replace(setting.plan.memory, recompute_layers=count))
    stages = parallel.get("pp", 1) * parallel.get("virtual_stages", 1)
    assert 1 < count < 24 // stages
    assert _roomy(setting, count) and not _roomy(setting, count - 1)


@pytest.mark.parametrize(
    "change",
    [
        {"batch": {"global": 256, "micro": 1}},
        {"batch": {"global": 4096, "micro": 256}},
        {"task": "forward", "memory": {}},
        {"model": "resnet50"},
    ],
    ids=["none has to", "all are too few", "nothing runs backward", "no layers"],
)
def test_there_is_nothing_between_none_and_all(change: dict[str, Any]) -> None:
    tree = TIGHT | change
    if tree["model"] == "resnet50":
        del tree["seq_len"], tree["framework"], tree["memory"]
        tree["parallel"] = {"dp_replicate": 8}
    assert partly(bind(tree, MACHINE)) == []


def test_it_is_proposed_with_what_it_gains() -> None:
    setting = bind(TIGHT, MACHINE)
    step = predict_setting(setting, detail=False).step_time_s
    found = {change.overrides[0]: change for change in best_changes(setting, step)}
    change = found["memory.recompute=full"]
    assert change.overrides[1].startswith("memory.recompute_layers=")
    assert 0.02 < change.gain < 0.3 and change.memory is not None and not change.memory.nearly_full
