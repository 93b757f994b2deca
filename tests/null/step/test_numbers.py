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
    assert numbers(setting.plan, setting.framework) == said
    found = static_bytes(setting.plan, setting.network, setting.framework, layout(setting.network, setting.plan))
    sizes = (found["parameters"], found["gradients"], found["optimizer"])
    assert [size / setting.network.parameters for size in sizes] == pytest.approx(widths, rel=0.01)
