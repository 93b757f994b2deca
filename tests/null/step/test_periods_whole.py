"""What comes every few steps, where it meets something else that does: the mean step against whole periods, simulated as they come."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine.run import simulate
from sim.files.planfile import load_plan
from sim.planning.disturbed.faults import faults
from sim.planning.disturbed.jobs import jobs
from sim.planning.explain.studied import Studied
from sim.predict import predict
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.steady.rounds import step_of
from sim.timeline.metrics import step_times

SMALL: dict[str, Any] = {
    "model": {"base": "gpt2-124m", "layers": 2},
    "seq_len": 128,
    "batch": {"micro": 1, "global": 2},
    "parallel": {"dp_replicate": 2},
}
WHOLE: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 256, "batch": {"micro": 8, "global": 32}, "parallel": {"dp_replicate": 4}}
SHARED: dict[str, Any] = WHOLE | {"parallel": {"dp_replicate": 2}, "memory": {"offload": "activations"}}


def long(tree: dict[str, Any], on: str, period: int) -> float:
    """The mean step of two periods, after as many as take eight steps."""
    setting = bind(load_plan(tree), on)
    before = period * -(-8 // period)
    trace = simulate(program_for(setting, before + 2 * period + 2), pricer_for(setting), setting.places, False)
    return sum(step_times(trace)[before : before + 2 * period]) / (2 * period)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("tree", "more", "period"),
    [
        (SMALL, {"update": {"mode": "local", "every": 2}, "output": {"log_every": 1}}, 2),
        (SMALL, {"update": {"mode": "local", "every": 4}, "output": {"sync_every": 6}}, 12),
        (SMALL, {"update": {"mode": "local", "every": 2}, "output": {"checkpoint_every": 2}}, 2),
        (WHOLE, {"output": {"checkpoint_every": 2, "checkpoint_mode": "async", "log_every": 1}}, 2),
        (WHOLE, {"output": {"checkpoint_every": 3, "item_every": 1}}, 3),
    ],
)
def test_output_that_waits_beside_something_else(tree: dict[str, Any], more: dict[str, Any], period: int) -> None:
    found = predict(tree | more, "dgx-h100")
    assert found.step_time_s == pytest.approx(long(tree | more, "dgx-h100", period), rel=1e-3)
    assert found.breakdown.total == pytest.approx(found.step_time_s)


@pytest.mark.no_cover
@pytest.mark.parametrize("noise", [{"imbalance": "r0: 1.5x"}, {"stragglers": "r0: 1.5x"}])
@pytest.mark.parametrize("every", [2, 8])
def test_ranks_that_drift_apart_until_they_average(every: int, noise: dict[str, str]) -> None:
    """Two GPUs behind one switch copy to the host: what one of them does not take, the other has."""
    tree = SHARED | {"update": {"mode": "local", "every": every}, "noise": noise}
    found = predict(tree, "dgx-a100")
    assert found.step_time_s == pytest.approx(long(tree, "dgx-a100", every), rel=1e-3)
    assert found.breakdown.total == pytest.approx(found.step_time_s)
    setting = bind(load_plan(tree), "dgx-a100")
    assert step_of(setting) == pytest.approx(found.step_time_s)
    assert Studied(setting).step == pytest.approx(found.step_time_s)


@pytest.mark.no_cover
def test_a_slow_gpu_drifts_as_a_straggler_does() -> None:
    """Whichever verb says it."""
    tree = SHARED | {"update": {"mode": "local", "every": 4}}
    said = predict(tree | {"noise": {"stragglers": "r0: 2x"}}, "dgx-a100").step_time_s
    slow = pytest.approx(said, rel=1e-6)
    assert predict(tree, "dgx-a100", edits=("slow=r0:0.5",)).step_time_s == slow
    assert faults(tree, "dgx-a100", "slow=r0:0.5").rows[0].step_time_s == slow
    two = jobs([tree | {"noise": {"stragglers": "r0: 2x"}}] * 2, "dgx-a100", "compact")
    assert [row.alone_s for row in two.rows] == [slow] * 2


@pytest.mark.parametrize("output", [{"log_every": 1}, {"sync_every": 1}, {"checkpoint_every": 4}])
def test_output_costs_something_or_nothing(output: dict[str, int]) -> None:
    """Never less, where ranks do not wait for each other, whose order at the server is another with it."""
    tree = {
        "model": {"base": "gpt2-124m", "layers": 2},
        "batch": {"micro": 2, "global": 8},
        "parallel": {"dp_replicate": 4},
        "seq_len": 1024,
    }
    tree |= {"data": {"source": "device"}, "update": {"mode": "async"}, "optimizer": {"name": "momentum", "implementation": "for-loop"}}
    assert predict(tree | {"output": output}, "dgx-a100").breakdown.output_s >= 0.0
