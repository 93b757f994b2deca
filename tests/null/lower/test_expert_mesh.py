"""Experts have a mesh of their own on the ranks of a stage: which ranks share them, and who sums their gradients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.files.planfile import load_plan
from sim.files.text import parse_program, show_program
from sim.lower.step import lower
from sim.mesh import AXES, Mesh
from sim.rules import mesh_of
from sim.setting.bind import bind
from sim.work import BYTES, MemoryBound
from topologies.errors import BadInput, Refused


def _mesh(ep: int, etp: int, **sizes: int) -> Mesh:
    return Mesh(dict.fromkeys(AXES, 1) | sizes, AXES, ep, etp)


def test_whole_experts_lie_on_neighbours_across_tensor_parallel_ranks() -> None:
    """Two ranks of tp, eight of dp, ep 8: Megatron puts an expert group on eight neighbours (one node), and sums over the two groups."""
    mesh = _mesh(8, 1, dp_shard=8, tp=2)
    assert mesh.groups("ep") == (tuple(range(8)), tuple(range(8, 16)))
    assert mesh.group("edp", 3) == mesh.group("efsdp", 3) == (3, 11)
    assert (mesh.size("edp"), mesh.size("efsdp")) == (2, 2)


def test_experts_that_all_of_tp_split_lie_along_data_parallelism() -> None:
    mesh = _mesh(8, 0, dp_shard=8, tp=2)
    assert mesh.groups("ep") == (tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
    assert mesh.size("edp") == 1


def test_experts_that_half_of_tp_splits() -> None:
    """tp 4, etp 2: ranks 0 and 2 hold the first halves of different experts."""
    mesh = _mesh(4, 2, dp_shard=4, tp=4)
    assert mesh.group("ep", 0) == (0, 2, 4, 6)
    assert mesh.group("ep", 1) == (1, 3, 5, 7)
    assert mesh.group("edp", 0) == (0, 8)


def test_expert_groups_may_be_wider_than_data_parallelism() -> None:
    assert _mesh(16, 1, dp_shard=8, tp=2).group("ep", 5) == tuple(range(16))
    with pytest.raises(BadInput, match=r"ep = 16 must divide dp_replicate x dp_shard x cp = 8"):
        _mesh(16, 0, dp_shard=8, tp=2)
    with pytest.raises(BadInput, match=r"etp = 3 must divide tp = 4"):
        _mesh(2, 3, dp_shard=2, tp=4)


@pytest.mark.no_cover
@given(st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.data())
def test_expert_groups_part_the_ranks(replicate: int, shard: int, cp: int, tp: int, data: st.DataObject) -> None:
    """Groups of each kind hold every rank once; two ranks that sum an expert's gradients are never in one expert group."""
    etp = data.draw(st.sampled_from([n for n in (1, 2, 4) if tp % n == 0]))
    inside = shard * cp * tp // etp
    ep = data.draw(st.sampled_from([n for n in (1, 2, 4, 8) if inside % n == 0]))
    mesh = _mesh(ep, etp, dp_replicate=replicate, dp_shard=shard, cp=cp, tp=tp, pp=2)
    for axis in ("ep", "edp", "efsdp"):
        groups = mesh.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.world))
        assert {len(group) for group in groups} == {mesh.size(axis)}
    for rank in range(mesh.world):
        assert set(mesh.group("ep", rank)) & set(mesh.group("edp", rank)) == {rank}
        assert set(mesh.group("efsdp", rank)) <= set(mesh.group("edp", rank))


PLAN = {
    "model": "mixtral-8x7b",
    "framework": "megatron-core",
    "parallel": {"dp_shard": 8, "tp": 2, "ep": 8, "zero": 1},
    "batch": {"global": 16, "micro": 1},
}


def test_expert_gradients_are_summed_over_the_ranks_of_tp_that_hold_copies() -> None:
    setting = bind(PLAN, "2x dgx-h100")
    made = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    found = {(op.name, made.mesh.size(op.group)) for ops in made.segments.values() for op in ops if op.group == "efsdp"}
    assert found == {("reduce_scatter", 2), ("all_gather", 2)}
    assert parse_program(show_program(made)).mesh == made.mesh == mesh_of(setting.plan)


