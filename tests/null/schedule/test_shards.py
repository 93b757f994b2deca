"""What FSDP does to whole stages: when it gathers, drops and reduces them."""

from __future__ import annotations

import pytest

from sim.schedule import SCHEDULES, parse_action, schedule, with_messages
from sim.schedule.action import SHARDS, Action
from sim.schedule.shards import ACTIVE_STAGES, add_shards, by_actions
from sim.schedule.turns import lines
from topologies.errors import BadInput

GRID = [("interleaved", pp, m, v) for pp in (2, 4) for m in (pp, 3 * pp) for v in (2, 3, 5)] + [("dualpipe", 2, 6, 2), ("zb-h1", 4, 8, 1)]
GRID += [("looped-bfs", 2, 5, 3), ("looped-bfs", 2, 4, 1), ("zb-v", 3, 7, 2), ("zb-h1", 2, 4, 2)]


def test_two_stages_are_asked_for_at_once_and_reduced_after_their_last_backward() -> None:
    computes = [parse_action(text) for text in ("0F0", "0F1", "2F0", "2F1", "2B0", "2B1", "0B0", "0B1")]
    made = " ".join(map(str, add_shards(computes, 2)))
    assert made == "0UNSHARD 2UNSHARD 0F0 0F1 2F0 2F1 2B0 2B1 2REDUCE_GRAD 2RESHARD 0B0 0B1 0REDUCE_GRAD 0RESHARD"


def test_a_fourth_stage_takes_the_place_of_the_one_that_is_needed_last() -> None:
    computes = [parse_action(text) for text in ("0F0", "2F0", "4F0", "6F0", "6B0", "4B0", "2B0", "0B0")]
    made = " ".join(map(str, add_shards(computes, 1))).split()
    assert made[:5] == ["0UNSHARD", "2UNSHARD", "4UNSHARD", "0F0", "0RESHARD"]
    assert made[5:7] == ["6UNSHARD", "2F0"] and made.count("0UNSHARD") == 2, "the first is gathered again for its backward"


@pytest.mark.parametrize(("name", "pp", "microbatches", "chunks"), GRID)
def test_whatever_is_computed_on_is_gathered_and_never_more_than_three(name: str, pp: int, microbatches: int, chunks: int) -> None:
    for rank in range(pp):
        active: set[int] = set()
        reduced: list[int] = []
        for action in add_shards(schedule(name, pp, rank, microbatches, chunks), microbatches):
            if action.kind == "UNSHARD":
                assert action.stage not in active
                active.add(action.stage)
            elif action.kind == "RESHARD":
                active.remove(action.stage)
            elif action.kind == "REDUCE_GRAD":
                reduced.append(action.stage)
            else:
                assert action.stage in active and action.stage not in reduced
            assert len(active) <= ACTIVE_STAGES
        assert not active and len(reduced) == len(set(reduced)) == chunks


def test_a_reduction_follows_the_message_of_its_backward() -> None:
    for line in with_messages("interleaved", 4, 8, 2, True):
        for at, action in enumerate(line):
            if action.kind == "REDUCE_GRAD" and action.stage:
                before = [a for a in line[:at] if a.kind in ("B", "SEND_B")][-2:]
                assert [(a.stage, a.kind) for a in before] == [(action.stage, "B"), (action.stage, "SEND_B")]


def test_which_schedules_torch_runs_by_actions() -> None:
    assert {name for name in SCHEDULES if not by_actions(name, 1)} == {"gpipe", "1f1b", "interleaved"}
    assert by_actions("interleaved", 2)


@pytest.mark.parametrize(("name", "pp", "microbatches", "chunks"), GRID)
def test_turns_ask_for_what_the_next_computation_takes(name: str, pp: int, microbatches: int, chunks: int) -> None:
    """Each gather is taken once, by the same micro-batch; what runs meanwhile runs beside it."""
    for line in lines(name, pp, microbatches, chunks, True, True):
        asked: dict[int, tuple[str, int]] = {}
        for index, its in line.turns:
            sort = line.sorts[index]
            if sort.kind == "UNSHARD":
                asked[sort.stage] = sort.asked, its
            elif sort.kind in ("F", "B", "I", "W"):
                if sort.asked:
                    assert asked.pop(sort.stage) == (sort.asked, its)
                assert sort.beside == bool(asked) and sort.stage not in asked
        assert not asked
        kinds = [line.sorts[index].kind for index, _ in line.turns]
        assert kinds.count("UNSHARD") == kinds.count("RESHARD") + kinds.count("REDUCE_GRAD"), "freed as often as gathered"


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_one_stage_a_rank_reduces_when_its_last_message_has_left(name: str) -> None:
    for rank, line in enumerate(lines(name, 4, 8, 1, True, True)):
        kinds = [(line.sorts[index].kind, line.sorts[index].late) for index, _ in line.turns]
        assert not {kind for kind, _ in kinds} & set(SHARDS)
        assert kinds[-1] == ("B", True) and (rank == 0 or kinds[-2] == ("SEND_B", False))


def test_they_are_printed_and_read_without_a_micro_batch() -> None:
    assert parse_action("3REDUCE_GRAD") == Action(3, "REDUCE_GRAD", -1)
    for text in ("3UNSHARD0", "3F", "UNSHARD"):
        with pytest.raises(BadInput, match="UNSHARD, RESHARD, REDUCE_GRAD"):
            parse_action(text)
