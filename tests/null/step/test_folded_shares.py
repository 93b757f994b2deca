"""Ranks that are simulated once take as much of what they share as when each is simulated: disks, stores, buses, switches, cores, servers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.run import simulate
from sim.engine.steps import step_times
from sim.lower.step import lower
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.timeline import metrics

MODEL = {"family": "mlp", "name": "m", "widths": [2048, 2048, 2048, 2048]}
UPDATES: tuple[dict[str, Any], ...] = (
    {},
    {"aggregate": "primary"},
    {"aggregate": "cpu"},
    {"mode": "async"},
    {"mode": "local", "every": 2},
)


def steps_of(setting: Setting, fold: bool) -> list[float]:
    program = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, 3)
    return metrics.step_times(simulate(program, pricer_for(setting), fold and setting.foldable, detail=False))


@pytest.mark.no_cover
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["dgx-h100", "dgx-a100", "mi300x-x8", "cpu-host:8"]),
    st.sampled_from(UPDATES),
    st.sampled_from([{}, {"workers": 0}, {"workers": 1}, {"workers": 4, "source": "object-store"}, {"workers": 2, "pinned": False}]),
    st.sampled_from(["none", "full", "sharded", "async"]),
    st.sampled_from(["disk", "store"]),
    st.sampled_from(["none", "optimizer", "activations"]),
)
def test_equal_ranks_share_as_so_many(on: str, update: dict[str, Any], data: dict[str, Any], mode: str, to: str, offload: str) -> None:
    """Where some ranks do what others do not (one updates, one writes), equal ones are still simulated once."""
    data = data and {"source": "disk", "sample": "150 KiB", "preprocess": "0.5 ms", **data}
    output = {} if mode == "none" else {"checkpoint_every": 1, "checkpoint_mode": mode, "checkpoint_to": to}
    plan = {"model": MODEL, "precision": "fp32", "batch": {"micro": 64, "global": 1024}, "parallel": {"dp_replicate": 8}}
    memory = {} if update or on.startswith("cpu") else {"offload": offload}
    setting = bind(plan | {"update": update, "data": data, "output": output, "memory": memory}, on)
    assert setting.foldable
    assert steps_of(setting, True) == pytest.approx(steps_of(setting, False), rel=1e-9)


def test_seven_writers_of_eight_take_seven_shares_of_the_disk() -> None:
    """One rank updates alone, and all write the state meanwhile: with and without a trace."""
    output = {"checkpoint_every": 1, "checkpoint_mode": "async"}
    plan = {"model": MODEL, "precision": "fp32", "batch": {"micro": 64}, "parallel": {"dp_replicate": 8}, "output": output}
    setting = bind(plan | {"update": {"aggregate": "primary"}}, "dgx-h100")
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 3)
    whole = steps_of(setting, False)
    assert steps_of(setting, True) == pytest.approx(whole, rel=1e-9)
    assert [step.seconds for step in step_times(program, pricer_for(setting))] == pytest.approx(whole, rel=1e-9)
