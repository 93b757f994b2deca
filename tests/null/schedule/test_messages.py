"""A schedule that cannot run says where every rank is stuck; DualPipe-V's order, rank by rank."""

from __future__ import annotations

import pytest

from sim.schedule import parse_action, schedule
from sim.schedule.action import Action
from sim.schedule.messages import add_messages
from topologies.errors import BadInput


def actions(text: str) -> list[Action]:
    return [parse_action(word) for word in text.split()]


def test_a_schedule_that_waits_for_ever_names_who_waits_for_what() -> None:
    # Rank 0 wants its backward before it has sent the forward that rank 1 needs.
    with pytest.raises(BadInput, match=r"cannot run: rank 0 at 0B0, rank 1 at 1F0$"):
        add_messages("1f1b", 2, 2, [actions("0B0 0F0"), actions("1F0 1B0")])


def test_ranks_that_are_done_are_not_named() -> None:
    with pytest.raises(BadInput, match=r"cannot run: rank 0 at 0B1$"):
        add_messages("1f1b", 2, 2, [actions("0F0 0B1"), actions("1F0 1B0")])


def test_a_rank_sends_nothing_to_itself() -> None:
    (only,) = add_messages("interleaved", 1, 2, [actions("0F0 1F0 1B0 0B0")])
    assert " ".join(map(str, only)) == "0F0 1F0 1B0 0B0"


@pytest.mark.parametrize(
    ("rank", "order"),
    [
        (0, "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3"),
        (1, "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3"),
    ],
)
def test_dualpipe_on_two_ranks(rank: int, order: str) -> None:
    assert " ".join(map(str, schedule("dualpipe", 2, rank, 4, 2))) == order