@pytest.mark.parametrize("framework", ["megatron-lm", "pytorch"])
@pytest.mark.parametrize("split", [{"ep": 1, "tp": 8}, {"ep": 4, "tp": 8}, {"ep": 1, "tp": 2, "dp_replicate": 4}])
def test_whole_experts_on_ranks_of_tp_are_summed_there_too(split: dict[str, int], framework: str) -> None:
    """Also without expert parallelism, and without data parallelism: each rank of tp gives its experts other tokens."""
    tree = {"model": {"base": "mixtral-8x7b", "layers": 2}, "framework": framework, "parallel": {**split, "etp": 1}}
    setting = bind(tree, "dgx-h100")
    made = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    experts = sum(part.params for _, block in setting.network.blocks for part in block.parts if part.expert)
    summed = sum(op.bytes for call, op in made.ops(0) if call.step == 1 and op.group == "edp" and op.name == "all_reduce")
    assert summed == experts * BYTES[setting.framework.precision.reduce_dtype]
    assert made.mesh.size("edp") == 8 // split["ep"]


def test_experts_that_tp_splits_are_summed_by_nobody_else() -> None:
    setting = bind(PLAN | {"parallel": {**PLAN["parallel"], "etp": 2}}, "2x dgx-h100")  # type: ignore[dict-item]
    made = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    assert not [op for ops in made.segments.values() for op in ops if op.group in ("efsdp", "edp") and made.mesh.size(op.group) > 1]


@pytest.mark.parametrize("ep", [1, 4])
def test_megatrons_split_experts_gather_what_has_come_to_them(ep: int) -> None:
    """Two experts a token: twice the bytes over tp of what torchtitan gathers, and as many over ep, of rows of the rank's own tokens."""
    sizes = {"dp_shard": 4, "tp": 2, "ep": ep, "etp": 2, "zero": 1}
    tree = {"model": {"base": "mixtral-8x7b", "layers": 1}, "seq_len": 4096, "batch": {"micro": 1}, "parallel": sizes}
    found = {}
    for framework in ("megatron-lm", "torchtitan"):
        setting = bind({**tree, "framework": framework, "parallel": sizes}, "dgx-h100")
        made = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
        ops = [op for call, op in made.ops(0) if call.step == 1 and ".moe." in op.id and op.kind == "collective"]
        found[framework] = {
            name: sorted(op.bytes for op in ops if (op.group, op.name) == name) for name in {(op.group, op.name) for op in ops}
        }
    own, whole = 2 * 4096 * 4096, 2 * 2 * 4096 * 4096
    mine, theirs = found["megatron-lm"], found["torchtitan"]
    assert theirs[("tp", "all_gather")] == theirs[("tp", "reduce_scatter")] == [own] * 2
    assert mine[("tp", "reduce_scatter")][-2:] == [whole] * 2 and mine[("tp", "all_gather")][-2:] == [whole] * 2
    assert (mine.get(("ep", "all_to_all"), [])[-4:] == [whole // 2] * 4) == (ep > 1)
    # Whose tokens are gathered first, sends all the rows that it has permuted.
    assert (theirs.get(("ep", "all_to_all"), [])[-4:] == [whole] * 4) == (ep > 1)
    weights = 4 * 2 * 4096  # of two experts for each token that the two ranks of tp have gathered
    assert mine[("tp", "all_gather")].count(weights) == 1 == mine[("tp", "reduce_scatter")].count(weights)


def test_megatrons_experts_sort_rows_again_whether_or_not_they_travelled() -> None:
    kinds = {}
    for framework in ("megatron-lm", "pytorch"):
        tree = {"model": {"base": "mixtral-8x7b", "layers": 1}, "framework": framework, "parallel": {"dp_replicate": 8}}
        blocks = bind(tree, "dgx-h100").network.blocks
        works = [work for _, block in blocks for part in block.parts if part.name in ("moe.up", "moe.down") for work in part.forward]
        kinds[framework] = [work.what for work in works if isinstance(work, MemoryBound)].count("permute")
    assert kinds == {"megatron-lm": 2, "pytorch": 0}


def test_tokens_that_all_ranks_of_tp_hold_go_to_no_whole_experts() -> None:
    """Each rank would send the same tokens: twice the experts' FLOPs."""
    told = r"etp = 1 of tp = 2 ranks with sequence_parallel = false.* Set sequence_parallel = true or etp = 2"
    tree = PLAN | {"parallel": {**PLAN["parallel"], "sequence_parallel": False}}  # type: ignore[dict-item]
    with pytest.raises(Refused, match=told):
        bind(tree, "2x dgx-h100")
    assert bind(load_plan(tree, ("parallel.etp=2",)), "2x dgx-h100").network.parameters
