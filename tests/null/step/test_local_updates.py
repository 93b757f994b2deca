"""Local updates: the averaging comes every few steps, and a step's figure holds its share of it."""

from __future__ import annotations

import pytest

from sim.predict import predict
from sim.result.prediction import Prediction

MLP = {"family": "mlp", "widths": [64, 128, 128, 64]}


@pytest.mark.parametrize("outer", ["average", "nesterov"])
@pytest.mark.parametrize("on", ["cpu-host", "dgx-h100"])
def test_averaging_seldom_costs_its_share(on: str, outer: str) -> None:
    """Whatever number of steps is simulated, and whether `every` divides it."""

    def local(every: int, steps: int = 3) -> Prediction:
        update = {"mode": "local", "every": every, "outer": outer}
        batch = {"micro": 2, "global": 4}
        plan = {"model": MLP, "precision": "fp32", "batch": batch, "parallel": {"dp_replicate": 2}, "update": update}
        return predict(plan, on, steps=steps)

    always, never = local(1).step_time_s, local(10**6).step_time_s
    assert always > 1.01 * never
    for every in (2, 3, 4, 5, 8, 100):
        found = local(every)
        assert found.step_time_s == pytest.approx(never + (always - never) / every, rel=1e-4), every
        assert found.breakdown.total == pytest.approx(found.step_time_s)
    assert local(4, 4).step_time_s == pytest.approx(local(4, 3).step_time_s, rel=1e-3)
