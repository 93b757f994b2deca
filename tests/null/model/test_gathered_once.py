"""Tensor parallelism of latent attention and of experts: Megatron's ranks keep their own rows, DTensor's gather an input for all that reads it."""

from __future__ import annotations

from sim.framework.framework import Framework, load_framework
from sim.model import Shape, describe, load_model
from sim.model.parts import Part
from sim.work import GroupedGemm

MEGATRON, TITAN = load_framework("megatron-core"), load_framework("torchtitan")
ROWS, HIDDEN, TP = 4096, 7168, 8


def parts(framework: Framework, layer: str = "L0", model: str = "deepseek-v3", **shape: object) -> dict[str, Part]:
    asked = Shape(micro=1, seq=ROWS, **{"tp": TP, "etp": 1, "sequence_parallel": True, **shape})  # type: ignore[arg-type]
    network = describe(load_model(model), asked, framework, "flash")
    return {part.name: part for name, block in network.blocks if name == layer for part in block.parts}


def rows(part: Part) -> int:
    return part.forward[-1].m  # type: ignore[union-attr]


def seams(found: dict[str, Part]) -> list[tuple[str, int]]:
    """Each message over tp, its width in columns of all rows."""
    return [(part.seam, part.seam_bytes // (2 * ROWS)) for part in found.values() if part.seam.startswith("tp.")]


def test_megatrons_bottlenecks_see_a_ranks_rows_and_their_outputs_are_gathered() -> None:
    found = parts(MEGATRON)
    assert seams(found)[:3] == [("tp.gather", 1536), ("tp.gather", 512 + 64), ("tp.reduce", HIDDEN)]
    assert rows(found["attn.q_down"]) == rows(found["attn.kv_down"]) == ROWS // TP
    assert [found[name].whole for name in ("attn.q_down", "attn.q_norm", "attn.kv_norm", "attn.q_up")] == [
        (HIDDEN * 1536,),
        (1536,),
        (512,),
        (),
    ]


def test_dtensors_bottlenecks_see_all_rows_of_one_gathered_input() -> None:
    """NoParallel: whole gradients on each rank, but of what the split up-projections read."""
    found = parts(TITAN)
    assert seams(found)[:4] == [("tp.spread", HIDDEN), ("tp.copy", 1536), ("tp.copy", 512 + 64), ("tp.reduce", HIDDEN)]
    assert rows(found["attn.q_down"]) == rows(found["attn.kv_down"]) == ROWS
    assert not any(part.whole for name, part in found.items() if name.startswith("attn."))


def test_queries_without_a_bottleneck_sum_the_inputs_gradient_once() -> None:
    found = parts(TITAN, model="deepseek-v2-lite")
    assert seams(found)[:3] == [("tp.gather", 2048), ("tp.copy", 512 + 64), ("tp.reduce", 2048)]


def test_experts_and_router_read_one_gathered_input_and_leave_one_sum() -> None:
    """Two messages each way whatever reads it: router, routed and shared experts. Of the tokens each rank routes its own."""
    found = parts(TITAN, "L10", ep=TP)
    assert [width for _, width in seams(found)[-2:]] == [HIDDEN, HIDDEN] and len(seams(found)) == 6
    assert next(iter(name for name in found if name.startswith("moe"))) == "moe.input.gather" and list(found)[-1] != "moe.merge"
    assert rows(found["moe.shared.up"]) == ROWS and found["moe.shared.up"].seam == found["moe.shared.down"].seam == ""
    assert found["moe.up"].seam_bytes == ROWS // TP * 8 * HIDDEN * 2, "a rank's tokens, each to eight experts"
    own = parts(MEGATRON, "L10", ep=TP)
    assert [seam for seam, _ in seams(own)[-2:]] == ["tp.gather", "tp.reduce"] and own["moe.shared.up"].seam == "tp.gather"
    assert found["moe.router"].whole == own["moe.router"].whole == (HIDDEN * 256,)


def test_experts_that_all_ranks_split_see_all_tokens_without_another_message() -> None:
    found = parts(TITAN, "L10", etp=TP)
    assert len(seams(found)) == 6 and found["moe.permute"].seam == found["moe.unpermute"].seam == ""
    assert [work.m for work in found["moe.down"].forward if isinstance(work, GroupedGemm)] == [ROWS * 8]


def test_megatron_gathers_all_ranks_counts_of_all_experts_unless_a_capacity_is_known() -> None:
    shape = {"tp": 1, "ep": 8}
    assert parts(MEGATRON, "L10", **shape)["moe.up"].seam_counts == 8 * 256 * 8
    assert parts(MEGATRON, "L10", capacity=1.0, **shape)["moe.up"].seam_counts == 0
    assert parts(TITAN, "L10", **shape)["moe.up"].seam_counts == 4 * 256


def test_the_router_keeps_no_input_of_its_own_beside_shared_experts() -> None:
    """Megatron's ranks keep their own rows of it, once."""
    held = [parts(framework, "L10")["moe.router"].saved for framework in (MEGATRON, TITAN)]
    assert held == [rows * (4 * 256 + 8 * 8) for rows in (ROWS // TP, ROWS)]
    assert parts(MEGATRON, "L10", model="qwen3-30b-a3b")["moe.router"].saved > ROWS // TP * 2048 * 2


def test_experts_of_a_narrower_width_keep_the_layers_input_once() -> None:
    assert parts(MEGATRON, "L1", model="nemotron3-super", tp=1)["moe.latent_down"].saved == 0
    assert parts(MEGATRON, "L1", model="nemotron3-super", tp=1, precision="mxfp8")["moe.latent_down"].saved > 0


def test_keys_are_repeated_for_their_queries_where_the_framework_does_so() -> None:
    """Llama-3: eight of 32 heads. Four times the bytes are written, and kept by the kernel in place of the keys and values."""
    shape = {"model": "llama3-8b", "tp": 1, "sequence_parallel": False}
    new, old = parts(TITAN.but(compile=False), **shape), parts(load_framework("torchtitan-2025").but(compile=False), **shape)
    keys = ROWS * 8 * 128 * 2
    assert [(work.read, work.written) for work in old["attn.repeat"].forward] == [(keys, 4 * keys)] * 2  # type: ignore[union-attr]
    assert old["attn.core"].saved - new["attn.core"].saved == 2 * 3 * keys and "attn.repeat" not in new
    joined = parts(load_framework("torchtitan-2025").but(compile=True), **shape)["attn.repeat"]
    assert sum(work.bytes for work in joined.forward) == 8 * keys  # type: ignore[union-attr]
    assert "attn.repeat" not in parts(load_framework("torchtitan-2025"), model="llama2-7b", tp=1), "as many keys as queries"
