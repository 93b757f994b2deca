"""Streams, events and blocking, as CUDA has them: whole timelines."""

from __future__ import annotations

import gc

import pytest

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.engine.state import Item
from sim.engine.steps import step_times
from sim.mesh import Mesh
from sim.program import Op
from tests.null.engine.bench import TablePricer, program, timeline
from topologies.errors import BadInput


def kernel(name: str, lane: str = "compute", **more: object) -> Op:
    return Op(name, "compute", lane, **more)  # type: ignore[arg-type]


def test_launches_run_ahead_and_kernels_queue() -> None:
    made = program({"host": [kernel("a"), kernel("b"), Op("end", "sync", "host")]})
    trace = simulate(made, TablePricer({"a": Cost(5.0, host=1.0), "b": Cost(5.0, host=1.0)}))
    assert timeline(trace) == [("r0/s0/a", 1.0, 6.0), ("r0/s0/end", 2.0, 11.0), ("r0/s0/b", 6.0, 11.0)]


def test_a_slow_host_leaves_gaps() -> None:
    made = program({"host": [kernel("a"), kernel("b")]})
    trace = simulate(made, TablePricer({"a": Cost(1.0, host=3.0), "b": Cost(1.0, host=3.0)}))
    assert timeline(trace) == [("r0/s0/a", 3.0, 4.0), ("r0/s0/b", 6.0, 7.0)]
    assert [span.bound for span in trace.spans] == ["host", "host"]


def test_wait_takes_the_latest_record() -> None:
    ops = [kernel("a"), Op("r", "record", "compute", event="e"), Op("w", "wait", "copy.d2h", event="e")]
    ops += [Op("c", "copy", "copy.d2h"), kernel("b")]
    trace = simulate(program({"host": ops}), TablePricer({"a": 2.0, "c": 3.0, "b": 4.0}))
    assert timeline(trace) == [("r0/s0/a", 0.0, 2.0), ("r0/s0/c", 2.0, 5.0), ("r0/s0/b", 2.0, 6.0)]


def test_wait_for_an_unrecorded_event_does_not_wait() -> None:
    made = program({"host": [Op("w", "wait", "compute", event="never"), kernel("a")]})
    assert timeline(simulate(made, TablePricer({"a": 1.0}))) == [("r0/s0/a", 0.0, 1.0)]


def test_a_record_says_its_own_time_also_where_the_host_goes_on_with_its_lane() -> None:
    """The host waits for the copy lane, whose last op is the record, and puts another one on it: the side lane has not to wait for that."""
    ops = [
        Op("c", "copy", "copy.h2d"),
        Op("r", "record", "copy.h2d", event="e"),
        Op("w", "wait", "side", event="e"),
        kernel("k", lane="side"),
    ]
    ops += [Op("s", "sync", "host", name="copy.h2d"), Op("again", "record", "copy.h2d", event="f")]
    trace = simulate(program({"host": ops}), TablePricer({"c": 2.0, "k": 1.0, "again": Cost(0.0, host=0.5)}))
    assert timeline(trace) == [("r0/s0/c", 0.0, 2.0), ("r0/s0/s", 0.0, 2.0), ("r0/s0/k", 2.0, 3.0)]


def test_item_reads_stop_the_host() -> None:
    ops = [kernel("a"), Op("w", "copy", "compute", blocking=True), kernel("b")]
    trace = simulate(program({"host": ops}), TablePricer({"a": Cost(4.0, host=1.0), "w": Cost(1.0, host=1.0), "b": Cost(1.0, host=1.0)}))
    assert timeline(trace) == [("r0/s0/a", 1.0, 5.0), ("r0/s0/w", 5.0, 6.0), ("r0/s0/b", 7.0, 8.0)]


def test_loader_and_host_meet_at_numbered_events() -> None:
    loader = [Op("w", "wait", "loader.0", event="taken", shift=-1), Op("load", "host", "loader.0")]
    loader += [Op("r", "record", "loader.0", event="ready", shift=0)]
    host = [
        Op("get", "sync", "host", event="ready", shift=0),
        Op("t", "record", "host", event="taken", shift=0),
        kernel("k", blocking=True),
    ]
    trace = simulate(program({"host": host, "loader.0": loader}, calls=3), TablePricer({"load": 3.0, "k": 1.0}))
    kernels = [row for row in timeline(trace) if row[0].endswith("/k")]
    assert kernels == [("r0/s0/k", 3.0, 4.0), ("r0/s1/k", 6.0, 7.0), ("r0/s2/k", 9.0, 10.0)]


def test_collective_starts_with_the_last_and_ends_for_all() -> None:
    def rank(name: str) -> dict[str, list[Op]]:
        return {"host": [kernel(name), Op("ar", "collective", "compute", name="all_reduce", group="dp", bytes=8)]}

    trace = simulate(program(rank("fast"), rank("slow")), TablePricer({"fast": 1.0, "slow": 4.0, "ar": 2.0}))
    assert timeline(trace) == [("r0/s0/fast", 0.0, 1.0), ("r1/s0/slow", 0.0, 4.0), ("r0/s0/ar", 1.0, 6.0), ("r1/s0/ar", 4.0, 6.0)]


def test_send_meets_receive_in_order() -> None:
    sends = [Op(f"s{number}", "send", "comm.pp", bytes=size, group="pp", peer=1) for number, size in enumerate((2, 3))]
    first = {"host": [kernel("f"), *sends]}
    second = {"host": [Op("v0", "recv", "comm.pp", group="pp", peer=-1), Op("v1", "recv", "comm.pp", group="pp", peer=-1)]}
    trace = simulate(program(first, second, mesh=Mesh({"pp": 2})), TablePricer({"f": 1.0, "s0": 2.0, "v0": 2.0, "s1": 3.0, "v1": 3.0}))
    assert timeline(trace, ("recv",)) == [("r1/s0/v0", 0.0, 2.0), ("r1/s0/v1", 2.0, 5.0)]


