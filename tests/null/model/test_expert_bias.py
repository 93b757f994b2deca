"""Experts' biases added one expert at a time in fp32 (Megatron-Core), or by the product itself."""

from __future__ import annotations

from sim.framework.framework import load_framework
from sim.model import Shape, describe, load_model
from sim.model.parts import Part
from sim.work import MemoryBound


def down(habit: str, model: str = "gpt-oss-120b") -> Part:
    framework = load_framework("megatron-bridge").but(experts={"bias": habit})
    network = describe(load_model(model), Shape(micro=1, seq=4096, ep=8), framework, "flash")
    return next(part for name, block in network.blocks if name == "L0" for part in block.parts if part.name == "moe.down")


def moved(works: tuple[object, ...]) -> int:
    return sum(
        work.read + work.written for work in works if isinstance(work, MemoryBound) and work.dtype == "fp32" for _ in range(work.repeat)
    )


def test_biases_added_expert_by_expert_move_28_bytes_an_element_forward_and_40_backward() -> None:
    loop, product = down("loop"), down("epilogue")
    elements = 4096 * 4 * 2880  # tokens x top-k x hidden
    assert moved(loop.forward) - moved(product.forward) == 28 * elements
    assert moved(loop.backward) - moved(product.backward) == 40 * elements
    assert (loop.tensors, loop.saved) == (product.tensors, product.saved)
    assert len(product.wgrad) == len(loop.wgrad) + 1, "the sum over rows that makes the biases' gradient is part of the loop"


def test_experts_without_biases_are_the_same_either_way() -> None:
    assert down("loop", "qwen3-30b-a3b") == down("epilogue", "qwen3-30b-a3b")
