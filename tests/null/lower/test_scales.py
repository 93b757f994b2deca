"""Delayed scales of 8 bits that all ranks of a pipeline stage agree on: how often, among whom, and what it costs as ranks grow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sim.mesh import Mesh
from sim.plan import Plan
from sim.predict import predict
from sim.program import Program

GPT = {
    "name": "gpt", "family": "decoder", "layers": 8, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 51200, "activation": "gelu",
    "norm": "layernorm", "position": "learned",
}  # fmt: skip


def plan(framework: str = "nemo", precision: str = "fp8", **changes: Any) -> Plan:
    tree = {
        "model": GPT, "framework": framework, "seq_len": 1024, "precision": precision, "batch": {"global": 16, "micro": 1},
        "parallel": {"tp": 2, "pp": 2, "virtual_stages": 2, "schedule": "interleaved", "dp_shard": 4, "zero": 1, "sequence_parallel": True},
    }  # fmt: skip
    return msgspec.convert(tree | changes, Plan)


def agreements(program: Program, rank: int) -> list[tuple[str, str]]:
    """(id, group) of each of a rank's messages about scales in one step."""
    ops = [op for call, op in program.ops(rank) if call.step == 1 and op.cls == "comm.scales"]
    return [(op.id, op.group) for op in ops]


def test_each_chunks_pass_ends_with_one_message_among_its_stage() -> None:
    found = predict(plan(), "2x dgx-h100").program
    assert found is not None
    for rank in (0, found.world - 1):
        passes = agreements(found, rank)
        assert len(passes) == 2 * 2 * 4, "forward and backward of two chunks, four micro-batches"
        assert {group for _, group in passes} == {"stage"}
        assert {id for id, _ in passes} == {"scales/fwd.all_reduce", "scales/bwd.all_reduce"}


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("framework", "precision"), [("nemo", "bf16"), ("megatron-bridge", "fp8"), ("mlperf-nvidia", "fp8"), ("nemo", "mxfp8")]
)
def test_who_has_no_delayed_scales_or_keeps_them_alone_sends_nothing(framework: str, precision: str) -> None:
    found = predict(plan(framework, precision), "2x dgx-b200").program
    assert found is not None and not agreements(found, 0)


def test_one_rank_of_a_stage_agrees_with_itself() -> None:
    alone = plan(batch={"global": 2, "micro": 1}, parallel={"pp": 2})
    found = predict(alone, "dgx-h100").program
    assert found is not None and not agreements(found, 0)


def test_a_stage_is_all_ranks_of_one_place_in_the_pipeline() -> None:
    mesh = Mesh({"pp": 2, "dp_shard": 2, "cp": 2, "tp": 2})
    assert mesh.size("stage") == 8
    assert mesh.group("stage", 3) == tuple(range(8)) and mesh.group("stage", 12) == tuple(range(8, 16))
    assert mesh.groups("stage") == (tuple(range(8)), tuple(range(8, 16)))


@pytest.mark.no_cover
def test_the_more_ranks_the_longer_they_take_to_agree() -> None:
    """A tree's latency grows with its depth; alone, a rank pays for none of it."""

    def cost(nodes: int) -> float:
        ranks = {"batch": {"global": 16 * nodes // 2, "micro": 1}, "parallel": {"tp": 2, "pp": 2, "dp_shard": 2 * nodes, "zero": 1}}
        spent = predict(plan(**ranks), f"{nodes}x dgx-h100").step_time_s
        return spent - predict(plan("nemo-alone", **ranks), f"{nodes}x dgx-h100").step_time_s

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.framework.chosen.load_framework", _with_alone())
        assert cost(32) > cost(4) > 0


def _with_alone() -> Any:
    from sim.framework.framework import load_framework

    def load(name: str) -> Any:
        if name != "nemo-alone":
            return load_framework(name)
        return load_framework("nemo").but(linears={"fp8_scaling": "delayed"})

    return load
