"""Inference of a data-parallel batch, end to end: predicted, played and run; and a coordinating device, played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.play import run_play
from executor.ranks.launch import launch
from executor.stock import Request, run_stock
from sim.files.planfile import load_plan
from sim.predict import predict
from tests.gloo.bodies_for_stock import Many

pytestmark = [pytest.mark.timeout(100), pytest.mark.usefixtures("forked")]
TREE: dict[str, Any] = {
    "model": {"family": "mlp", "name": "m", "widths": [64, 64, 64]},
    "precision": "fp32",
    "batch": {"micro": 8},
    "parallel": {"dp_replicate": 2},
    "data": {"shuffle": False},
}


def test_weights_stay(tmp_path: Path) -> None:
    """Two ranks of 8 see the samples of one rank with 16, and no step changes a weight: the samples alone make the losses."""
    forward = TREE | {"task": "forward"}
    both = Many([Request(load_plan(tree), 3, 1, 0) for tree in (forward, TREE)])
    answers = launch("tests.gloo.bodies_for_stock:losses", both, 2, tmp_path / "two", list[list[float]], stall=30)
    two, trained = ([sum(values) / 2 for values in zip(*found, strict=True)] for found in zip(*answers, strict=True))
    one = run_stock(
        load_plan(forward | {"parallel": {}, "batch": {"micro": 16}}), tmp_path / "one", 3, warmup=1, profile=0, stall=30
    ).losses
    assert two == pytest.approx(one, rel=1e-5)
    assert trained[0] == pytest.approx(two[0], rel=1e-5) and trained[-1] != pytest.approx(two[-1], rel=1e-4)


@pytest.mark.parametrize("more", [{"task": "forward"}, {"update": {"aggregate": "primary"}}])
def test_every_op_is_played(more: dict[str, Any], tmp_path: Path) -> None:
    found = predict(TREE | more, "this-machine", fold=False)
    assert found.program and found.trace
    played = run_play(found.program, {}, tmp_path, 3)
    assert sorted(s.id for s in played.trace.spans) == sorted(s.id for s in found.trace.spans)
