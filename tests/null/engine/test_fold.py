"""Folded = unfolded, to 1e-9: drawn meshes, collectives on several axes, a shared link, pipelines, unequal ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.cost.price import Cost
from sim.engine.fold import representatives
from sim.engine.run import simulate
from sim.lower.step import lower
from sim.mesh import AXES, Mesh
from sim.program import Call, Op, Program, Role
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.timeline.metrics import breakdown, step_times
from tests.null.engine.bench import TablePricer

sizes = st.sampled_from([1, 2, 3])
seconds = st.floats(0.1, 4.0)


class SharedUplink(TablePricer):
    """Every group of `grad` takes bandwidth of one uplink; folded, all sibling groups are counted together."""

    def collective(self, op: Op, members: tuple[int, ...], siblings: int) -> Cost:
        cost = self._of(op)
        return Cost(cost.seconds, uses=(("uplink", siblings / 4),)) if op.group == "grad" else cost


def spmd(mesh: Mesh, work: list[float], stages: bool = True) -> tuple[Program, dict[str, Cost | float]]:
    """Each pipeline stage computes, meets its tp group, passes on, and averages gradients beside the next kernel."""
    costs: dict[str, Cost | float] = {"tp": 0.5, "grad": 2.0, "send": 0.25, "recv": 0.25}
    segments, roles = {}, {}
    last = mesh.size("pp") - 1
    for stage in range(last + 1):
        ops: list[Op] = [Op("recv", "recv", "comm.pp", group="pp", peer=-1)] if stage else []
        ops += [Op("r0", "record", "comm.pp", event="in"), Op("w0", "wait", "compute", event="in")]
        for number, value in enumerate(work):
            costs[f"k{stage}.{number}"] = value
            ops.append(Op(f"k{stage}.{number}", "compute", "compute"))
            if mesh.size("tp") > 1:
                ops.append(Op("tp", "collective", "compute", name="all_reduce", group="tp"))
        ops += [
            Op("r1", "record", "compute", event="out"),
            Op("w1", "wait", "comm.grad", event="out"),
            Op("w2", "wait", "comm.pp", event="out"),
        ]
        ops.append(Op("grad", "collective", "comm.grad", name="all_reduce", group="grad"))
        if stage < last:
            ops.append(Op("send", "send", "comm.pp", group="pp", peer=1))
        ops += [Op(f"k{stage}.0", "compute", "compute"), Op("end", "sync", "host")]
        segments[f"stage{stage}"] = tuple(ops)
        roles[f"stage{stage}"] = Role({"host": tuple(Call(f"stage{stage}", f"s{i}", i, i) for i in range(2))})
    role_of = tuple(f"stage{mesh.coordinates(rank)['pp']}" for rank in range(mesh.world))
    return Program("spmd", "cuda", mesh, segments, roles, role_of, 2), costs


@pytest.mark.no_cover
@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, sizes, st.lists(seconds, min_size=1, max_size=3), st.floats(1.0, 1.5))
def test_folded_equals_unfolded(pp: int, replicate: int, shard: int, tp: int, work: list[float], slow: float) -> None:
    mesh = Mesh({"pp": pp, "dp_replicate": replicate, "dp_shard": shard, "tp": tp})
    program, costs = spmd(mesh, work)
    pricer = SharedUplink(costs, {"uplink": 1.0}, slow)
    whole, folded = simulate(program, pricer, symmetry=False), simulate(program, pricer, symmetry=True)
    assert len(folded.ranks) == pp
    for one, other in zip(step_times(whole), step_times(folded), strict=True):
        assert abs(one - other) <= 1e-9 * one
    assert abs(breakdown(whole).total - breakdown(folded).total) <= 1e-9 * breakdown(whole).total


def test_a_slow_rank_splits_the_ranks_that_it_delays() -> None:
    mesh = Mesh({"dp_replicate": 4, "tp": 2})
    program, _ = spmd(mesh, [1.0])
    roles = {**program.roles, "slow": program.roles["stage0"]}
    role_of = ("slow", *program.role_of[1:])
    uneven = Program("uneven", "cuda", mesh, program.segments, roles, role_of, 2)
    # Rank 0 is slow; 1 is its tp partner; 2, 4, 6 average gradients with 0, and 3, 5, 7 with 1.
    assert representatives(uneven, True) == [0, 1, 2, 3, 2, 3, 2, 3]


def ring(ways: int, slow: set[int]) -> tuple[Program, dict[str, Cost | float]]:
    """Each rank computes, passes on what it made to the next of its ring, and computes again once the one before has sent."""
    ops = (
        Op("k", "compute", "compute"),
        Op("r", "record", "compute", event="made"),
        Op("w", "wait", "comm.send", event="made"),
        Op("s", "send", "comm.send", group="cp", peer=1),
        Op("g", "recv", "comm.recv", group="cp", peer=-1),
        Op("d", "record", "comm.recv", event="come"),
        Op("h", "wait", "compute", event="come"),
        Op("k2", "compute", "compute"),
        Op("end", "sync", "host"),
    )
    roles = {name: Role({"host": tuple(Call(name, f"s{i}", i, i) for i in range(2))}) for name in ("even", "slow")}
    mesh = Mesh({"cp": ways})
    role_of = tuple("slow" if rank in slow else "even" for rank in range(ways))
    slowly = tuple(replace(op, id=f"slow.{op.id}") if op.kind == "compute" else op for op in ops)
    costs: dict[str, Cost | float] = {"k": 1.0, "k2": 0.5, "slow.k": 3.0, "slow.k2": 1.5, "s": 0.25, "g": 0.25}
    return Program("ring", "cuda", mesh, {"even": ops, "slow": slowly}, roles, role_of, 2), costs


@pytest.mark.no_cover
@given(st.integers(1, 7), st.sets(st.integers(0, 6)))
def test_rings_around_slow_ranks_fold_to_the_same_time(ways: int, slow: set[int]) -> None:
    program, costs = ring(ways, slow)
    whole, folded = (simulate(program, TablePricer(costs), symmetry=fold) for fold in (False, True))
    assert step_times(whole) == step_times(folded)


def test_a_rank_behind_a_slow_one_is_not_one_before_it() -> None:
    assert representatives(ring(4, {0})[0], True) == [0, 1, 2, 3]
    assert representatives(ring(4, {0, 2})[0], True) == [0, 1, 0, 1]
    assert representatives(ring(4, set())[0], True) == [0, 0, 0, 0]


def test_asymmetric_machines_are_not_folded() -> None:
    program, _ = spmd(Mesh({"dp_replicate": 4}), [1.0])
    assert representatives(program, False) == [0, 1, 2, 3]
    assert representatives(program, True) == [0, 0, 0, 0]


def test_places_are_the_coordinates_along_an_axis() -> None:
    """In any order of the axes."""
    for order in (AXES, AXES[::-1], ("dp_shard", "tp", "pp", "cp", "dp_replicate")):
        mesh = Mesh({"pp": 3, "tp": 2, "dp_shard": 4, "cp": 2}, order)
        for axis in AXES:
            assert mesh.places(axis) == [mesh.coordinates(rank)[axis] for rank in range(48)]


class Hops(TablePricer):
    """A message costs what the hop from its sender does."""

    hops: list[float]

    def message(self, op: Op, source: int, target: int, siblings: int) -> Cost:
        return Cost(self.hops[source // 2])


@pytest.mark.no_cover
@settings(max_examples=60, deadline=None)
@given(st.lists(seconds, min_size=2, max_size=5), st.integers(1, 4), seconds)
def test_a_folded_ring_waits_for_its_slowest_hop(hops: list[float], rounds: int, work: float) -> None:
    """Ring attention over nodes: some hops stay on a node, others cross the network."""
    mesh = Mesh({"cp": len(hops), "tp": 2})
    ops: list[Op] = []
    for number in range(rounds):
        at = f"hop{number}"
        ops += [Op(f"{at}.out", "record", "compute", event=f"{at}.out"), Op(f"{at}.s", "wait", "send", event=f"{at}.out")]
        ops += [Op(f"{at}.r", "wait", "recv", event=f"{at}.out"), Op("send", "send", "send", group="cp", peer=1)]
        ops += [Op("recv", "recv", "recv", group="cp", peer=-1), Op(f"{at}.in", "record", "recv", event=f"{at}.in")]
        ops += [Op("work", "compute", "compute"), Op(f"{at}.w", "wait", "compute", event=f"{at}.in")]
    calls = tuple(Call("layer", f"s{i}", i, i) for i in range(2))
    program = Program("ring", "cuda", mesh, {"layer": tuple(ops)}, {"all": Role({"host": calls})}, ("all",) * mesh.world, 2)
    pricer = Hops({"work": work})
    pricer.hops = hops
    whole, folded = simulate(program, pricer, symmetry=False), simulate(program, pricer, symmetry=True)
    assert len(folded.ranks) == 1
    for one, other in zip(step_times(whole), step_times(folded), strict=True):
        assert abs(one - other) <= 1e-9 * one


@pytest.mark.no_cover
@settings(max_examples=12, deadline=None)
@given(st.sampled_from([2, 4]), st.sampled_from([2, 4]), st.sampled_from([64, 512, 2048]), st.integers(1, 3))
def test_what_reaches_a_rank_of_a_folded_ring_waits_beside_its_hops(pp: int, cp: int, seq: int, rounds: int) -> None:
    """Ranks of a ring are simulated as one: its hop arrives at the very links over which the other end's gradient of a tied table comes."""
    plan = {
        "model": {"base": "gpt2-124m", "layers": 4},
        "seq_len": seq,
        "batch": {"global": 2 * rounds, "micro": 1},
        "parallel": {"pp": pp, "cp": cp},
    }
    setting = bind(plan | {"framework": "megatron-core"}, "2x dgx-h100")
    program, pricer = lower(setting.plan, setting.network, setting.framework, "cuda", 2), pricer_for(setting)
    whole, folded = (simulate(program, pricer, fold, detail=False) for fold in (False, True))
    for one, other in zip(step_times(whole), step_times(folded), strict=True):
        assert abs(one - other) <= 1e-9 * one


def test_kernels_on_other_lanes_have_one_speed_on_all_ranks() -> None:
    """FSDP's copies begin in the instant in which a collective of replicas does, which half of the ranks reach later than the others."""
    plan = {"model": {"base": "llama3-8b", "layers": 1}, "seq_len": 1024, "framework": "torchtitan", "batch": {"micro": 2, "global": 16}}
    setting = bind(plan | {"parallel": {"tp": 2, "dp_shard": 2, "dp_replicate": 2}}, "dgx-h100")
    pricer, places = pricer_for(setting), setting.places
    made = lower(setting.plan, setting.network, setting.framework, setting.topology.kind, 2)
    folded, each = (step_times(simulate(made, pricer, fold and places))[-1] for fold in (True, False))
    assert abs(folded - each) <= 1e-9 * each
