"""Local updates: the averaging comes every few steps, and a step's figure holds its share of it."""

from __future__ import annotations

import pytest

from sim.engine.run import simulate
from sim.files.planfile import load_plan
from sim.predict import predict
from sim.result.prediction import Prediction
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.steady.rounds import whole_step
from sim.timeline.metrics import step_times

MLP = {"family": "mlp", "widths": [64, 128, 128, 64]}


@pytest.mark.parametrize(
    ("every", "more"), [(2, ()), (6, ()), (3, ("data.preprocess=5 ms",)), (8, ("data.prefetch=1", "data.preprocess=4.4 ms"))]
)
def test_what_loaders_make_while_replicas_average_is_in_store_for_the_steps_between(every: int, more: tuple[str, ...]) -> None:
    """Plain steps of 8.8 ms and averaging ones of 15.5, with loaders that make a batch in 9.1 to 12.3: as simulated one after the other."""
    data = {"source": "disk", "workers": 2, "sample": "64 KiB", "preprocess": "6 ms"}
    gpt = {
        "model": {"base": "gpt2-124m", "layers": 2},
        "seq_len": 512,
        "batch": {"global": 16, "micro": 4},
        "parallel": {"dp_replicate": 4},
    }
    plan = load_plan(gpt | {"data": data, "update": {"mode": "local", "every": every}}, more)
    setting = bind(plan, "h100-pcie-x8")
    trace = simulate(program_for(setting, 60, plan), pricer_for(setting), setting.places, False, condensed=True)
    times = step_times(trace)[-26:-2]
    found = predict(plan, "h100-pcie-x8")
    assert found.step_time_s == pytest.approx(sum(times) / len(times), rel=2e-3)
    assert found.breakdown.total == pytest.approx(found.step_time_s) and found.breakdown.data_s >= 0
    assert whole_step(setting) == pytest.approx(found.step_time_s, rel=1e-3)


@pytest.mark.no_cover
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


def test_the_path_of_ranks_that_drift_is_as_long_as_their_step() -> None:
    """One of 32 is slow, and loaders bind between. (A weight of three was passed over: the path was 3.7 steps long.)"""
    plan = {
        "model": "gpt2-124m",
        "seq_len": 1024,
        "batch": {"global": 128, "micro": 4},
        "parallel": {"dp_replicate": 32},
        "update": {"mode": "local", "every": 4},
        "data": {"workers": 1, "preprocess": "5 ms", "source": "memory"},
        "noise": {"stragglers": "r3: 1.02x"},
    }
    found = predict(plan, "4x dgx-h100")
    assert sum(seconds for _, seconds in found.critical_path) == pytest.approx(found.step_time_s, rel=1e-3)
    assert found.breakdown.total == pytest.approx(found.step_time_s, rel=1e-6)
