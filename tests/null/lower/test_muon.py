"""Muon: which matrices a rank makes orthogonal, by which kernels, and what travels for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.files.planfile import load_plan
from sim.framework.framework import Framework
from sim.lower.optimizer.muon import newton_schulz, workspace
from sim.lower.optimizer.owned import cost, heaviest, states
from sim.memory.report import memory_of
from sim.model import Shape, describe
from sim.model.load import load_model, models
from sim.model.parts import Part
from sim.predict import predict
from sim.program import Op, Program
from sim.setting.bind import bind, usual_length
from sim.work import Gemm, MemoryBound
from tests.null.lower.tiny import QUIET, linear, messages, network, norm, program
from topologies.errors import Refused

WIDE = (1024, 256)
PIECE = 1024 * 256
MATRIX = linear(elements=PIECE, matrices=(WIDE,))
NET = network(2, (MATRIX, norm()))


def muon(parallel: dict[str, Any], framework: Framework = QUIET, **more: Any) -> Program:
    return program({"optimizer": {"name": "muon"}, "parallel": parallel, **more}, NET, framework)


def ops(p: Program) -> dict[str, Op]:
    return {op.id: op for op in p.segments["update"]}


def products(op: Op) -> list[Gemm]:
    return [work for work in op.works if isinstance(work, Gemm)]


def test_five_iterations_on_the_shorter_side() -> None:
    """Jordan 2024: each takes 2 n^2 m + n^3 multiply-adds for n <= m."""
    short, long = 256, 1024
    found = [work for work in newton_schulz(WIDE) if isinstance(work, Gemm)]
    assert len(found) == 15 and {work.dtype for work in found} == {"bf16"}
    assert sum(work.flops for work in found) == 2 * 5 * (2 * short * short * long + short**3) == 2 * 5 * cost(WIDE)
    assert newton_schulz((long, short)) == newton_schulz((short, long))


def test_matrices_are_made_orthogonal_and_the_rest_is_left_to_adamw() -> None:
    found = ops(muon({}))
    assert len(products(found["optimizer/muon"])) == 2 * 15
    (rest,) = found["optimizer/step"].works
    assert isinstance(rest, MemoryBound) and rest.what == "adamw" and rest.bytes == 28 * 2 * 16, "two norms of 8 + 8"


def test_only_what_is_no_bf16_is_cast_to_it() -> None:
    """.bfloat16() of torch/optim/_muon.py: of bf16 parameters a kernel for each matrix that nobody launches."""
    kinds = [
        Counter(w.what for w in ops(muon({}, framework, precision="bf16"))["optimizer/muon"].works if isinstance(w, MemoryBound))["cast"]
        for framework in (QUIET, QUIET.but(precision={"param_dtype": "bf16", "grad_dtype": "bf16"}))
    ]
    assert kinds == [2, 0]


def test_an_owner_updates_whole_matrices_and_broadcasts_them() -> None:
    p = muon({"dp_shard": 2, "zero": 1})
    assert len(products(ops(p)["optimizer/muon"])) == 15, "one of two"
    names = [name for name, _, _ in messages(p)]
    assert names.count("broadcast") == 2 and "all_reduce" in names and not {"reduce_scatter", "all_gather"} & set(names)


def test_pieces_go_to_their_owner_and_back() -> None:
    p = muon({"dp_shard": 2, "zero": 3})
    line = [op.id for op in p.segments["update"] if op.kind in ("compute", "collective")]
    assert line == [
        "optimizer/muon.momentum", "optimizer/muon.fsdp.gather", "optimizer/muon", "optimizer/muon.fsdp.scatter", "optimizer/muon.update", "optimizer/step",
    ]  # fmt: skip
    assert len(products(ops(p)["optimizer/muon"])) == 15
    exchanged = [size for name, axis, size in messages(p) if name == "all_to_all" and axis == "fsdp"]
    assert exchanged == [2 * PIECE, 2 * PIECE], "half of two matrices in bf16, both ways"


def test_experts_that_nobody_shares_stay_where_they_are() -> None:
    """ep = dp_shard: their momenta and updates are passes like all others', and nothing of them travels."""
    expert = linear(name="experts", elements=PIECE, matrices=(WIDE,), expert=True)
    p = program(
        {"optimizer": {"name": "muon"}, "parallel": {"dp_shard": 2, "zero": 3, "ep": 2}}, network(2, (MATRIX, expert, norm())), QUIET
    )
    found = ops(p)
    assert len(products(found["optimizer/muon"])) == (1 + 2) * 15, "one dense matrix of two, and both experts'"
    moved = 2 * PIECE // 2 + 2 * PIECE
    assert [work.bytes for work in found["optimizer/muon.momentum"].works] == [12 * moved, 12 * moved, 6 * moved]
    assert [(axis, size) for name, axis, size in messages(p) if name == "all_to_all"] == [("fsdp", 2 * PIECE)] * 2


