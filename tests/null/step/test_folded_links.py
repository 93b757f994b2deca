"""A node whose ranks are simulated once takes as long as one whose ranks are all simulated, also where collectives and messages share links."""

from __future__ import annotations

from typing import Any

import pytest

from sim.predict import predict_setting
from sim.setting.bind import bind
from topologies.load import load_topology

MODEL = {"layers": 8, "hidden": 4096, "heads": 32, "vocab": 32000, "ffn": 14336}


@pytest.mark.no_cover
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    "split",
    [
        {"pp": 2, "tp": 2, "cp": 2},
        {"pp": 2, "cp": 2},
        {"pp": 4, "tp": 2},
        {"pp": 2, "schedule": "interleaved", "virtual_stages": 2, "zero": 1},
    ],
    ids=str,
)
def test_links_of_all_members_are_taken_alike(nodes: int, split: dict[str, Any]) -> None:
    topology = load_topology(f"{nodes}x dgx-h100")
    shards = 8 * nodes // (split["pp"] * split.get("tp", 1) * split.get("cp", 1))
    plan = {"model": MODEL, "seq_len": 4096, "framework": "megatron-core", "parallel": {"dp_shard": shards, **split}}
    setting = bind(plan | {"batch": {"global": 8 * shards, "micro": 1}}, topology)
    folded, whole = (predict_setting(setting, fold=fold, detail=False).step_time_s for fold in (True, False))
    assert folded == pytest.approx(whole, rel=1e-9)
