"""A step without its trace is the traced one's also where nothing can be put together: hosts, noise, servers, faults, uneven machines."""

from __future__ import annotations

from typing import Any

import pytest

from sim.predict import predict_setting
from sim.setting.bind import bind
from sim.steady.rounds import confirmed, step_of, whole_step
from sim.steady.shortened import Run

BASE: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 256, "framework": "pytorch", "precision": "fp16"}
SERVED: dict[str, Any] = {"batch": {"global": 32, "micro": 1}, "parallel": {"dp_replicate": 4}, "update": {"mode": "async"}}
CASES: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"precision": "fp32", "batch": {"global": 8, "micro": 1}, "parallel": {"dp_replicate": 2}}, "cpu-host", ()),
    ({"batch": {"global": 32, "micro": 1}, "parallel": {"dp_replicate": 4}, "noise": {"stragglers": "r1: 1.3x"}}, "dgx-h100", ()),
    ({"batch": {"global": 32, "micro": 1}, "parallel": {"dp_replicate": 4}, "update": {"mode": "local", "every": 1}}, "dgx-h100", ()),
    ({"batch": {"global": 32, "micro": 1}, "parallel": {"dp_replicate": 4}, "update": {"mode": "local", "every": 2}}, "dgx-h100", ()),
    ({"batch": {"global": 32, "micro": 1}, "parallel": {"dp_replicate": 4}, "update": {"mode": "local", "every": 5}}, "dgx-h100", ()),
    (SERVED, "dgx-h100", ()),
    (SERVED | {"noise": {"stragglers": "r3: 4x"}}, "dgx-h100", ()),
    ({"batch": {"global": 32, "micro": 1}, "parallel": {"dp_replicate": 4}, "update": {"aggregate": "cpu"}}, "dgx-h100", ()),
    ({"batch": {"global": 12, "micro": 1}, "parallel": {"pp": 3}}, "dgx-h100:1 + 2x dgx-a100:1", ()),
    ({"batch": {"global": 10, "micro": 1}, "parallel": {"tp": 2, "pp": 2}}, "rtx-4090-x8", ()),
    ({"batch": {"global": 10, "micro": 1}, "parallel": {"tp": 3, "pp": 2}}, "dgx1-v100", ()),
    ({"batch": {"global": 10, "micro": 1}, "parallel": {"tp": 6, "pp": 2}}, "2x dgx-h100", ()),
]


@pytest.mark.no_cover
@pytest.mark.parametrize(("tree", "on", "edits"), CASES, ids=[f"{on} {list(tree.values())[1:]}" for tree, on, _ in CASES])
def test_a_step_is_as_long_as_the_traced_one(tree: dict[str, Any], on: str, edits: tuple[str, ...]) -> None:
    setting = bind(BASE | tree, on, edits)
    step = pytest.approx(predict_setting(setting, steps=2, detail=False).step_time_s, rel=1e-3)
    assert (step_of(setting), whole_step(setting), confirmed(setting)) == (step,) * 3


def test_steps_of_other_counts_follow_each_other() -> None:
    """Three steps in one program, each with its own number of micro-batches: as long as each alone, once warm."""
    setting = bind(BASE | {"batch": {"global": 8, "micro": 1}, "parallel": {"dp_replicate": 1}, "output": {"item_every": 1}}, "dgx-h100")
    two, four, six = (step.seconds for step in Run(setting).times((2, 4, 6)))
    assert six - four == pytest.approx(four - two, rel=1e-6)
    again = [step.seconds for step in Run(setting).times((6, 6))]
    assert again[1] == pytest.approx(six, rel=1e-6)
