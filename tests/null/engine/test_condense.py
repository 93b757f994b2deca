"""Condensed = whole, to 1e-9, where nothing outside runs beside a stretch: drawn layers with collectives on lanes of their own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.cost.price import Cost, Source
from sim.engine.run import simulate
from sim.mesh import Mesh
from sim.program import Op
from sim.timeline.metrics import breakdown, step_times
from tests.null.engine.bench import TablePricer, program

seconds = st.floats(0.01, 5.0)
layer = st.tuples(seconds, seconds, seconds, st.booleans(), st.sampled_from([0.0, 1.0, 1.5, 2.5]))
"""A kernel, a collective, a kernel after or beside it, which; how much slower that one is beside one, 0: as all others."""


@pytest.mark.no_cover
@settings(max_examples=120, deadline=None)
@given(st.lists(layer, min_size=2, max_size=6), st.floats(0.0, 0.3), st.floats(1.0, 2.0), seconds)
def test_condensed_equals_whole(layers: list[tuple[float, float, float, bool, float]], host: float, slow: float, final: float) -> None:
    ops: list[Op] = []
    costs: dict[str, Cost | float] = {"grad": final, "last": final}
    for i, (before, comm, beside, overlapped, own) in enumerate(layers):
        costs |= {
            f"a{i}": Cost(before, host=host),
            f"tp{i}": Cost(comm, host=host),
            f"b{i}": Cost(beside, host=host, slowed=own * beside * (slow > 1.0)),
        }
        ops.append(Op(f"a{i}", "compute", "compute"))
        if overlapped:
            ops += [Op(f"r{i}", "record", "compute", event=f"go{i}"), Op(f"w{i}", "wait", "comm.tp", event=f"go{i}")]
            ops += [Op(f"tp{i}", "collective", "comm.tp", name="all_reduce", group="tp"), Op(f"b{i}", "compute", "compute")]
            ops += [Op(f"d{i}", "record", "comm.tp", event=f"done{i}"), Op(f"j{i}", "wait", "compute", event=f"done{i}")]
        else:
            ops += [Op(f"tp{i}", "collective", "compute", name="all_reduce", group="tp"), Op(f"b{i}", "compute", "compute")]
    ops += [Op("sync", "sync", "host")]
    made = program({"host": ops}, mesh=Mesh({}), calls=4)
    pricer = TablePricer(costs, slow=slow)
    whole, condensed = simulate(made, pricer), simulate(made, pricer, condensed=True)
    assert len(condensed.spans) < len(whole.spans)
    # With host time the map is exact for launches far ahead or far behind; between, overlap may shift by a launch.
    slack = 1e-9 if host == 0.0 else 0.02
    for one, other in zip(step_times(whole), step_times(condensed), strict=True):
        assert abs(one - other) <= slack * one
    if host == 0.0:
        split, short = breakdown(whole), breakdown(condensed)
        assert short.exposed_comm_s == pytest.approx(split.exposed_comm_s, rel=1e-9, abs=1e-9)
        assert short.compute_s == pytest.approx(split.compute_s, rel=1e-9)


def test_open_communication_is_left_as_it_is() -> None:
    ops = [Op("a", "compute", "compute"), Op("r", "record", "compute", event="e"), Op("w", "wait", "comm.tp", event="e")]
    ops += [Op("tail", "collective", "comm.tp", name="all_reduce", group="tp"), Op("b", "compute", "compute")]
    made = program({"host": ops}, mesh=Mesh({}))
    whole = simulate(made, TablePricer({"a": 1.0, "tail": 5.0, "b": 1.0}), condensed=True)
    assert {s.id.rsplit("/")[-1] for s in whole.spans} >= {"a", "tail", "b"}


def test_a_message_behind_a_stretch_still_waits_for_it() -> None:
    """Kernels, then the send of what the last of them makes: the wait on the lane of messages is nobody's inside."""
    ops = [Op(f"k{i}", "compute", "compute") for i in range(4)] + [Op("r", "record", "compute", event="made")]
    ops += [Op("w", "wait", "comm.cp", event="made"), Op("send", "send", "comm.cp", group="cp", peer=1)]
    ops += [Op("recv", "recv", "comm.cp.in", group="cp", peer=-1), Op("here", "record", "comm.cp.in", event="here")]
    ops += [Op("j", "wait", "compute", event="here"), Op("next", "compute", "compute"), Op("sync", "sync", "host")]
    made = program({"host": ops}, {"host": ops}, mesh=Mesh({"cp": 2}), calls=4)
    pricer = TablePricer({**{f"k{i}": 1.0 for i in range(4)}, "send": 3.0, "recv": 3.0, "next": 1.0})
    whole, condensed = simulate(made, pricer, True), simulate(made, pricer, True, condensed=True)
    assert len(condensed.spans) < len(whole.spans)
    assert step_times(condensed) == step_times(whole)


@pytest.mark.parametrize("source", ["measured", "fitted", "assumed"])
def test_a_stretch_rests_on_what_its_kernels_do(source: Source) -> None:
    class Sure(TablePricer):
        def local(self, op: Op, rank: int) -> Cost:
            return replace(super().local(op, rank), source=source)

    made = program({"host": [Op(f"k{i}", "compute", "compute") for i in range(4)]}, mesh=Mesh({}))
    found = simulate(made, Sure({f"k{i}": 1.0 for i in range(4)}), condensed=True)
    assert {span.source for span in found.spans if span.kind == "compute"} == {source}
