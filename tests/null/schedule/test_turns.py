"""Turns of one sort call the same segments: their place in the line is the same but for the micro-batch."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sim.lower import step
from sim.schedule import late, with_messages
from sim.schedule.turns import lines
from sim.setting.bind import bind


@pytest.mark.parametrize(
    "name, chunks", [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("dualpipe", 1), ("zb-v", 1), ("looped-bfs", 2)]
)
def test_a_line_is_its_ranks_actions(name: str, chunks: int) -> None:
    """Sorts and micro-batches say again what the schedule does, in its order; a send stands with what makes it."""
    for line, grid in zip(lines(name, 4, 16, chunks, True), with_messages(name, 4, 16, chunks), strict=True):
        assert len(set(line.sorts)) == len(line.sorts) < len(line.turns) / 2
        actions = late(grid) if name in ("gpipe", "1f1b") else grid
        sorts = [(line.sorts[sort], microbatch) for sort, microbatch in line.turns]
        told = [(sort.stage, sort.kind, its) for sort, its in sorts if not sort.late and not sort.kind.startswith("SEND")]
        assert told == [(action.stage, action.kind, action.microbatch) for action in actions if not action.sends]
        sends = [(sort.stage, sort.kind, its) for sort, its in sorts if sort.sends and not sort.late]
        before = [made for made, action in pairwise(actions) if action.sends]
        assert sends == [(made.stage, made.kind, made.microbatch) for made in before]


def test_compute_awaits_its_sends_under_1f1b_alone() -> None:
    for line in lines("1f1b", 4, 8, 1, True):
        sorts = [line.sorts[sort] for sort, _ in line.turns if not line.sorts[sort].late]
        waits = [at for at, sort in enumerate(sorts) if sort.kind.startswith("SEND")]
        assert len(waits) == sum(sort.sends for sort in sorts) > 0
        assert all(sorts[at + 1].kind in ("F", "B") for at in waits if at + 1 < len(sorts))
    assert not any(
        sort.kind.startswith("SEND") for name in ("gpipe", "zb-h1") for line in lines(name, 4, 8, 1, True) for sort in line.sorts
    )


def test_what_ends_a_step_is_lowered_once_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = bind({"model": "gpt2-124m", "parallel": {"pp": 2, "tp": 2}, "batch": {"global": 4, "micro": 1}}, "dgx-h100")
    made: list[int] = []
    update = step.update_ops
    monkeypatch.setattr(step, "update_ops", lambda job, place, *rest: (made.append(place.pp), update(job, place, *rest))[1])
    program = step.lower(setting.plan, setting.network, setting.framework, "cuda", 3)
    assert sorted(made) == [0, 1]
    assert [sum(call.segment.endswith("update") for call in role.threads["host"]) for role in program.roles.values()] == [3, 3]
