"""Who keeps attention's result, which a fused kernel's backward reads: the linear after it, or attention itself."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.framework.framework import load_framework
from sim.model import describe, load_model
from sim.model.layers.grouped_query import grouped_query
from sim.model.parts import Part, Shape
from sim.model.share import share_of
from sim.model.specs.decoder import Decoder
from sim.model.specs.lora import Lora

ROWS, HEADS, KV, D = 256, 8, 2, 16
QKV = ROWS * (HEADS + 2 * KV) * D
RESULT = ROWS * HEADS * D
SUMS = 4 * ROWS * HEADS


def parts(framework: str, precision: str, attention: str = "flash", **how: object) -> dict[str, Part]:
    share = share_of(Shape(micro=1, seq=ROWS, precision=precision), load_framework(framework), attention)
    found = grouped_query(share, HEADS * D, HEADS, KV, D, qkv_bias=False, proj_bias=False, fused=True, **how)  # type: ignore[arg-type]
    return {part.name: part for part in found}


@pytest.mark.parametrize(
    ("framework", "precision", "attention", "linear", "again"),
    [
        ("megatron-bridge", "bf16", 0, 2, 0),  # one tensor
        ("megatron-core", "fp8", 2, 1, 2),  # delayed scales: TransformerEngine's linear keeps its own cast
        ("megatron-bridge", "fp8", 1, 1, 0),  # scales of the tensor: in its place the result itself
        ("megatron-bridge", "mxfp8", 1, 1, 0),
        ("megatron-bridge", "nvfp4", 1.5, 0.5, 0),
        ("torchtitan", "fp8", 1, 1, 0),
        ("mlperf-nvidia-lora", "fp8", 1, 1, 1),  # 8-bit attention leaves 8 bits
    ],
)
def test_bytes_of_the_result_that_are_kept(framework: str, precision: str, attention: float, linear: float, again: int) -> None:
    """`again`: of them what attention's recomputation does without. Beside them queries, keys and values in attention's own bits, and sums of rows."""
    found = parts(framework, precision)
    own = 1 if load_framework(framework).attention.fp8 else 2
    assert found["attn.core"].saved == own * QKV + SUMS + attention * RESULT
    assert found["attn.core"].dropped == SUMS + again * RESULT
    assert found["attn.proj"].saved == linear * RESULT


def test_a_gate_keeps_what_it_reads() -> None:
    found = parts("megatron-bridge", "mxfp8", gated=True)
    assert (found["attn.core"].saved, found["attn.gate"].saved) == (2 * QKV + SUMS, 4 * RESULT)


def test_separate_kernels_do_not_read_their_result_again() -> None:
    wide, narrow = (parts("megatron-core", precision, "math")["attn.core"].saved for precision in ("bf16", "fp8"))
    assert wide == narrow


@pytest.mark.parametrize("model", ["llama3.2-1b", "deepseek-v2-lite"])
@pytest.mark.parametrize(
    ("lora", "kept"),
    [
        (Lora(dropout=0.0), 0),  # the adapter of the projection reads it, too
        (Lora(dropout=0.1), 2),  # ... reads what dropout leaves of it
        (Lora(dropout=0.0, targets=("qkv",)), 2),  # nobody does: the projection is frozen
    ],
)
def test_a_frozen_projection_keeps_nothing_of_the_result(model: str, lora: Lora, kept: int) -> None:
    spec = load_model(model)
    assert isinstance(spec, Decoder)
    trained, tuned = (
        next(
            part for part in describe(one, Shape(micro=1, seq=ROWS), load_framework("nemo")).blocks[1][1].parts if part.name == "attn.core"
        )
        for one in (spec, replace(spec, lora=lora))
    )
    result = ROWS * spec.heads * (spec.mla.value if spec.mla else spec.head)
    assert tuned.saved - trained.saved == tuned.dropped - trained.dropped == kept * result
