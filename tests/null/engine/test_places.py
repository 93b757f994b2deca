"""Ranks are simulated once only where they sit alike: uneven nodes, nodes that a plan fills in part, stages that share switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.fold import representatives
from sim.engine.run import simulate
from sim.engine.steps import step_times
from sim.lower.step import lower
from sim.mesh import Mesh
from sim.predict import predict_setting
from sim.program import Op, Program, Role
from sim.setting.bind import bind
from sim.setting.folding import places_of
from sim.setting.pricer import pricer_for
from sim.timeline import metrics
from topologies.load import load_topology

MODEL = {"layers": 4, "hidden": 1024, "heads": 16, "vocab": 32000, "ffn": 4096}
CLUSTERS = ("4x dgx-h100", "3x dgx-a100", "4x aws-p4d", "gb200-nvl72", "6x leonardo-a100", "5x gh200", "2x mi300x-x8")


def _by_stage(mesh: Mesh, axes: tuple[str, ...] = ()) -> Program:
    """Stages differ. Nobody does anything, or meets along `axes` once."""
    stages = mesh.places("pp")
    meet = tuple(Op(axis, "collective", "compute", name="all_reduce", bytes=8, group=axis) for axis in axes)
    return Program(
        "", "cuda", mesh, {"meet": meet}, {f"stage{at}": Role({}) for at in set(stages)}, tuple(f"stage{at}" for at in stages), 1
    )


@pytest.mark.no_cover
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(CLUSTERS),
    st.sampled_from([1, 2, 3, 4, 6, 8]),
    st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
    st.sampled_from([1, 2, 4, 8]),
    st.permutations(["pp", "dp_shard", "tp"]),
)
def test_what_is_known_at_once_is_what_refinement_finds(on: str, pp: int, dp: int, tp: int, order: list[str]) -> None:
    topology = load_topology(on)
    mesh = Mesh({"pp": pp, "dp_shard": dp, "tp": tp}, (*order, "dp_replicate", "cp"))
    if mesh.world > topology.gpus:
        return
    places, program = places_of(mesh, topology), _by_stage(mesh)
    assert places is not None
    found = len(set(representatives(program, places._replace(alike=False))))
    assert (found == pp) == places.alike


def test_which_ranks_are_equal_is_found_once_for_a_plan() -> None:
    """It takes seconds on thousands of uneven nodes, and the program, its ops and its simulation all ask."""
    topology, asked = load_topology("4x aws-g5"), list[int]()
    mesh = Mesh({"pp": 2, "dp_shard": 16})
    places = places_of(mesh, topology)
    assert places is not None and places is places_of(Mesh({"pp": 2, "dp_shard": 16}), topology)
    counted = places._replace(kind=asked.append)
    assert representatives(_by_stage(mesh), counted) == representatives(_by_stage(mesh), counted)
    assert len(asked) == mesh.world


def test_ranks_in_the_same_place_of_another_node_are_equal() -> None:
    topology = load_topology("4x aws-g5")
    mesh = Mesh({"pp": 2, "dp_shard": 16})
    places = places_of(mesh, topology)
    assert places is not None and not places.alike
    alone = places._replace(free=None)
    assert representatives(_by_stage(mesh), alone) == [*range(8), *range(8), *range(16, 24), *range(16, 24)]
    assert places_of(Mesh({"pp": 2, "dp_shard": 4}), topology) is None, "one node"


def test_stages_that_share_a_node_are_one_rank_each_where_every_rank_would_be_a_kind_of_its_own() -> None:
    """Nine nodes and a half for a stage: what its ends meet goes through all ranks. (Of 33 data ranks each was simulated, in minutes.)"""
    for data, simulated in ((9, 18), (63, 126), (65, 2)):
        mesh = Mesh({"pp": 2, "dp_replicate": data, "tp": 4})
        places = places_of(mesh, load_topology(f"{data}x dgx-h100"))
        assert places is not None and not places.alike
        assert len(set(representatives(_by_stage(mesh, ("pp", "dp", "tp")), places))) == simulated


@pytest.mark.no_cover
def test_one_rank_for_each_stage_ends_when_all_ranks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    parallel = {"pp": 2, "dp_replicate": 9, "tp": 4, "zero": 1}
    every, (_, whole, _) = steps("9x dgx-h100", parallel, {})
    monkeypatch.setattr("sim.engine.fold._CLASSES", 4)
    few, (folded, *_) = steps("9x dgx-h100", parallel, {}, whole=False)
    assert (every, few) == (18, 2)
    assert folded == pytest.approx(whole, rel=0.01)


def steps(on: str, split: dict[str, Any], more: dict[str, Any], whole: bool = True) -> tuple[int, list[list[float]]]:
    """Simulated ranks, and the seconds of steps folded, (where asked for) not, and by the other engine."""
    ranks = split.get("dp_shard", 1) * split.get("dp_replicate", 1)
    plan = {"model": MODEL, "seq_len": 512, "framework": "megatron-core", "parallel": split, "batch": {"global": 4 * ranks, "micro": 1}}
    setting = bind(plan | more, on)
    program, pricer = lower(setting.plan, setting.network, setting.framework, "cuda", 3), pricer_for(setting)
    found = [
        metrics.step_times(simulate(program, pricer, fold and setting.places, detail=False))
        for fold in ((True, False) if whole else (True,))
    ]
    quick = [step.seconds for step in step_times(program, pricer, setting.places)]
    return len(set(representatives(program, setting.places))), [*found, quick]


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("on", "split", "simulated"),
    [
        ("2x aws-g5", {"pp": 2, "dp_shard": 8}, 4),
        ("4x aws-g5", {"pp": 2, "dp_shard": 16}, 4),
        ("4x aws-g5", {"tp": 2, "dp_shard": 4, "dp_replicate": 4}, 2),
        ("2x aws-g6e", {"pp": 2, "tp": 4, "dp_shard": 2, "zero": 1}, 2),
        ("2x h100-pcie-x8", {"pp": 2, "tp": 4, "dp_shard": 2}, 4),
        ("2x l40s-x8", {"pp": 2, "tp": 8}, 4),
        ("2x h100-pcie-x8", {"dp_shard": 8, "dp_replicate": 2, "zero": 3}, 2),
        ("2x dgx-h100", {"tp": 4, "dp_shard": 3}, 2),
        ("2x dgx-h100", {"tp": 4, "dp_shard": 4}, 1),
        ("2x gcp-a2", {"tp": 8, "dp_shard": 2, "zero": 1}, 2),
        ("2x gcp-a2", {"dp_shard": 4, "dp_replicate": 4, "zero": 3}, 2),
        ("2x gcp-a2", {"dp_shard": 16, "zero": 1}, 1),
        ("4x gb200-nvl72", {"dp_shard": 64, "dp_replicate": 4, "zero": 3}, 64),
        ("4x dgx-a100:6", {"dp_shard": 8, "dp_replicate": 2, "zero": 3}, 16),
        ("3x gb200-nvl72:12", {"tp": 4, "pp": 4, "dp_shard": 2, "zero": 1}, 8),
        ("2x gb200-nvl72:36", {"tp": 2, "pp": 4, "dp_shard": 8, "zero": 1}, 8),
    ],
    ids=str,
)
def test_folded_equals_unfolded(on: str, split: dict[str, Any], simulated: int) -> None:
    more = {"model": MODEL | {"layers": 2}, "batch": {"global": 512, "micro": 1}} if simulated == 64 else {}  # of 256 ranks
    ranks, (folded, whole, quick) = steps(on, split, more)
    assert ranks == simulated
    assert folded == pytest.approx(whole, rel=1e-9)
    assert quick == pytest.approx(whole, rel=2e-3), "condensed"


@pytest.mark.no_cover
def test_one_rank_for_all_is_one_of_those_for_whom_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of groups of 64 on racks of 72, the first is alone on a rack and the next has eight ranks there: the first was 29 % too fast for all."""
    monkeypatch.setattr("sim.engine.fold._CLASSES", 1)
    model = {"layers": 2, "hidden": 4096, "heads": 32, "vocab": 32000, "ffn": 16384}
    simulated, (folded, whole, _) = steps("4x gb200-nvl72", {"dp_shard": 64, "dp_replicate": 4, "zero": 3}, {"model": model})
    assert simulated == 1
    # Alone it does not meet what others send over the NICs that its group's sums take (0.25 %).
    assert folded == pytest.approx(whole, rel=3e-3)


