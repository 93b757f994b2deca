"""ZeRO-3's units: what is gathered, what is reduced over whom, and how a pipeline's micro-batches are summed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.predict import predict
from sim.program import Program
from sim.work import MemoryBound
from tests.null.lower.tiny import MIB, QUIET, linear, messages, network, program, show

FSDP = {"dp_shard": 4, "zero": 3}
HALF = QUIET.but(precision={"param_dtype": "bf16", "master": True, "reduce_dtype": "fp32", "grad_dtype": "fp32"})
"""bf16 parameters and gradients of one micro-batch, fp32 shards and sums, as torchtitan runs FSDP2."""


def test_frozen_parameters_are_gathered_and_nothing_of_theirs_is_reduced() -> None:
    base = replace(linear("base", frozen=True), wgrad=())
    p = program({"parallel": FSDP}, network(2, (base, linear("adapter", 1000))))
    assert [m for m in messages(p) if m[0] == "all_gather"] == [("all_gather", "fsdp", 4 * (MIB + 1000))] * 4
    assert [m for m in messages(p) if m[0] == "reduce_scatter"] == [("reduce_scatter", "fsdp", 4000)] * 2


def test_units_without_gradients_reduce_nothing() -> None:
    base = replace(linear("base", frozen=True), wgrad=())
    assert {name for name, _, _ in messages(program({"parallel": FSDP}, network(2, (base,))))} == {"all_gather"}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_replicas_sum_their_experts_gradients_however_they_are_sharded(zero: int) -> None:
    """Two ranks of ep fill the sharding group, so that experts are not split; two replicas hold each."""
    layer = (linear(), linear("expert", 1000, expert=True))
    p = program({"parallel": {"dp_replicate": 2, "dp_shard": 2, "ep": 2, "zero": zero}}, network(1, layer))
    sums = [(name, size) for name, axis, size in messages(p) if axis in ("edp", "dp_replicate") and size == 4000]
    assert sums == [("all_reduce", 4000)]
    assert not [m for m in messages(p) if m[1] == "efsdp"], "nobody to gather them from"


WEIGHTS = 12 * 768**2 + 9 * 768
"""Of a layer's linears in GPT-2, with biases."""


def narrowing(framework: str, precision: str, recompute: str) -> Program:
    """GPT-2 under FSDP."""
    tree = {"model": "gpt2-124m", "framework": framework, "precision": precision, "memory": {"recompute": recompute}, "parallel": FSDP}
    found = predict(tree, "dgx-h100").program
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("framework", "precision", "recompute", "passes"),
    [
        ("llm-foundry", "fp8", "none", ["fwd"]),
        ("llm-foundry", "fp8", "full", ["bwd", "fwd"]),
        ("llm-foundry", "bf16", "none", []),
        ("paxml", "fp8", "selective", ["bwd", "fwd"]),
        ("paxml", "bf16", "selective", []),
        ("maxtext", "fp8", "none", []),
    ],
)
def test_whole_weights_are_made_narrow_where_their_framework_does_so(
    framework: str, precision: str, recompute: str, passes: list[str]
) -> None:
    """TransformerEngine's casts read 16 bits of each weight, and write 8 bits both ways; the embedding and the head stay in 16."""
    found = narrowing(framework, precision, recompute)
    casts = [op for call, op in found.ops(0) if call.step == 1 and op.id.endswith("/L5.quantise")]
    assert sorted(op.id.split("/")[0] for op in casts) == passes
    assert {(work.read, work.written) for op in casts for work in op.works if isinstance(work, MemoryBound)} <= {(2 * WEIGHTS, 2 * WEIGHTS)}
    assert not [op.id for _, op in found.ops(0) if op.id.endswith(("embed.quantise", "head.quantise", "root.quantise"))]


@pytest.mark.parametrize(
    ("framework", "recompute", "forward", "backward"),
    [
        ("torchtitan", "none", 2, 2),
        ("torchtitan", "full", 2, 4),
        ("torchtitan-rowwise", "none", 1, 2),
        ("torchtitan-rowwise", "full", 1, 3),
    ],
)
def test_weights_with_scales_of_their_own_are_cast_in_the_way_that_a_pass_reads_them(
    framework: str, recompute: str, forward: int, backward: int
) -> None:
    """torchao: the largest value and a cast in forward and in backward, which makes those of forward again with what it recomputes."""
    found = narrowing(framework, "fp8", recompute)
    casts = {op.id.split("/")[0]: op.works for call, op in found.ops(0) if call.step == 1 and op.id.endswith("/L5.quantise")}
    assert {phase: len(works) for phase, works in casts.items()} == {"fwd": forward, "bwd": backward}
    assert {(work.read, work.written) for works in casts.values() for work in works if isinstance(work, MemoryBound)} == {
        (2 * WEIGHTS, WEIGHTS), (2 * WEIGHTS, 0)
    }  # fmt: skip


def test_shards_that_are_cast_travel_in_8_bits() -> None:
    narrow, wide = (narrowing(name, "fp8", "none") for name in ("torchtitan-float8-gather", "torchtitan-2025"))
    sizes = [{op.id: op.bytes for _, op in p.ops(0) if op.id.endswith("L5.all_gather")} for p in (narrow, wide)]
    all_ = WEIGHTS + 4 * 768  # of norms
    assert set(sizes[0].values()) == {2 * all_ - WEIGHTS} and set(sizes[1].values()) == {2 * all_}
    assert not [op for _, op in narrow.ops(0) if op.id.endswith("quantise")]


def backward(p: Program) -> list[str]:
    (name,) = [name for name in p.segments if name.startswith("bwd")]
    return show(p.segments[name])


def test_without_overlap_compute_waits_for_each_reduction() -> None:
    line = backward(program({"parallel": FSDP, "comm": {"overlap": False}}))
    assert (
        line.index("comm.fsdp: grad/L1.scattered.record")
        < line.index("compute: grad/L1.here.wait")
        < line.index("compute: wgrad/L0.linear")
    )
    assert "compute: grad/L1.here.wait" not in backward(program({"parallel": FSDP}))


def kernels(p: Program, stage: int, what: str) -> list[MemoryBound]:
    """Of one step on one stage, those that join gradients."""
    return [
        work
        for call, op in p.ops(stage * 2)
        for work in op.works
        if call.step == 1 and op.id.endswith(f".{what}") and op.id.startswith("wgrad/") and isinstance(work, MemoryBound)
    ]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_a_pipelines_micro_batches_are_summed_whole_in_the_dtype_that_travels(schedule: str) -> None:
    """Four micro-batches of one layer a stage: one cast from bf16 to fp32, three adds of bf16 to fp32."""
    plan = {"precision": "bf16", "parallel": {"pp": 2, "dp_shard": 2, "zero": 3, "schedule": schedule}, "batch": {"global": 8}}
    p = program(plan, framework=HALF)
    assert [work.bytes for work in kernels(p, 1, "cast")] == [6 * MIB]
    assert [work.bytes for work in kernels(p, 1, "add")] == [10 * MIB] * 3
    (copied,) = {work.bytes for ops in p.segments.values() for op in ops for work in op.works if op.id == "grad/L0.copy_in"}
    assert copied == 8 * MIB, "fp32 to fp32"


def test_without_a_pipeline_shards_are_summed_as_they_arrive() -> None:
    p = program({"precision": "bf16", "parallel": FSDP, "batch": {"global": 16}}, framework=HALF)
    assert kernels(p, 0, "cast") == kernels(p, 0, "add") == []
