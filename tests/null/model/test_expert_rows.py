"""What Megatron-Core runs around the experts' products: clamped inputs, padded rows, weights that travel by themselves."""

from __future__ import annotations

import pytest

from sim.framework.framework import Framework, load_framework
from sim.model import Shape, describe, load_model
from sim.model.parts import Part
from sim.work import MemoryBound

BRIDGE = load_framework("megatron-bridge")


def parts(framework: Framework, model: str = "gpt-oss-120b", **shape: object) -> dict[str, Part]:
    network = describe(load_model(model), Shape(micro=1, seq=4096, ep=8, **shape), framework, "flash")  # type: ignore[arg-type]
    return {part.name: part for name, block in network.blocks if name == "L0" for part in block.parts}


def moved(works: tuple[object, ...]) -> int:
    return sum(int(work.bytes) for work in works if isinstance(work, MemoryBound))


def test_clamped_halves_move_16_bytes_a_result_more_forward_and_20_backward() -> None:
    results = 4096 * 4 * 2880  # tokens x top-k x inner width
    plain, apart = (parts(BRIDGE.but(experts={"limits_apart": apart}))["moe.act"] for apart in (False, True))
    assert moved(apart.forward) - moved(plain.forward) == 16 * results, "two clamps of one half each, and both halves joined"
    assert moved(apart.backward) - moved(plain.backward) == 20 * results
    assert (plain.reads, apart.reads) == (False, True), "a number copied to the device, for which the host waits"
    assert apart.saved - plain.saved == 4 * results


def test_an_iteration_in_one_graph_waits_for_nothing_and_models_without_limits_have_no_clamps() -> None:
    captured = load_framework("megatron-bridge-captured")
    assert not any(part.reads for part in parts(captured).values())
    assert len(parts(captured)["moe.act"].forward) == 1
    assert parts(BRIDGE, "qwen3-30b-a3b")["moe.act"].native == 0


def test_eager_clamps_are_three_kernels_without_a_join() -> None:
    limited, free = (parts(load_framework("pytorch"), model)["moe.act"] for model in ("gpt-oss-120b", "qwen3-30b-a3b"))
    assert len(limited.forward) == len(free.forward) + 2


@pytest.mark.parametrize(
    ("framework", "precision", "capacity", "padded"),
    [
        ("megatron-bridge", "fp8", 0.0, True),
        ("megatron-bridge", "bf16", 0.0, False),
        ("megatron-bridge", "fp8", 1.0, False),
        ("megatron-bridge-graphs", "fp8", 0.0, False),
        ("megatron-bridge-captured", "fp8", 0.0, False),
    ],
)
def test_rows_are_padded_for_8_bits_unless_capacity_or_exchange_has_done_so(
    framework: str, precision: str, capacity: float, padded: bool
) -> None:
    found = parts(load_framework(framework), "qwen3-30b-a3b", precision=precision, capacity=capacity)
    rows = 4096 * 8 * 2048
    copies = [
        sum(isinstance(w, MemoryBound) and w.what == "copy" and w.bytes == 4 * rows for w in found[name].forward)
        for name in ("moe.up", "moe.down")
    ]
    assert copies == [padded, padded]
    assert (found["moe.up"].modules, found["moe.down"].modules) == (2 + padded, 2 + padded)


def test_weights_travel_by_themselves_by_all_to_all_and_with_the_tokens_else() -> None:
    assert parts(BRIDGE, "qwen3-30b-a3b")["moe.up"].seam_weights == 4096 * 8 * 4, "fp32"
    assert parts(load_framework("megatron-bridge-graphs"), "qwen3-30b-a3b")["moe.up"].seam_weights == 0
    assert parts(load_framework("torchtitan"), "qwen3-30b-a3b")["moe.up"].seam_weights == 0


def test_scaled_rotations_make_their_angles_anew_and_join_what_they_rotated() -> None:
    whole = 2 * 4096 * (64 + 8) * 64  # bytes of queries and keys
    fused = parts(BRIDGE, "qwen3-30b-a3b")["attn.rope"]
    scaled, plain = parts(BRIDGE)["attn.rope"], parts(load_framework("pytorch"))["attn.rope"]
    assert (len(fused.forward), fused.native) == (1, 0) and scaled.native == len(scaled.forward)
    assert [work.bytes for work in scaled.backward] == [work.bytes for work in plain.backward]
    angles = 4 * 4096 * 64 * (8 + 8 + 6)  # cos and sin, scaled, made 16-bit, for queries and for keys
    assert moved(scaled.forward) - moved(plain.forward) == 2 * whole + angles


def test_current_scaling_reads_the_rows_for_their_largest_value_and_block_scales_do_not() -> None:
    rows = 4096 * 8 * 2048
    found = {precision: parts(BRIDGE, "qwen3-30b-a3b", precision=precision)["moe.up"] for precision in ("fp8", "mxfp8")}
    reads = {
        precision: sum(int(w.bytes) for w in up.forward if isinstance(w, MemoryBound) and w.what == "reduce")
        for precision, up in found.items()
    }
    assert reads == {"fp8": 2 * rows, "mxfp8": 0}
    delayed = parts(load_framework("megatron-lm"), "qwen3-30b-a3b", precision="fp8")["moe.up"]
    assert not any(isinstance(w, MemoryBound) and w.what == "reduce" for w in delayed.forward)


@pytest.mark.parametrize(
    ("framework", "precision", "kept"),
    [("megatron-bridge", "bf16", 2), ("megatron-bridge", "mxfp8", 2), ("megatron-bridge", "fp8", 2), ("megatron-core", "fp8", 3)],
)
def test_router_and_shared_experts_keep_16_bits_of_their_input_once(framework: str, precision: str, kept: int) -> None:
    """And the shared experts a cast of it, where delayed scales make it one of their own."""
    spec, shape = load_model("deepseek-v2-lite"), Shape(micro=1, seq=512, precision=precision)
    layer = describe(spec, shape, load_framework(framework)).blocks[2][1]
    found = {part.name: part.saved for part in layer.parts}
    scores = 4 * 512 * 64 + 8 * 512 * 6
    assert (found["moe.router"], found["moe.shared.up"]) == (scores, kept * 512 * 2048)
