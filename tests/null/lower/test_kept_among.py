"""Gathered parameters that a few neighbours keep among them from forward to backward (`parallel.reshard_after_forward = 2`)."""

from __future__ import annotations

from typing import Any

import pytest

from sim.engine.run import simulate
from sim.files.text import parse_program, show_program
from sim.mesh import Mesh
from sim.predict import predict
from sim.program import Program
from tests.null.lower.tiny import MIB, QUIET, Constant, messages, network, program
from topologies.errors import BadInput, Refused

FSDP = QUIET.but(data_parallel={"keeps_among": True})
LLAMA: dict[str, Any] = {"model": {"base": "llama3-8b", "layers": 4}, "seq_len": 1024, "framework": "torchtitan", "batch": {"global": 32}}


def _program(again: bool | int, shards: int = 4, layers: int = 3, **more: Any) -> Program:
    return program({"parallel": {"dp_shard": shards, "zero": 3, "reshard_after_forward": again}, **more}, network(layers), FSDP)


def test_neighbours_in_the_sharding_group() -> None:
    mesh = Mesh({"dp_shard": 4, "cp": 2, "tp": 2}, inner=4)
    assert mesh.size("fsdp_inner") == 4
    assert mesh.group("fsdp", 0) == (0, 2, 4, 6, 8, 10, 12, 14)
    assert mesh.groups("fsdp_inner") == ((0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15))


def test_forward_gathers_from_all_and_backward_from_neighbours() -> None:
    gathered = [message for message in messages(_program(2)) if message[0] == "all_gather"]
    assert gathered == [("all_gather", "fsdp", 4 * MIB)] * 3 + [("all_gather", "fsdp_inner", 4 * MIB)] * 3
    reduced = [message for message in messages(_program(2)) if message[0] == "reduce_scatter"]
    assert reduced == [("reduce_scatter", "fsdp", 4 * MIB)] * 3


def test_each_neighbour_copies_its_part_before_the_whole_is_freed() -> None:
    p = _program(2)
    kept = [op for op in p.segments["fwd"] if op.id.endswith(".keep")]
    assert [(op.id, op.alloc, [work.written for work in op.works]) for op in kept] == [  # type: ignore[union-attr]
        (f"fwd/L{i}.keep", 2 * MIB, [2 * MIB]) for i in range(3)
    ]
    ids = [op.id for op in p.segments["fwd"]]
    assert all(ids.index(f"fwd/L{i}.keep") + 1 == ids.index(f"fwd/L{i}.reshard") for i in range(3))
    back = [op for call, op in p.ops(0) if call.step == 0 and op.id.startswith("bwd/")]
    copied = [op for op in back if op.id.endswith(".copy_in") and op.lane == "comm.fsdp_inner"]
    assert [(work.read, work.written) for op in copied for work in op.works] == [(2 * MIB, 2 * MIB)] * 3  # type: ignore[union-attr]
    waits = [op for op in p.segments["fwd"] if op.kind == "wait" and op.event.endswith(".reshard")]
    assert [(op.lane, op.event) for op in waits] == [("comm.fsdp_inner", f"fwd/L{i}.reshard") for i in range(3)]


def test_what_is_kept_is_given_back() -> None:
    lines = {again: simulate(_program(again, layers=6), Constant()).memory[0] for again in (True, 2, 4, False)}
    assert all(line[-1][1] == line[0][1] for line in lines.values())
    freed, two, same, whole = (max(used for _, used in line) - line[0][1] for line in lines.values())
    assert freed == same, "all neighbours there are is what true means"
    assert two == freed + 6 * 4 * MIB // 2 - 4 * MIB // 2, "half of each layer but the one that backward has gathered"
    assert freed < two < whole


def test_further_micro_batches_gather_from_all_again() -> None:
    p = _program(2, batch={"global": 8})
    axes = [group for name, group, _ in messages(p) if name == "all_gather"]
    assert axes == (["fsdp"] * 3 + ["fsdp_inner"] * 3) * 2


def test_a_program_says_it_in_its_text() -> None:
    p = _program(2)
    assert "inner=2" in show_program(p) and parse_program(show_program(p)).mesh == p.mesh
    assert "inner" not in show_program(_program(True))


def test_slow_networks_gain_and_memory_pays() -> None:
    def found(again: bool | int) -> Any:
        return predict(LLAMA | {"parallel": {"dp_shard": 32, "zero": 3, "reshard_after_forward": again}}, "4x aws-p4d", detail=False)

    freed, near, whole = found(True), found(8), found(False)
    assert whole.step_time_s <= near.step_time_s < freed.step_time_s
    assert freed.memory.gathered < near.memory.gathered < whole.memory.gathered
    layer = 2 * (4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336 + 2 * 4096)  # bf16: q, k, v, o; gate, up, down; norms
    embed = 2 * 128256 * 4096
    assert near.memory.gathered - freed.memory.gathered == pytest.approx((4 * layer + embed) / 8, rel=1e-6)


def test_folded_or_whole_the_step_is_as_long() -> None:
    plan = LLAMA | {"parallel": {"dp_shard": 16, "cp": 1, "zero": 3, "reshard_after_forward": 4}, "batch": {"global": 16}}
    folded, whole = predict(plan, "2x dgx-h100"), predict(plan, "2x dgx-h100", detail=False)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parallel": {"dp_shard": 8, "zero": 3, "reshard_after_forward": 3}}, r"must divide dp_shard x cp = 8. Use 2, 4 or true"),
        ({"parallel": {"dp_shard": 2, "zero": 3, "reshard_after_forward": 4}}, r"must divide dp_shard x cp = 2. Use true"),
        ({"parallel": {"dp_shard": 8, "zero": 3, "reshard_after_forward": 1}}, r"true or false or a whole number from 2"),
    ],
)
def test_groups_that_cannot_be_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        predict(LLAMA | change, "4x dgx-h100")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"framework": "llm-foundry"}, 'what FSDP2 and DeepSpeed do. Use reshard_after_forward = true, or framework = "torchtitan"'),
        ({"parallel": {"tp": 2}}, "FSDP2 does not keep a part of what tensor parallelism splits"),
        ({"memory": {"offload": "parameters"}}, "Leave one of them out"),
        ({"framework": "torchtitan-float8-gather", "precision": "fp8"}, "shards that travel in 8 bits are not kept so"),
        ({"model": {"base": "qwen3-30b-a3b", "layers": 2}, "parallel": {"ep": 4}}, "experts in groups of their own"),
    ],
)
def test_what_frameworks_do_not_do_is_refused(change: dict[str, Any], says: str) -> None:
    parallel = {"dp_shard": 8, "zero": 3, "reshard_after_forward": 4} | change.get("parallel", {})
    with pytest.raises(Refused, match=says):
        predict(LLAMA | change | {"parallel": parallel}, "4x dgx-h100")
