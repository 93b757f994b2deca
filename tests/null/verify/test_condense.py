"""Condensing is exact: a program deadlocks condensed when, and only when, it deadlocks op by op."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.lower.checks import dryrun
from sim.lower.condense import Waits, condense
from sim.mesh import Mesh
from sim.program import Call, Op, Program, Role
from topologies.errors import BadInput

LANES = st.sampled_from(["compute", "a", "b"])
EVENTS = st.sampled_from(["e", "f", "g"])
OPS = st.one_of(
    st.builds(lambda lane, event: Op(f"{event}.record", "record", lane, event=event), LANES, EVENTS),
    st.builds(lambda lane, event: Op(f"{event}.wait", "wait", lane, event=event), LANES | st.just("host"), EVENTS),
    st.builds(lambda lane, blocking: Op("k", "compute", lane, blocking=blocking), LANES, st.booleans()),
    st.builds(lambda lane: Op("ar", "collective", lane, name="all_reduce", group="pp"), LANES),
    st.builds(lambda lane: Op("ar", "collective", lane, name="all_reduce", group="tp"), LANES),
    st.builds(lambda lane: Op("drain", "sync", "host", name=lane), LANES),
    st.just(Op("drain", "sync", "host")),
    st.builds(lambda event: Op("see", "sync", "host", event=event), EVENTS),
    st.builds(lambda kind, lane: Op(kind, kind, lane, group="pp", peer=1), st.sampled_from(["send", "recv"]), LANES),
)
SEGMENTS = st.lists(OPS, max_size=12).map(tuple)


def stuck(program: Program) -> bool:
    try:
        dryrun.dry_run(program, [0, 1])
    except BadInput:
        return True
    return False


@pytest.mark.no_cover
@settings(max_examples=300, deadline=None)
@given(SEGMENTS, SEGMENTS, SEGMENTS)
def test_the_verdict_is_the_same(first: tuple[Op, ...], second: tuple[Op, ...], third: tuple[Op, ...]) -> None:
    segments = {"a": first, "b": second, "c": third}
    roles = {
        "x": Role({"host": (Call("a", "s0"), Call("b", "s0"), Call("a", "s1"))}),
        "y": Role({"host": (Call("a", "s0"), Call("c", "s0"))}),
    }
    program = Program("drawn", "cuda", Mesh({"pp": 2}), segments, roles, ("x", "y"), 1)
    condensed = stuck(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dryrun, "condense", lambda run, *_: run)
        assert stuck(program) == condensed


def test_a_layer_comes_down_to_what_waits() -> None:
    run = [
        Op("in", "record", "compute", event="in"),
        Op("in", "wait", "comm.tp", event="in"),
        *(Op(f"k{i}", "compute", "compute") for i in range(20)),
        Op("out", "record", "comm.tp", event="out"),
        Op("out", "wait", "compute", event="out"),
    ]
    short = condense(run, Waits(run, "host"), set(), "host")
    assert [(op.kind, op.lane, op.event) for op in short] == [
        ("record", "comm.tp", "comm.tp (as found)"),
        ("record", "compute", "compute (as found)"),
        ("wait", "compute", "comm.tp (as found)"),
        ("wait", "comm.tp", "compute (as found)"),
    ]


def meeting(lane: str) -> Op:
    """Both ranks, on this lane."""
    return Op(lane, "collective", lane, name="all_reduce", group="pp")


def record(event: str, lane: str) -> Op:
    return Op(f"{event}.record", "record", lane, event=event)


def wait(event: str, lane: str) -> Op:
    return Op(f"{event}.wait", "wait", lane, event=event)


@pytest.mark.parametrize("late", [False, True])
def test_what_was_recorded_in_mid_run_waits_for_nothing_after_it(late: bool) -> None:
    """`e` is recorded before the lane waits for the others, or after it: then y waits for x, whose turn at the other rank is after y's."""
    middle = [
        record("f", "x"),
        *([wait("f", "compute"), record("e", "compute")] if late else [record("e", "compute"), wait("f", "compute")]),
    ]
    middle += [Op(f"k{at}", "compute", "compute") for at in range(12)]  # long enough to be condensed
    first = (meeting("x"), *middle, meeting("z"), wait("e", "y"), meeting("y"))
    second = (meeting("z"), meeting("y"), record("g", "y"), wait("g", "x"), meeting("x"))
    roles = {name: Role({"host": (Call(name, "s0"),)}) for name in ("first", "second")}
    program = Program("x", "cuda", Mesh({"pp": 2}), {"first": first, "second": second}, roles, ("first", "second"), 1)
    assert stuck(program) == late
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dryrun, "condense", lambda run, *_: run)
        assert stuck(program) == late
