"""Weights of 8-bit linears: made of 16 bits once a step, and gathered in 8 where they are parameters of 8 bits."""

from __future__ import annotations

from typing import Any

import pytest

from sim.lower.step import lower
from sim.program import Op
from sim.setting.bind import bind
from sim.work import MemoryBound

LAYERS, HIDDEN, FFN = 4, 1024, 4096
GPT = {
    "name": "gpt", "family": "decoder", "layers": LAYERS, "hidden": HIDDEN, "heads": 8, "ffn": FFN, "vocab": 8192, "activation": "gelu",
    "norm": "layernorm", "position": "learned",
}  # fmt: skip
IN_LAYER = HIDDEN * (3 * HIDDEN + HIDDEN + 2 * FFN)
MICROBATCHES = 4


def step(framework: str, precision: str, **changes: Any) -> list[Op]:
    """The first rank's ops of the second step."""
    tree = {
        "model": GPT, "framework": framework, "precision": precision, "seq_len": 1024, "batch": {"global": 8 * MICROBATCHES, "micro": 1},
        "parallel": {"dp_shard": 8, "zero": 1},
    } | changes  # fmt: skip
    setting = bind(tree, "dgx-b200")
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 2)
    return [op for call, op in program.ops(0) if call.step == 1]


def narrowings(ops: list[Op]) -> list[Op]:
    return [op for op in ops if op.id.endswith(".narrow")]


def moved(ops: list[Op]) -> int:
    return sum(work.read + work.written for op in ops for work in op.works if isinstance(work, MemoryBound) and work.repeat == 1)


@pytest.mark.parametrize(("framework", "precision"), [("megatron-core", "fp8"), ("megatron-core", "mxfp8"), ("megatron-bridge", "mxfp8")])
def test_weights_are_made_narrow_in_the_first_micro_batch_alone(framework: str, precision: str) -> None:
    ops = step(framework, precision)
    found = narrowings(ops)
    assert len(found) == 4 * LAYERS, "of each linear of each layer, whatever the number of micro-batches"
    assert sum(op.id == "fwd/L1.mlp.up" for op in ops) == MICROBATCHES
    assert moved(found) == pytest.approx(4 * LAYERS * IN_LAYER, rel=1e-3), "16 bits read, 8 written for each product"


def test_a_stage_of_a_pipeline_makes_its_own_before_its_first_micro_batch() -> None:
    split = {"pp": 2, "dp_shard": 4, "zero": 1}
    ids = [op.id for op in step("megatron-core", "fp8", parallel=split, batch={"global": 16, "micro": 1})]
    first = ids.index("fwd/L0.attn.qkv")
    assert ids.index("fwd/L0.attn.qkv.narrow") < first
    assert sum(id.endswith(".narrow") for id in ids) == 4 * LAYERS // 2


@pytest.mark.parametrize(
    ("framework", "precision", "parallel"),
    [
        ("megatron-bridge", "bf16", {"dp_shard": 8, "zero": 1}),
        ("megatron-bridge", "fp8", {"dp_shard": 8, "zero": 1}),
        ("megatron-bridge", "mxfp8", {"dp_shard": 8, "zero": 3}),
        ("pytorch", "fp8", {"dp_shard": 8, "zero": 1}),
    ],
)
def test_parameters_of_8_bits_and_weights_that_are_cast_elsewhere_are_not(framework: str, precision: str, parallel: dict[str, int]) -> None:
    assert not narrowings(step(framework, precision, parallel=parallel))


def test_frozen_parameters_of_8_bits_stay_and_frozen_casts_are_made_again() -> None:
    model = {"base": "llama3-8b", "layers": 2}
    ops = {name: narrowings(step(name, "mxfp8", model=model, task="lora")) for name in ("megatron-core", "megatron-bridge")}
    assert len(ops["megatron-core"]) == 4 * 2
    assert not ops["megatron-bridge"]


def gathered(ops: list[Op]) -> float:
    return sum(op.bytes for op in ops if op.name == "all_gather")


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("experts", [0, 8])
def test_parameters_of_8_bits_travel_in_8(zero: int, experts: int) -> None:
    """All linears of layers; embedding, norms and biases in 16 bits."""
    model = GPT | ({"moe": {"experts": experts, "top_k": 2, "ffn": FFN}} if experts else {})
    parallel = {"dp_shard": 8, "zero": zero, **({"ep": 2} if experts else {})}
    narrow, wide, blocks = (
        gathered(step("megatron-bridge", precision, model=model, parallel=parallel)) for precision in ("fp8", "bf16", "mxfp8")
    )
    mlps = 2 * HIDDEN * FFN * (experts // 2 or 1)
    times = {1: 1, 3: 2 * MICROBATCHES}[zero]
    assert wide == blocks
    assert wide - narrow == pytest.approx(times * LAYERS * (4 * HIDDEN**2 + mlps), rel=0.02)


@pytest.mark.parametrize(
    ("framework", "parallel", "recompute", "passes"),
    [
        ("torchtitan", {"dp_replicate": 8}, "none", {"fwd": 5, "bwd": 5}),  # read for the largest value, and once more to be cast
        ("torchtitan", {"dp_replicate": 8}, "full", {"fwd": 5, "bwd": 10}),
        ("torchtitan", {"pp": 2, "dp_shard": 4, "zero": 3}, "none", {"fwd": 5, "bwd": 5}),
        ("torchtitan-rowwise", {"dp_replicate": 8}, "none", {"fwd": 3, "bwd": 5}),
        ("torchtitan-float8-gather", {"dp_replicate": 8}, "none", {"fwd": 5, "bwd": 5}),
        ("llm-foundry", {"dp_replicate": 8}, "none", {"fwd": 4, "bwd": 0}),
        ("torchtitan-float8-gather", {"pp": 2, "dp_shard": 4, "zero": 3}, "none", {"fwd": 0, "bwd": 0}),
        ("torchtitan", {"dp_shard": 8, "zero": 3}, "none", {"fwd": 0, "bwd": 0}),  # of what each pass has gathered
    ],
)
def test_weights_that_stay_are_cast_in_each_pass_that_reads_them(
    framework: str, parallel: dict[str, int], recompute: str, passes: dict[str, int]
) -> None:
    """Bytes of an element, pass by pass."""
    found = narrowings(step(framework, "fp8", parallel=parallel, memory={"recompute": recompute}))
    here = MICROBATCHES * IN_LAYER * LAYERS  # of two stages half of the layers, and twice as many micro-batches
    assert {phase: round(moved([op for op in found if op.id.startswith(phase)]) / here, 2) for phase in passes} == passes


def test_what_gathers_once_a_step_casts_in_its_passes_alone() -> None:
    """A pipeline's FSDP keeps what its first forward has gathered: no cast comes with that."""
    ids = [op.id for op in step("torchtitan", "fp8", parallel={"pp": 2, "dp_shard": 4, "zero": 3})]
    assert not any(id.endswith(".quantise") for id in ids)
    assert any(id.endswith(".quantise") for id in (op.id for op in step("torchtitan", "fp8", parallel={"dp_shard": 8, "zero": 3})))
