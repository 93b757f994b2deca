"""What a prediction says of the numbers that a plan keeps: its words against the bytes that memory counts."""

from __future__ import annotations

from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.memory.numbers import numbers
from sim.memory.static import static_bytes
from sim.model.stages import layout
from sim.setting.bind import bind


@pytest.mark.parametrize(
    ("more", "said", "widths"),
    [
        ({"framework": "pytorch"}, "weights bf16 without an fp32 copy, gradients bf16, moments bf16", (2, 2, 4)),
        ({"framework": "pytorch", "precision": "fp32"}, "weights fp32, gradients fp32, moments fp32", (4, 4, 8)),
        ({"framework": "pytorch-amp"}, "weights fp32, cast for products, gradients fp32, moments fp32", (4, 4, 8)),
        ({"framework": "megatron-core"}, "weights bf16 beside an fp32 copy, gradients fp32, moments fp32", (2, 4, 12)),
        (
            {"framework": "megatron-core", "optimizer": {"states": "fp8"}},
            "weights bf16 beside the 16 bits that they lack of fp32, gradients fp32, moments fp8",
            (2, 4, 4),
        ),
        (
            {"framework": "torchtitan", "parallel": {"dp_shard": 2, "zero": 3}},
            "weights fp32, gathered as bf16, gradients fp32, moments fp32",
            (2, 2, 4),  # of two ranks each has a half
        ),
        (
            {"framework": "maxtext", "parallel": {"dp_shard": 2, "zero": 3}},
            "weights fp32, gathered as bf16, gradients fp32 sent as bf16, moments fp32",
            (2, 2, 4),
        ),
        ({"framework": "pytorch", "optimizer": {"name": "sgd"}}, "weights bf16 without an fp32 copy, gradients bf16", (2, 2, 0)),
        ({"framework": "megatron-core", "task": "forward"}, "weights bf16", (2, 0, 0)),
    ],
)
def test_numbers_are_those_of_memory(more: dict[str, Any], said: str, widths: tuple[int, int, int]) -> None:
    tree = {"model": {"base": "llama3-8b", "layers": 2}, "parallel": {"dp_replicate": 2}} | more
    setting = bind(load_plan(tree), "dgx-h100")
    assert numbers(setting.plan, setting.framework, setting.network) == said
    found = static_bytes(setting.plan, setting.network, setting.framework, layout(setting.network, setting.plan))
    sizes = (found["parameters"], found["gradients"], found["optimizer"])
    assert [size / setting.network.parameters for size in sizes] == pytest.approx(widths, rel=0.01)


@pytest.mark.parametrize(
    ("framework", "lora", "said", "bytes_each"),
    [
        ("huggingface", {}, "trained weights fp32, gradients fp32, moments fp32; frozen weights bf16", 2.0),
        ("huggingface", {"base": "nf4"}, "trained weights fp32, gradients fp32, moments fp32; frozen weights nf4", 0.516),
        ("pytorch", {}, "weights bf16 without an fp32 copy, gradients bf16, moments bf16", 2.0),
    ],
)
def test_what_is_frozen_is_named_apart(framework: str, lora: dict[str, Any], said: str, bytes_each: float) -> None:
    """Of a QLoRA "weights fp32" was said: its adapters', a thousandth of what lies there."""
    tree = {"model": {"base": "llama3-8b", "lora": lora}, "task": "lora", "framework": framework}
    setting = bind(load_plan(tree), "dgx-h100")
    assert numbers(setting.plan, setting.framework, setting.network) == said
    frozen = [part for _, block in setting.network.blocks for part in block.parts if part.frozen and part.cls == "gemm" and part.params]
    found = static_bytes(setting.plan, setting.network, setting.framework, layout(setting.network, setting.plan))
    # Embeddings and the head are not packed: two of their numbers' bytes each.
    packed = sum(part.params for part in frozen if 0.0 < part.stored < 1.0)
    assert found["parameters"] == pytest.approx(packed * bytes_each + (setting.network.parameters - packed) * 2.0, rel=0.02)
