"""Ring attention beside FSDP: messages cut a layer while parameters still travel, and a run of few ops takes as long as one of all."""

from __future__ import annotations

import pytest

from sim.predict import predict_setting
from sim.setting.bind import bind
from topologies.load import load_topology

MODEL = {"layers": 2, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 32000}


@pytest.mark.parametrize("framework", ["torchtitan", "megatron-core"])
@pytest.mark.parametrize("shards", [1, 4])
def test_condensed_is_exact_where_messages_cut_what_travels(framework: str, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    split = {"cp": 2, "dp_shard": shards, "zero": 3}
    plan = {"model": MODEL, "seq_len": 2048, "framework": framework, "parallel": split, "batch": {"global": 2 * shards, "micro": 1}}
    setting = bind(plan, load_topology("dgx-h100"))
    exact = predict_setting(setting, detail=False).step_time_s
    monkeypatch.setattr("sim.steady.detail.OPS_QUICK", 0)
    assert predict_setting(setting, detail=False).step_time_s == pytest.approx(exact, rel=1e-9)