@given(
    st.lists(st.tuples(st.integers(1, 4096), st.integers(1, 4096)), min_size=1, max_size=30).map(Counter),
    st.integers(1, 40),
)
def test_the_rank_with_most_work_is_within_what_greedy_dealing_promises(pile: Counter[tuple[int, int]], ways: int) -> None:
    """Graham 1969: the longest pile is at most the mean of the others plus one item; and nobody can do with less than the mean or the largest."""
    load, total, largest = (sum(cost(m) * n for m, n in c.items()) for c in (heaviest(pile, ways), pile, Counter([max(pile, key=cost)])))
    assert max(total / ways, largest) * (1 - 1e-9) <= load <= (total / ways + largest) * (1 + 1e-9)
    assert not heaviest(pile, ways) - pile


def test_one_state_of_a_matrix_and_two_of_all_else() -> None:
    part = Part(name="p", tensors=(PIECE, 1024), matrices=(WIDE,))
    assert states("muon", part.params, part.in_matrices) == PIECE + 2 * 1024
    assert states("adamw", part.params, part.in_matrices) == 2 * (PIECE + 1024)


def test_memory_holds_one_state_of_the_matrices() -> None:
    by = {}
    for name in ("adamw", "muon"):
        split: dict[str, Any] = {"optimizer": {"name": name}, "parallel": {"dp_shard": 8, "zero": 1}}
        plan = load_plan({"model": "llama3-8b", "seq_len": 8192, "framework": "megatron-core", **split})
        system = bind(plan, "dgx-h100")
        by[name] = memory_of(plan, system.network, system.framework)
    ends = 2 * 128256 * 4096
    saved = by["adamw"].optimizer - by["muon"].optimizer
    assert saved == pytest.approx(4 * (8.03e9 - ends) / 8, rel=0.01)
    layer = [part for _, block in system.network.blocks for part in block.parts]
    assert workspace(layer) == 4 * 28672 * 4096 + 4 * (28672 * 4096 + 4096**2)


@pytest.mark.parametrize("name", models())
def test_matrices_are_tensors_of_layers(name: str) -> None:
    model = load_model(name)
    net = describe(model, Shape(micro=1, seq=usual_length(model)), QUIET)
    for _, block in net.blocks:
        for part in block.parts:
            assert not Counter(a * b for a, b in part.matrices) - Counter(part.tensors), part.name
            assert block.kind not in ("embed", "head") or not part.matrices


def test_most_of_a_decoder_is_matrices() -> None:
    net = describe(load_model("kimi-k2"), Shape(micro=1, seq=2048), QUIET)
    inside = sum(part.in_matrices for _, block in net.blocks for part in block.parts)
    ends = 2 * 163840 * 7168
    assert inside == pytest.approx(net.parameters - ends, rel=1e-3)


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": {"name": "muon", "on": "cpu"}},
        {"optimizer": {"name": "muon"}, "memory": {"offload": "optimizer"}},
        {"optimizer": {"name": "muon"}, "update": {"aggregate": "cpu"}, "parallel": {"dp_replicate": 2}},
        {"optimizer": {"name": "muon"}, "update": {"mode": "async"}, "parallel": {"dp_replicate": 2}},
    ],
)
def test_hosts_do_not_orthogonalize(more: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=r"muon.*adamw"):
        program(more, NET)


def test_a_model_without_matrices_is_refused() -> None:
    with pytest.raises(Refused, match="capture it again"):
        program({"optimizer": {"name": "muon"}}, network(1))
    assert program({"optimizer": {"name": "muon"}, "task": "forward"}, network(1))


@pytest.mark.no_cover
def test_a_wider_matrix_costs_more_than_adamw_and_less_when_shared() -> None:
    def step(name: str, zero: int) -> float:
        split = {"dp_shard": 8, "zero": zero} if zero else {"dp_replicate": 8}
        plan = {"model": "llama3-8b", "seq_len": 8192, "framework": "megatron-core", "optimizer": {"name": name}, "parallel": split}
        return predict(load_plan(plan), "dgx-h100").breakdown.optimizer_s

    alone, shared = step("muon", 0) - step("adamw", 0), step("muon", 1) - step("adamw", 1)
    # 32 layers of 6144, 4096, 28672 x 4096 and 4096 x 14336 at 600 to 750 TFLOP/s
    layer = sum(cost(m) for m in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)))
    assert 32 * 10 * layer / 800e12 < alone < 32 * 10 * layer / 450e12
    assert 0.7 < alone / (8 * shared) < 1.1


def test_flat_dtensor_frameworks_take_it_too() -> None:
    found = ops(
        muon(
            {"dp_shard": 2, "zero": 3},
            QUIET.but(host="python", tensor_parallel={"style": "dtensor"}, optimizer={"implementation": "for-loop"}),
        )
    )
    assert "optimizer/tensors.host" in found and "optimizer/muon" in found
