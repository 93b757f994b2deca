"""Turns of one sort call the same segments: their place in the line is the same but for the micro-batch."""

from __future__ import annotations

import pytest

from sim.bind import bind
from sim.lower import step
from sim.lower.schedule.turns import Turn, turns


def _place(turn: Turn) -> tuple[object, ...]:
    return turn.action.stage, turn.action.kind, *turn[1:-1]


@pytest.mark.parametrize("name, chunks", [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("dualpipe", 1)])
def test_a_sort_is_a_place_in_the_line(name: str, chunks: int) -> None:
    for line in turns(name, 4, 16, chunks, True):
        places = {turn.sort: _place(turn) for turn in line}
        assert sorted(places) == list(range(len(places))) and len(set(places.values())) == len(places)
        assert all(places[turn.sort] == _place(turn) for turn in line)
        assert len(places) < len(line) / 2


def test_what_ends_a_step_is_lowered_once_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = bind({"model": "gpt2-124m", "parallel": {"pp": 2, "tp": 2}, "batch": {"global": 4, "micro": 1}}, "dgx-h100")
    made: list[int] = []
    update = step.update_ops
    monkeypatch.setattr(step, "update_ops", lambda job, place, *rest: (made.append(place.pp), update(job, place, *rest))[1])
    program = step.lower(setting.plan, setting.network, setting.framework, "cuda", 3)
    assert sorted(made) == [0, 1]
    assert [sum(call.segment.endswith("update") for call in role.threads["host"]) for role in program.roles.values()] == [3, 3]
