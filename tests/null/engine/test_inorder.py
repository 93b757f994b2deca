"""Time in program order = the engine without a trace, where no transfer loses anything to another: drawn programs, and plans."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.price import Cost, Pricer
from sim.engine.fold import representatives
from sim.engine.groups import Groups
from sim.engine.inorder.moves import Rank, Unordered
from sim.engine.inorder.run import in_order
from sim.engine.pricing import Pricing
from sim.engine.run import simulate
from sim.engine.shortcut import Shortcut
from sim.engine.steps import alone, step_times
from sim.lower.short import Shortener
from sim.lower.step import lower
from sim.mesh import Mesh
from sim.program import COMPUTE, Call, Op, Program, Role
from sim.rules import mesh_of
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.timeline.metrics import step_times as traced
from tests.null.engine.bench import TablePricer, program
from tests.null.engine.test_clocks import Pieces, drawn, piece

UNLIMITED: Mapping[str, float] = {"link": math.inf, "other": math.inf}


def _ordered(made: Program, pricer: Pricer, fold: bool) -> list[float]:
    """Seconds of each step, in program order."""
    stands_for = representatives(made, fold)
    run = in_order(Pricing(made, pricer, Groups(made.mesh, stands_for.__getitem__), fold, alone), sorted(set(stands_for)))
    ends = [0.0, *(run.ends[step] for step in sorted(run.ends))]
    return [max(0.0, after - max(ends[: at + 1])) for at, after in enumerate(ends[1:])]


def _timed(made: Program, pricer: Pricer, fold: bool) -> list[float]:
    return [step.seconds for step in step_times(made, pricer, fold)]


def _left_out(made: Program, pricer: Pricer) -> float:
    """Seconds that kernels on other lanes than compute's lose at most, in all, to collectives that are timed after them (`Rank.aside`)."""
    slow = max(pricer.slowdown(rank) for rank in range(made.world))
    asides = [
        pricer.local(op, rank).seconds * (slow - 1.0)
        for rank in range(made.world)
        for calls in made.threads(rank).values()
        for call in calls
        for op in made.segments[call.segment]
        if op.kind == "compute" and op.lane != COMPUTE
    ]
    return sum(asides)


@pytest.mark.no_cover
@settings(max_examples=300, deadline=None)
@given(st.lists(piece, min_size=1, max_size=8), st.integers(1, 3), st.floats(1.0, 2.0), st.booleans())
def test_drawn_programs_take_the_same_time_in_program_order(pieces: Pieces, ranks: int, slow: float, quiet: bool) -> None:
    """Where it cannot tell, it says so."""
    costs: dict[str, Cost | float] = {}
    made = drawn(pieces, ranks, costs)
    pricer = TablePricer(costs, UNLIMITED, 1.0 if quiet else slow)
    try:
        found = _ordered(made, pricer, False)
    except Unordered:
        return
    assert found == pytest.approx(_timed(made, pricer, False), rel=1e-9, abs=max(1e-12, _left_out(made, pricer)))