def test_compute_slows_while_a_collective_runs_beside_it() -> None:
    ops = [Op("ar", "collective", "comm.dp", name="all_reduce", group="dp"), kernel("a"), kernel("b")]
    trace = simulate(program({"host": ops}, mesh=Mesh({})), TablePricer({"ar": 3.0, "a": 2.0, "b": 2.0}, slow=1.5))
    # 3 s at 2/3 speed = 2 s of work: `a` takes them all; `b` runs alone.
    assert timeline(trace) == [("r0/s0/a", 0.0, 3.0), ("r0/s0/ar", 0.0, 3.0), ("r0/s0/b", 3.0, 5.0)]


def test_equal_flows_share_a_link_and_speed_up_when_one_ends() -> None:
    ops = [Op("x", "copy", "copy.h2d"), Op("y", "copy", "copy.d2h")]
    costs = {"x": Cost(2.0, uses=(("bus", 10.0),)), "y": Cost(4.0, uses=(("bus", 10.0),))}
    trace = simulate(program({"host": ops}), TablePricer(costs, {"bus": 10.0}))
    assert timeline(trace) == [("r0/s0/x", 0.0, 4.0), ("r0/s0/y", 0.0, 6.0)]


def test_a_collective_that_stands_for_two_has_the_share_of_two() -> None:
    """Three groups on one link, two of them as one: a third each."""
    ops = [Op(name, "collective", f"comm.{name}", name="all_reduce", group="dp") for name in ("two", "one")]
    costs = {"two": Cost(2.0, uses=(("link", 10.0),), share=5.0), "one": Cost(2.0, uses=(("link", 10.0),))}
    made, pricer = program({"host": ops}), TablePricer(costs, {"link": 10.0})
    # `one` is sent at a third of its speed until `two`, at two thirds, has ended.
    assert timeline(simulate(made, pricer)) == [("r0/s0/two", 0.0, 3.0), ("r0/s0/one", 0.0, 4.0)]
    assert [step.seconds for step in step_times(made, pricer)] == pytest.approx([4.0])


def test_a_chain_of_launches_is_max_plus() -> None:
    # two kernels of 1 s in one op, launches of 3 s each: the second kernel starts at 6 and ends at 7.
    made = program({"host": [kernel("two")]})
    trace = simulate(made, TablePricer({"two": Cost(2.0, host=6.0, ready=7.0)}))
    assert timeline(trace) == [("r0/s0/two", 5.0, 7.0)]


def test_deadlock_names_who_waits() -> None:
    made = program({"host": [Op("v", "recv", "comm.pp", group="pp", peer=-1)]}, {"host": []}, mesh=Mesh({"pp": 2}))
    with pytest.raises(BadInput, match=r"rank 0 at s0/v \(recv in pp\)"):
        simulate(made, TablePricer({}))


def test_what_has_ended_is_let_go() -> None:
    """A span says all of an op: of a thousand with events, which refer to each other, only lanes' last ones remain. (A step of two million took
    a fifth longer, for Python to find them, and a third more memory.)"""
    ops = [op for at in range(500) for op in (kernel("a"), Op(f"r{at}", "record", "compute", event="e"))]
    made = program({"host": [*ops, Op("w", "wait", "side", event="e")]})
    gc.collect()
    gc.disable()
    try:
        trace = simulate(made, TablePricer({"a": 1.0}))
        left = sum(isinstance(one, Item) for one in gc.get_objects())
    finally:
        gc.enable()
    assert len(trace.spans) == 1001
    assert left < 10


def test_same_input_same_trace() -> None:
    made = program(*[{"host": [kernel("a"), Op("ar", "collective", "comm.dp", name="all_reduce", group="dp")]} for _ in range(4)])
    pricer = TablePricer({"a": 0.1, "ar": Cost(0.3, uses=(("l", 1.0),))}, {"l": 0.5})
    assert simulate(made, pricer).spans == simulate(made, pricer).spans


def test_a_sync_of_what_has_ended_takes_no_time() -> None:
    """One lane that is idle by then, all lanes, or none at all."""
    ops = [kernel("a", blocking=True), Op("x", "host", "host"), Op("one", "sync", "host", name="compute"), Op("all", "sync", "host")]
    trace = simulate(program({"host": [Op("none", "sync", "host"), *ops]}), TablePricer({"a": 2.0, "x": 3.0}))
    found = {name.split("/")[-1]: (start, end) for name, start, end in timeline(trace)}
    assert (found["none"], found["one"], found["all"]) == ((0.0, 0.0), (5.0, 5.0), (5.0, 5.0))


def test_an_event_that_never_comes_names_its_thread() -> None:
    made = program({"host": [Op("get", "sync", "host", event="ready", shift=0)], "loader.0": [Op("load", "host", "loader.0")]})
    with pytest.raises(BadInput, match=r"wait for an event that never comes: rank 0 host$"):
        simulate(made, TablePricer({"load": 1.0}))


def test_thousands_of_waits_for_what_has_come_are_one_after_the_other() -> None:
    """A CPU's thread waits for each on the lane that computes: no call stands in the one before it."""
    waits = [Op(f"w{i}", "wait", "compute", event="e", blocking=True) for i in range(5000)]
    ops = [kernel("a", blocking=True), Op("r", "record", "compute", event="e"), *waits, kernel("b")]
    trace = simulate(program({"host": ops}, device="cpu"), TablePricer({"a": 2.0, "b": 1.0} | {"w4999": Cost(0.0, host=0.5)}))
    assert timeline(trace)[-1] == ("r0/s0/b", 2.5, 3.5)