def test_places_are_told_apart_where_a_rank_of_one_is_slow() -> None:
    """Four slots of each socket mirror each other, but with a slow rank in one of them."""
    mesh = Mesh({"dp_shard": 2, "tp": 8})
    places = places_of(mesh, load_topology("2x aws-g5"))
    program = _by_stage(mesh, ("dp", "tp"))
    slow = Program("", "cuda", mesh, program.segments, {**program.roles, "slow": Role({})}, ("slow", *program.role_of[1:]), 1)
    assert places is not None
    assert [len(set(representatives(one, places))) for one in (program, slow)] == [2, 16]


MOE: dict[str, Any] = {"model": {"base": "olmoe-1b-7b", "layers": 2}, "seq_len": 256}


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("on", "split", "more"),
    [
        ("2x a100-x4-nvlink", {"dp_shard": 4, "cp": 2, "ep": 2, "zero": 2, "cp_kind": "all_gather"}, MOE),
        ("2x rtx-4090-x4", {"dp_shard": 4, "cp": 2, "placement": "pp,cp,tp,dp", "cp_kind": "p2p"}, {}),
        ("2x rtx-4090-x4", {"dp_replicate": 2, "pp": 4, "zero": 1, "schedule": "zb-h1"}, {}),
        ("2x rtx-4090-x4", {"pp": 2, "dp_shard": 4, "ep": 2, "zero": 1, "schedule": "gpipe"}, MOE),
        ("4x a100-x4-nvlink", {"dp_replicate": 2, "pp": 4, "schedule": "gpipe"}, {}),
        ("2x aws-p4d", {"dp_replicate": 4, "dp_shard": 4, "zero": 3}, {}),
        ("2x aws-p4d", {"dp_replicate": 4, "tp": 4, "zero": 2, "placement": "cp,dp,pp,tp"}, {}),
        ("2x dgx-h100", {"dp_replicate": 2, "dp_shard": 8, "ep": 4, "zero": 2}, MOE),
    ],
    ids=str,
)
def test_groups_that_share_a_nic_with_others_that_are_not_simulated(on: str, split: dict[str, Any], more: dict[str, Any]) -> None:
    """NCCL chooses for each group as if it were alone; what they all send shares the NIC."""
    ranks, (folded, whole, quick) = steps(on, split, more)
    assert ranks < split.get("dp_shard", 1) * split.get("dp_replicate", 1) * split.get("tp", 1) * split.get("pp", 1) * split.get("cp", 1)
    assert folded == pytest.approx(whole, rel=1e-9)
    assert quick == pytest.approx(whole, rel=5e-3), "condensed"


