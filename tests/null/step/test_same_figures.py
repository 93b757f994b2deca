"""A quick prediction says of a step what one op by op says: on what it is spent, and on what its costs rest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sim.predict import predict

BLOCKING = {"model": "vit-b16", "framework": "megatron-deepspeed", "batch": {"micro": 4, "global": 16}, "parallel": {"dp_replicate": 4}}
PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "launches that the host waits for": (BLOCKING, "dgx-b200"),
    "these, with a pipeline": (
        {"model": "gpt2-124m", "framework": "megatron-deepspeed", "seq_len": 256, "batch": {"global": 8}, "parallel": {"pp": 2, "tp": 2}},
        "dgx-h100",
    ),
    "some assumed kernels": (
        {"model": "whisper-tiny", "framework": "pytorch", "batch": {"micro": 4, "global": 16}, "parallel": {"dp_shard": 4}},
        "dgx-h100",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_quick_and_op_by_op(name: str) -> None:
    plan, machine = PLANS[name]
    fine, quick = (predict(plan, machine, detail=detail) for detail in (True, False))
    assert msgspec.to_builtins(quick.breakdown) == pytest.approx(msgspec.to_builtins(fine.breakdown), abs=2e-4 * fine.step_time_s)
    assert quick.sources == pytest.approx(fine.sources, abs=1e-6) and sum(quick.sources.values()) == pytest.approx(1.0)
    assert quick.warnings == fine.warnings


def test_waiting_for_launches_is_the_hosts_also_where_steps_differ() -> None:
    """Local updates: their mean is of quick simulations."""
    every = predict(BLOCKING | {"update": {"mode": "local", "every": 2}}, "dgx-b200")
    assert every.breakdown.host_s > 0.8 * every.step_time_s
    assert dict(every.critical_path)["host"] > 0.8 * every.step_time_s
