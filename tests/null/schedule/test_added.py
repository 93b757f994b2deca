"""A schedule that somebody adds to `SCHEDULES`: what follows from its order."""

from __future__ import annotations

import pytest

from sim.model.stages import in_flight
from sim.plan import Plan
from sim.planning.sweeps.bound import put_off_of
from sim.schedule import SCHEDULES, Action, puts_off, schedule, splits
from sim.schedule.shards import by_actions
from sim.schedule.turns import lines
from sim.sections import Batch, Parallel


def eager(pp: int, rank: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """Twice as many forwards ahead as in 1F1B, and all weights' gradients at the end."""
    ahead = min(microbatches, 2 * (pp - rank) - 1)
    made = [Action(rank, "F", number) for number in range(ahead)]
    for number in range(microbatches):
        made.append(Action(rank, "I", number))
        made += [Action(rank, "F", number + ahead)] if number + ahead < microbatches else []
    return (*made, *(Action(rank, "W", number) for number in range(microbatches)))


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, "eager", eager)


def test_memory_counts_the_passes_that_it_has_begun() -> None:
    parallel = Parallel(pp=4, schedule="eager")  # type: ignore[arg-type]
    plan = Plan(model="gpt2-124m", batch=Batch(global_=8), parallel=parallel)
    assert [in_flight(plan, rank) for rank in range(4)] == [(8,)] * 4, "none is done before its weights' gradients are"


def test_it_is_known_to_split_backward_and_to_run_by_actions() -> None:
    assert splits("eager") and puts_off("eager") and by_actions("eager", 1)
    assert [put_off_of(schedule("eager", 4, rank, 8)) for rank in range(4)] == [8, 8, 8, 8]
    assert {sort.kind for line in lines("eager", 4, 8, 1, train=True, shards=True) for sort in line.sorts} >= {"UNSHARD", "REDUCE_GRAD"}