@pytest.mark.no_cover
@pytest.mark.parametrize("mode", ["sharded", "async"])
def test_the_rank_alone_on_its_switch(mode: str) -> None:
    """Seven of eight: three share the second socket's memory, four the first's."""
    output = {"checkpoint_every": 1, "checkpoint_mode": mode}
    for on in ("gb200-nvl72:8", "dgx-a100"):
        ranks, (folded, whole, _) = steps(on, {"dp_replicate": 7}, {"output": output})
        assert 1 < ranks < 7
        assert folded == pytest.approx(whole, rel=1e-9)


@pytest.mark.no_cover
@pytest.mark.parametrize("placement", ["dp,pp,tp,cp", "tp,cp,dp,pp"])
def test_ranks_that_go_round_uneven_nodes_are_not_alike(placement: str) -> None:
    """The first ranks are on as many nodes then: those of one node tell how its devices are joined."""
    plan = {"model": MODEL, "seq_len": 256, "batch": {"micro": 1, "global": 16}}
    setting = bind(
        plan | {"parallel": {"dp_replicate": 4, "tp": 4, "pp": 4, "placement": placement}}, "8x a100-pcie-x8", ("order=scatter",)
    )
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    folded, whole = (metrics.step_time(simulate(program, pricer_for(setting), fold and setting.places)) for fold in (True, False))
    assert folded == pytest.approx(whole, rel=1e-9)


def test_ranks_that_share_a_nic_are_fused_as_they_are_simulated_op_by_op() -> None:
    """Each rank's tensor-parallel group goes over the one NIC of its node, which those of the other simulated ranks use as well."""
    parallel = {"dp_replicate": 4, "dp_shard": 2, "tp": 2, "zero": 0, "placement": "pp,dp,tp,cp"}
    model = {"family": "decoder", "name": "t", "layers": 2, "hidden": 512, "heads": 8, "vocab": 4000}
    plan = {
        "model": model,
        "framework": "pytorch",
        "compile": True,
        "parallel": parallel,
        "seq_len": 1024,
        "batch": {"micro": 1, "global": 8},
    }
    setting = bind(plan, "2x aws-g5")
    op_by_op, fused = (predict_setting(setting, steps=2, detail=detail).step_time_s for detail in (True, False))
    assert fused == pytest.approx(op_by_op, rel=1e-9)


