"""The engine without a trace = the one with it, to 1e-9: drawn programs of several ranks that launch, meet, share links and wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.price import Cost
from sim.engine.run import simulate
from sim.engine.steps import step_times
from sim.mesh import Mesh
from sim.program import Op, Program
from sim.timeline.metrics import step_times as traced
from tests.null.engine.bench import TablePricer, program
from topologies.errors import BadInput

seconds = st.floats(0.01, 5.0)
KINDS = ("kernel", "python", "beside", "free", "inside", "swap", "copy", "join", "drain", "cpu", "loaded")
piece = st.tuples(st.sampled_from(KINDS), seconds, seconds, st.booleans())
Pieces = list[tuple[str, float, float, bool]]


def _ops(i: int, piece: tuple[str, float, float, bool], rank: int, costs: dict[str, Cost | float]) -> list[Op]:
    """The i-th piece of one rank's program. Groups and messages are the same on all ranks, and each piece's of a size of its own, as their
    costs differ; other times are the rank's own."""
    kind, first, second, flag = piece
    a, b, key = f"{rank}.a{i}", f"{rank}.b{i}", f"e{i}"
    costs |= {
        a: Cost(first * (1 + rank / 4), host=second / 8),
        b: Cost(second, host=0.01),
        f"m{i}": Cost(second, latency=second / 4, uses=_LINK, drift=0.5 if flag else 0.0, drift_after=first),
    }
    kernel = Op(a, "compute", "compute")
    if kind == "python":
        return [Op(a, "host", "host"), Op(b, "compute", "compute")]
    if kind in ("beside", "free", "inside"):
        meet = Op(f"m{i}", "collective", "compute" if kind == "inside" else "comm.dp", name="all_reduce", group="dp", bytes=i)
        order = [Op("r", "record", "compute", event=key), Op("w", "wait", "comm.dp", event=key)] if kind == "beside" else []
        return [kernel, *order, meet, Op(f"d{i}", "record", meet.lane, event=f"done{i}"), Op(b, "compute", "compute")]
    if kind == "swap":
        costs[f"m{i}"] = Cost(first, latency=first / 3, uses=_LINK)
        ways = [("send", "comm.out"), ("recv", "comm.in")]
        if not flag:
            ways.reverse()
        swap = [Op(f"m{i}", way, lane, group="dp", peer=1 if way == "send" else -1, bytes=i) for way, lane in ways]
        return [kernel, *swap, Op("g", "record", "comm.in", event=key), Op("h", "wait", "compute", event=key)]
    if kind == "copy":
        costs[b] = Cost(second, latency=second / 5, uses=(("link", 3.0), ("other", 1.0)))
        costs[f"{a}x"] = Cost(first, host=0.01)
        return [kernel, Op(b, "copy", "copy.h2d", blocking=flag), Op(f"{a}x", "compute", "copy.h2d")]
    if kind == "join":
        return [Op("w", "wait", "compute", event=f"done{i - 1}"), kernel]
    if kind == "drain":
        return [kernel, Op("s", "sync", "host", name="" if flag else "compute")]
    if kind == "cpu":
        return [Op(a, "compute", "compute", blocking=True), Op(b, "host", "host")]
    if kind == "loaded":
        return [Op("l", "sync", "host", event="batch", shift=0), kernel]
    return [kernel, Op(b, "compute", "compute")]


_LINK = (("link", 2.0),)


def drawn(pieces: Pieces, ranks: int, costs: dict[str, Cost | float]) -> Program:
    threads = []
    for rank in range(ranks):
        ops = [op for i, piece in enumerate(pieces) for op in _ops(i, piece, rank, costs)]
        costs["load"] = 1.5
        load = [Op("load", "host", "loader.0"), Op("ready", "record", "loader.0", event="batch", shift=0)]
        threads.append({"host": ops, "loader.0": load})
    return program(*threads, mesh=Mesh({"dp_replicate": ranks}), calls=3)


@pytest.mark.no_cover
@settings(max_examples=300, deadline=None)
@given(st.lists(piece, min_size=1, max_size=8), st.integers(1, 3), st.floats(1.0, 2.0), st.floats(3.0, 6.0))
def test_clocks_equal_the_trace(pieces: Pieces, ranks: int, slow: float, capacity: float) -> None:
    costs: dict[str, Cost | float] = {}
    made = drawn(pieces, ranks, costs)
    pricer = TablePricer(costs, {"link": capacity, "other": 1.5}, slow)
    for one, other in zip(
        traced(simulate(made, pricer, symmetry=False)), [step.seconds for step in step_times(made, pricer, symmetry=False)], strict=True
    ):
        assert abs(one - other) <= 1e-9 * max(one, 1.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(piece, min_size=1, max_size=8), st.floats(1.0, 2.0))
def test_folded_clocks_equal_the_condensed_trace(pieces: Pieces, slow: float) -> None:
    costs: dict[str, Cost | float] = {}
    made = drawn(pieces, 1, costs)
    made = Program(made.name, made.device, Mesh({"dp_replicate": 4}), made.segments, made.roles, made.role_of * 4, made.steps)
    pricer = TablePricer(costs, {"link": 9.0, "other": 2.0}, slow)
    if any(kind == "swap" for kind, *_ in pieces):  # a folded rank has no peer to swap with
        return
    for one, other in zip(traced(simulate(made, pricer, condensed=True)), [step.seconds for step in step_times(made, pricer)], strict=True):
        assert abs(one - other) <= 1e-9 * max(one, 1.0)


def test_ranks_that_wait_for_ever_are_named() -> None:
    made = program({"host": [Op("x", "recv", "comm.in", group="dp", peer=1)]}, {"host": [Op("k", "compute", "compute")]})
    with pytest.raises(BadInput, match=r"deadlocks.*rank 0"):
        step_times(made, TablePricer({"x": 1.0, "k": 1.0}), symmetry=False)
    made = program({"host": [Op("s", "sync", "host", event="never", shift=0)]})
    with pytest.raises(BadInput, match=r"deadlocks.*rank 0 host"):
        step_times(made, TablePricer({}))
