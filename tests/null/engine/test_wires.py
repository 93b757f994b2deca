"""Lanes that hold nothing but the messages of two ranks: which they are, and that messages on them take what they take on any lane."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.price import Cost
from sim.engine.fold import representatives
from sim.engine.groups import Groups
from sim.engine.inorder.moves import Unordered
from sim.engine.inorder.run import in_order
from sim.engine.inorder.wires import wires_of
from sim.engine.pricing import Pricing
from sim.engine.steps import alone, step_times
from sim.lower.step import lower
from sim.mesh import Mesh
from sim.program import Op, Program
from sim.setting.bind import bind
from tests.null.engine.bench import TablePricer, program

RING = 3
Turn = tuple[bool, bool, int]
"""Does it receive, does compute wait until its message has left; its kernel's tenths of a second."""
turns = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 40)), min_size=1, max_size=6)


def _post(name: str, lane: str, kind: str, peer: int) -> list[Op]:
    return [
        Op(f"{name}.r", "record", "compute", event=f"{name}.made"),
        Op(f"{name}.w", "wait", lane, event=f"{name}.made"),
        Op(name, "send" if kind == "send" else "recv", lane, group="dp", peer=peer),
    ]


def _line(rank: int, lines: list[list[Turn]], costs: dict[str, Cost | float], end: str) -> list[Op]:
    """A rank of a ring: it computes, and sends to the next what it has made; it receives what the one before has sent by then."""
    ops: list[Op] = []
    posted, sent = 0, len(lines[rank - 1])
    for at, (receives, awaits, tenths) in enumerate(lines[rank]):
        if receives and posted < min(at, sent):
            name = f"in{rank}.{posted}"
            ops += [*_post(name, "comm.in", "recv", -1), Op(f"{name}.e", "record", "comm.in", event=name, shift=0)]
            ops.append(Op(f"{name}.t", "wait", "compute", event=name, shift=0))
            costs[name], costs[f"{name}.r"], posted = Cost(0.0, host=0.05), Cost(0.0, host=0.01), posted + 1
        name = f"out{rank}.{at}"
        ops += [Op(f"k{rank}.{at}", "compute", "compute"), *_post(name, "comm.out", "send", 1)]
        costs[f"k{rank}.{at}"], costs[name] = Cost(tenths / 10, host=0.02), Cost(0.1 + tenths / 20, host=0.03)
        if awaits and rank:  # all of a ring would wait for each other
            ops += [Op(f"{name}.e", "record", "comm.out", event=name), Op(f"{name}.t", "wait", "compute", event=name)]
    for at in range(posted, sent):
        ops += _post(f"in{rank}.{at}", "comm.in", "recv", -1)
    return [*ops, Op("end", "sync", "host", name=end), Op(f"last{rank}", "compute", "compute")]


def _run(made: Program, pricer: TablePricer) -> list[float]:
    run = in_order(Pricing(made, pricer, Groups(made.mesh, representatives(made, False).__getitem__), False, alone), range(RING))
    return [run.ends[step] for step in sorted(run.ends)]


@settings(max_examples=150, deadline=None)
@given(st.lists(turns, min_size=RING, max_size=RING), st.sampled_from(["", "comm.in", "comm.out"]))
def test_messages_on_wires_take_the_same_time(lines: list[list[Turn]], end: str) -> None:
    costs: dict[str, Cost | float] = {f"last{rank}": 1.0 for rank in range(RING)}
    ranks = [_line(rank, lines, costs, end) for rank in range(RING)]
    made = program(*({"host": ops} for ops in ranks), mesh=Mesh({"dp_replicate": RING}))
    pricer = TablePricer(costs)
    assert wires_of(made) == {"comm.out": "comm.in", "comm.in": "comm.out"}
    assert _run(made, pricer) == pytest.approx([step.seconds for step in step_times(made, pricer, False)], rel=1e-9)


def test_a_message_that_comes_to_no_end_of_its_wire_is_said_to_be_unordered() -> None:
    ranks = [
        {"host": _post("m", "comm.out", "send", 1)},
        {"host": [Op("k", "compute", "compute")]},
        {"host": _post("n", "comm.in", "recv", -1)},
    ]
    made = program(*ranks, mesh=Mesh({"dp_replicate": RING}))
    assert wires_of(made)
    with pytest.raises(Unordered):
        _run(made, TablePricer({}))


@pytest.mark.parametrize("more, wires", [
    ([Op("x", "send", "comm.out", group="dp", peer=1)], 0),  # what it sends was made before
    ([Op("x", "compute", "comm.in")], 0),
    (_post("x", "comm.in", "recv", 1), 0),  # of another rank
    (_post("x", "comm.more", "recv", -1), 0),
    (_post("x", "comm.back", "send", -1), 2),  # nobody receives it
])  # fmt: skip
def test_a_lane_with_anything_else_is_no_wire(more: list[Op], wires: int) -> None:
    line = [*_post("a", "comm.out", "send", 1), *_post("b", "comm.in", "recv", -1)]
    made = program({"host": [*line, *more]}, {"host": line}, {"host": line}, mesh=Mesh({"dp_replicate": RING}))
    assert len(wires_of(made)) == wires


@pytest.mark.parametrize("parallel, wires", [
    ({"pp": 4, "dp_shard": 1}, 4),
    ({"pp": 4, "dp_shard": 1, "schedule": "interleaved", "virtual_stages": 3}, 4),
    ({"pp": 3, "dp_shard": 1, "schedule": "gpipe"}, 4),
    ({"pp": 4, "dp_shard": 1, "schedule": "zb-h1"}, 4),
    ({"pp": 2, "dp_shard": 2}, 0),  # up and down to the same rank
    ({"pp": 4, "dp_shard": 1, "schedule": "dualpipe", "virtual_stages": 2}, 0),
])  # fmt: skip
def test_pipelines_send_on_wires(parallel: dict[str, int | str], wires: int) -> None:
    plan = {"model": "llama3-8b", "seq_len": 1024, "framework": "megatron-core", "parallel": parallel, "batch": {"global": 16, "micro": 1}}
    setting = bind(plan, "1x dgx-h100")
    made = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    assert len(wires_of(made)) == wires