@pytest.mark.no_cover
def test_gpus_that_share_a_nic_are_not_those_that_have_one(tmp_path: Path) -> None:
    """Seven NICs for eight GPUs behind NVSwitches: the groups of the last two take the same one."""
    below = [f'"gpu{at}", "nic{at}"' for at in range(7)] + ['"gpu7"']
    tree = "".join(f"sw{at} = [{what}]\n" for at, what in enumerate(below))
    sockets = 'socket0 = ["sw0", "sw1", "sw2", "sw3"]\nsocket1 = ["sw4", "sw5", "sw6", "sw7"]\n'
    machine = tmp_path / "seven.toml"
    machine.write_text(f'base = "dgx-h100"\nname = "seven"\n[tree]\n{sockets}{tree}[fabric]\nrails = 1\n')
    ranks, (folded, whole, _) = steps(f"2x {machine}", {"tp": 8, "dp_shard": 2, "zero": 3}, {})
    assert 1 < ranks < 8
    assert folded == pytest.approx(whole, rel=1e-9)


def test_groups_inside_one_node_are_cut_by_no_other() -> None:
    """Sixteen do not divide a rack of 72: on one of them nobody reaches the next, on 40 GPUs each of two some do."""
    mesh = Mesh({"dp_shard": 4, "cp": 16})
    near, far = (places_of(mesh, load_topology(on)) for on in ("gb200-nvl72", "2x gb200-nvl72:40"))
    assert near is not None and near.alike and far is not None and not far.alike


@pytest.mark.no_cover
@pytest.mark.parametrize("slow", ["slow=r5:0.8", "slow=n1:0.9"])
def test_a_slow_rank_is_a_kind_of_its_own_among_equal_ones(slow: str) -> None:
    plan: dict[str, Any] = {"model": "gpt2-124m", "batch": {"micro": 8}, "parallel": {"dp_shard": 16, "zero": 1}}
    setting = bind(plan, "2x dgx-h100", (slow,))
    whole = predict_setting(msgspec.structs.replace(setting, fold=False))
    assert predict_setting(setting).step_time_s == pytest.approx(whole.step_time_s, rel=1e-12)
    assert whole.step_time_s > 1.05 * predict_setting(bind(plan, "2x dgx-h100")).step_time_s
    mesh = Mesh({"dp_shard": 32, "tp": 8, "pp": 8})
    assert (
        len(set(representatives(_by_stage(mesh, ("tp", "dp_shard")), places_of(mesh, load_topology("256x dgx-h100", (slow,))) or False)))
        < 256
    )


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("on", "edits", "split", "simulated"),
    [
        ("2x dgx-h100 + 2x dgx-a100", (), {"dp_shard": 32, "zero": 1}, 2),
        ("3x dgx-a100 + 1x dgx-h100", (), {"tp": 4, "pp": 2, "dp_shard": 4}, 4),
        ("2x dgx-h100 + 2x rtx-4090-x8", (), {"dp_shard": 8, "dp_replicate": 4, "zero": 3}, 16),
        ("2x dgx-h100 + 2x dgx-a100", (), {"tp": 2, "dp_shard": 16, "ep": 8, "placement": "cp,pp,dp,tp"}, 4),
        ("4x dgx-h100", ("fail=nic:n0/nic1",), {"tp": 2, "dp_shard": 16, "zero": 1}, 12),
    ],
    ids=str,
)
def test_ranks_of_unequal_nodes_are_kinds_of_their_own(on: str, edits: tuple[str, ...], split: dict[str, Any], simulated: int) -> None:
    """Each was simulated: two hundred seconds for 16 nodes of two machines."""
    ranks = split.get("dp_shard", 1) * split.get("dp_replicate", 1)
    plan = {"model": MODEL, "seq_len": 512, "framework": "megatron-core", "parallel": split, "batch": {"global": 4 * ranks, "micro": 1}}
    if "ep" in split:  # large enough messages: two ranks stood for all of two machines, 6 % too fast
        experts = {"experts": 16, "top_k": 4, "ffn": 2048}
        plan |= {"model": {**MODEL, "hidden": 4096, "heads": 32, "ffn": 8192, "moe": experts}, "seq_len": 4096}
    setting = bind(plan, on, edits)
    program, pricer = lower(setting.plan, setting.network, setting.framework, "cuda", 3), pricer_for(setting)
    folded, whole = (metrics.step_times(simulate(program, pricer, fold and setting.places, detail=False)) for fold in (True, False))
    assert folded == pytest.approx(whole, rel=1e-9)
    assert len(set(representatives(program, setting.places))) == simulated


@pytest.mark.parametrize(
    ("on", "edits"),
    [
        ("2x dgx-h100:4 + 2x dgx-a100", ()),
        ("64x dgx-h100 + 64x dgx-a100", ("oversubscription=2",)),
        ("2x dgx-h100 + 2x dgx-a100", ("order=scatter",)),
    ],
)
def test_nodes_of_other_sizes_or_with_few_cables_are_not_folded(on: str, edits: tuple[str, ...]) -> None:
    assert places_of(Mesh({"dp_shard": 16}), load_topology(on, edits)) is None
