"""A coordinating first device: what it sends, who updates, and what that costs beside an all_reduce."""

from __future__ import annotations

from typing import Any

import pytest

from sim.predict import predict
from topologies.errors import Refused

PLAN: dict[str, Any] = {
    "model": {"family": "mlp", "name": "m", "widths": [1024, 1024, 1024]},
    "precision": "fp32",
    "batch": {"micro": 64},
    "parallel": {"dp_replicate": 4},
    "update": {"aggregate": "primary"},
}


@pytest.mark.parametrize("on", ["dgx-h100", "h100-pcie-x8", "cpu-host"])
def test_the_first_updates_alone(on: str) -> None:
    found = predict(PLAN, on)
    program = found.program
    assert program is not None
    for rank in range(4):
        ops = [op for call, op in program.ops(rank) if call.step == 2]
        moved = [(op.name, op.bytes) for op in ops if op.kind == "collective"]
        assert moved == [("reduce", found.parameters * 4), ("broadcast", found.parameters * 4)]
        assert any(op.id == "optimizer/step" for op in ops) == (rank == 0)


def test_slower_than_all_reduce() -> None:
    """Half of the devices' links idle, nothing hides behind backward, and the update is on one device while the others wait."""
    for on in ("dgx-h100", "h100-pcie-x8"):
        assert predict(PLAN, on).breakdown.exposed_comm_s > predict(PLAN | {"update": {}}, on).breakdown.exposed_comm_s


def test_whole_models_only() -> None:
    with pytest.raises(Refused, match="primary"):
        predict(PLAN | {"parallel": {"dp_shard": 4, "zero": 3}}, "dgx-h100")


@pytest.mark.parametrize("on", ["dgx-h100", "cpu-host"])
def test_inference_of_a_batch_in_parallel(on: str) -> None:
    """task = "forward": no backward, no gradients, no update, nothing to communicate."""
    tree = {key: value for key, value in PLAN.items() if key != "update"} | {"task": "forward"}
    one, four = predict(tree | {"parallel": {}}, on), predict(tree, on)
    assert four.program is not None
    assert not [op for _, op in four.program.ops(0) if op.kind == "collective" or op.cls == "optimizer" or "bwd" in op.id]
    assert four.step_time_s == pytest.approx(one.step_time_s, rel=1e-9)
    assert four.samples_per_s == pytest.approx(4 * one.samples_per_s, rel=1e-9)