@settings(max_examples=200, deadline=None)
@given(st.lists(piece, min_size=2, max_size=8), st.integers(1, 7), st.integers(1, 2), st.floats(1.0, 2.0))
def test_a_program_cut_into_calls_takes_the_same_time_in_program_order(pieces: Pieces, at: int, ranks: int, slow: float) -> None:
    """Collectives of the second call may begin beside kernels of the first. Where it cannot tell, it says so."""
    costs: dict[str, Cost | float] = {}
    made = drawn(pieces, ranks, costs)
    segments = dict(made.segments)
    roles: dict[str, Role] = {}
    for name, role in made.roles.items():
        threads = dict(role.threads)
        (whole,) = {call.segment for call in threads["host"]}
        cut = min(range(len(segments[whole]) + 1), key=lambda i: abs(i - at * len(segments[whole]) // 8))
        segments |= {f"{whole}.a": segments[whole][:cut], f"{whole}.b": segments[whole][cut:]}
        threads["host"] = tuple(Call(whole + part, c.at, c.index, c.step) for c in threads["host"] for part in (".a", ".b"))
        roles[name] = Role(threads)
    made = Program(made.name, made.device, made.mesh, segments, roles, made.role_of, made.steps)
    pricer = TablePricer(costs, UNLIMITED, slow)
    try:
        found = _ordered(made, pricer, False)
    except Unordered:
        return
    assert found == pytest.approx(_timed(made, pricer, False), rel=1e-9, abs=max(1e-12, _left_out(made, pricer)))


PLANS = (
    {"tp": 4, "pp": 1, "dp_shard": 8, "zero": 3},
    {"tp": 2, "pp": 1, "dp_shard": 4, "dp_replicate": 4, "zero": 3},
    {"tp": 4, "pp": 1, "dp_shard": 8, "zero": 1},
    {"tp": 2, "pp": 4, "dp_shard": 4, "zero": 3},
    {"tp": 4, "pp": 4, "dp_shard": 2, "zero": 1, "schedule": "interleaved", "virtual_stages": 3},
    {"tp": 1, "pp": 4, "dp_shard": 8, "zero": 1, "schedule": "zb-h1"},
    {"tp": 2, "pp": 2, "dp_shard": 8, "zero": 0, "cp": 1},
)


class Unshared:
    """A pricer whose links have room for everybody."""

    def __init__(self, pricer: Pricer) -> None:
        self.local, self.collective, self.message, self.slowdown = pricer.local, pricer.collective, pricer.message, pricer.slowdown
        self.capacity: Mapping[str, float] = _Boundless()


class _Boundless(dict[str, float]):
    def __missing__(self, key: str) -> float:
        return math.inf


@pytest.mark.no_cover
@pytest.mark.parametrize("parallel", PLANS, ids=lambda parallel: " ".join(f"{key}={value}" for key, value in parallel.items()))
def test_plans_take_the_same_time_in_program_order(parallel: dict[str, int | str]) -> None:
    """As a sweep ranks them: equal layers shared, each of them one op."""
    plan = {"model": "gpt2-124m", "seq_len": 1024, "framework": "megatron-core", "parallel": parallel, "batch": {"global": 64, "micro": 1}}
    setting = bind(plan, "4x dgx-h100")
    shortcut = Shortcut(pricer_for(setting), mesh_of(setting.plan), setting.topology)
    made = lower(setting.plan, setting.network, setting.framework, "cuda", 2, Shortener(shortcut.shorten, True))
    pricer = Unshared(shortcut)
    found = _ordered(made, pricer, True)
    assert found == pytest.approx(traced(simulate(made, pricer)), rel=1e-9)
    assert [step.seconds for step in step_times(made, pricer, apart=True)] == found


def test_a_kernel_is_slowed_while_a_collective_runs_beside_it() -> None:
    """A collective of 2 s beside the second of two kernels of 3 s, each: at half speed for 2 s, it takes 4 s."""
    ops = [
        Op("k", "compute", "compute"),
        Op("r", "record", "compute", event="made"),
        Op("w", "wait", "comm.dp", event="made"),
        Op("c", "collective", "comm.dp", name="all_reduce", group="dp"),
        Op("l", "compute", "compute"),
    ]
    made = program({"host": ops})
    assert _ordered(made, TablePricer({"k": 3.0, "l": 3.0, "c": 2.0}, slow=2.0), False) == [7.0]


def _called(first: list[Op], second: list[Op], index: int) -> Program:
    """Two segments that one thread calls one after the other, the second as call number `index`."""
    made = program({"host": []})
    role = Role({"host": (Call("first", "s0"), Call("second", "s0", index))})
    return Program(
        "test", "cuda", made.mesh, {"first": tuple(first), "second": tuple(second)}, dict.fromkeys(made.roles, role), made.role_of, 1
    )


def test_a_collective_that_waits_for_nothing_slows_the_kernel_of_the_call_before() -> None:
    """1 s beside a kernel of 3 s at half its speed: 3.5 s; the call that begins so is timed with the one before."""
    made = _called([Op("k", "compute", "compute")], [Op("c", "collective", "comm.dp", name="all_reduce", group="dp")], 0)
    pricer = TablePricer({"k": 3.0, "c": 1.0}, slow=2.0)
    assert _ordered(made, pricer, False) == _timed(made, pricer, True) == [3.5]


def test_where_a_collective_comes_after_the_kernels_beside_it_program_order_cannot_tell() -> None:
    """Calls of two micro-batches are timed one by one: the collective of the second runs beside a kernel that is timed by then."""
    made = _called([Op("k", "compute", "compute")], [Op("c", "collective", "comm.dp", name="all_reduce", group="dp")], 1)
    pricer = TablePricer({"k": 3.0, "c": 1.0}, slow=2.0)
    with pytest.raises(Unordered):
        _ordered(made, pricer, False)
    assert [step.seconds for step in step_times(made, pricer, apart=True)] == _timed(made, pricer, True) == [3.5]


def test_a_kernel_on_another_lane_keeps_the_speed_with_which_it_was_timed() -> None:
    """The copy lane's kernel runs from 1 s on; the collective, from 0.5 s to 2.5 s, is timed later: what it takes from it is left out."""
    ops = [
        Op("b", "copy", "copy.h2d"),
        Op("x", "compute", "copy.h2d"),
        Op("p", "host", "host"),
        Op("c", "collective", "comm.dp", name="all_reduce", group="dp"),
    ]
    made = program({"host": ops})
    pricer = TablePricer({"b": 1.0, "x": 1.0, "p": 0.5, "c": 2.0}, slow=2.0)
    assert _ordered(made, pricer, False) == [2.5]
    assert _timed(made, pricer, True) == [2.75], "0.75 s of it beside the collective, at half its speed, and the rest alone"


def test_a_kernel_waits_for_the_record_before_it_also_where_the_event_is_recorded_again() -> None:
    """The second kernel waits for the first collective (1 s) behind a kernel of 3 s, not for the second, which ends at 8 s."""
    meet, done = Op("c", "collective", "comm.dp", name="all_reduce", group="dp"), Op("g", "record", "comm.dp", event="done")
    ops = [Op("k", "compute", "compute"), meet, done, Op("w", "wait", "compute", event="done"), Op("k", "compute", "compute")]
    made = program({"host": [*ops, Op("d", "collective", "comm.dp", name="all_reduce", bytes=7, group="dp"), done]})
    pricer = TablePricer({"k": 3.0, "c": 1.0, "d": 7.0}, slow=1.5)
    assert _ordered(made, pricer, False) == pytest.approx(_timed(made, pricer, True)) == [pytest.approx(8 + 1 / 1.5)]


def test_ranks_that_meet_in_the_middle_wait_for_the_later_one() -> None:
    """Rank 1 receives before it computes; rank 0 computes 2 s, sends for 1 s: rank 1 ends at 2 + 1 + 3."""
    sends = [Op("k", "compute", "compute"), Op("r", "record", "compute", event="e"), Op("w", "wait", "comm.out", event="e")]
    sends.append(Op("m", "send", "comm.out", group="dp", peer=1))
    takes = [Op("m", "recv", "comm.in", group="dp", peer=-1), Op("g", "record", "comm.in", event="f")]
    takes += [Op("h", "wait", "compute", event="f"), Op("l", "compute", "compute")]
    made = program({"host": takes}, {"host": sends}, mesh=Mesh({"dp_replicate": 2}))
    assert _ordered(made, TablePricer({"k": 2.0, "m": 1.0, "l": 3.0}), False) == [6.0]


def test_a_message_that_nobody_sends_is_said_to_be_unordered() -> None:
    made = program({"host": [Op("x", "recv", "comm.in", group="dp", peer=1)]}, {"host": [Op("k", "compute", "compute")]})
    with pytest.raises(Unordered):
        _ordered(made, TablePricer({"x": 1.0, "k": 1.0}), False)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=12), st.integers(0, 40), st.integers(1, 20), st.floats(0.2, 1.0))
def test_a_kernel_beside_collectives_does_its_work(spans: list[tuple[int, int]], start: int, seconds: int, share: float) -> None:
    """At full speed outside all spans and at `share` of it inside any, it has done its work by its end, and not before."""
    rank = Rank(0, 1.0 / share, frozenset())
    for begin, length in spans:
        rank.occupy(float(begin), float(begin + length))
    assert rank.busy == sorted(rank.busy)
    assert all(before[1] < after[0] for before, after in zip(rank.busy, rank.busy[1:], strict=False))
    end = rank.slowed(float(start), float(seconds), share)
    inside = sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in rank.busy)
    assert inside * share + (end - start - inside) == pytest.approx(seconds)
