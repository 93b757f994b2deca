"""A thread's calls by turns are its calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.program import Call
from sim.turns import Line, Turns, single, turns_of

CALLS = st.lists(
    st.builds(Call, st.sampled_from(["fwd", "bwd", "update"]), st.just("s0"), st.integers(0, 9), st.integers(0, 2)), max_size=20
)


def test_turns_say_what_each_micro_batch_calls() -> None:
    turns = Turns(1, 4, [("input", "fwd"), ("bwd",)], [(0, 0), (1, 0), (0, 1)])
    line = Line([turns, single("update", 1)])
    assert list(line) == [
        Call("input", "s1/mb0", 4, 1),
        Call("fwd", "s1/mb0", 4, 1),
        Call("bwd", "s1/mb0", 4, 1),
        Call("input", "s1/mb1", 5, 1),
        Call("fwd", "s1/mb1", 5, 1),
        Call("update", "s1", 1, 1),
    ]
    assert len(line) == 6
    assert line[-1] == Call("update", "s1", 1, 1)
    assert line[1:3] == tuple(line)[1:3]
    assert turns_of(line) is line.turns


@given(CALLS)
def test_calls_as_turns_are_the_same_calls_in_the_same_order(calls: list[Call]) -> None:
    calls.sort(key=lambda call: call.step)
    found = [
        (name, turns.before + number, turns.step)
        for turns in turns_of(tuple(calls))
        for sort, number in turns.turns
        for name in turns.names[sort]
    ]
    assert found == [(call.segment, call.index, call.step) for call in calls]
