"""Mixers that pass a state along the sequence: what their functions of autograd keep, and what they make again in backward."""

from __future__ import annotations

import pytest

from sim.framework.framework import load_framework
from sim.model.layers.redo import redone
from sim.model.load import load_model
from sim.model.network import describe
from sim.model.parts import Block, Part, Shape
from sim.model.specs.decoder import Decoder
from sim.work import Gemm

ROWS = 2 * 2048


def layer(model: str, framework: str) -> tuple[Decoder, Block]:
    spec = load_model(model)
    assert isinstance(spec, Decoder)
    return spec, dict(describe(spec, Shape(micro=2, seq=2048), load_framework(framework)).blocks)["L0"]


def mixer(block: Block, name: str) -> list[Part]:
    return [part for part in block.parts if part.name.startswith(name)]


def flops(part: Part) -> tuple[float, float]:
    """Products of the scan, forward and backward."""
    found = [sum(work.flops for work in works if isinstance(work, Gemm)) for works in (part.forward, part.backward)]
    return found[0], found[1]


@pytest.mark.parametrize("framework", ["pytorch", "megatron-bridge"])
def test_mamba_keeps_what_its_projection_made_and_the_scan_s_result(framework: str) -> None:
    """Beside the inputs of both projections; no states, and nothing between convolution and scan."""
    spec, block = layer("mamba2-2.7b", framework)
    assert spec.mamba is not None
    inner, shared = spec.mamba.heads * spec.mamba.head_dim, 2 * spec.mamba.groups * spec.mamba.state
    projected = 2 * inner + shared + spec.mamba.heads
    kept = sum(part.saved for part in mixer(block, "mamba."))
    assert kept == 2 * ROWS * (spec.hidden + projected + inner + inner) + 4 * ROWS  # and a number of the norm for each row


def test_the_delta_rule_keeps_heads_and_inverses_and_no_states() -> None:
    spec, block = layer("qwen3-next-80b-a3b", "megatron-bridge")
    assert spec.delta is not None
    heads, width, chunk = spec.delta.value_heads, spec.delta.key_dim, spec.delta.chunk
    kept = next(part.saved for part in block.parts if part.name == "delta.rule")
    assert kept == ROWS * heads * ((3 * width + chunk) * 2 + 4 + 2)


@pytest.mark.parametrize(
    ("model", "name", "again"),
    [
        ("mamba2-2.7b", "mamba.scan", (0, 2)),
        ("qwen3-next-80b-a3b", "delta.rule", (2, 3, 6, 8)),
        ("minimax-text-01", "lightning.attention", (2,)),
    ],
)
def test_what_is_not_kept_is_made_again(model: str, name: str, again: tuple[int, ...]) -> None:
    """Each product's two gradients, and those products whose results they need."""
    _, block = layer(model, "megatron-bridge")
    scan = next(part for part in block.parts if part.name == name)
    forward, backward = flops(scan)
    products = [work for work in scan.forward if isinstance(work, Gemm)]
    assert backward == pytest.approx(2 * forward + sum(products[at].flops for at in again))


@pytest.mark.parametrize("model", ["mamba2-2.7b", "qwen3-next-80b-a3b", "minimax-text-01"])
def test_attention_s_recomputation_is_not_of_such_mixers(model: str) -> None:
    """Megatron-Core's core_attn is of attention; it would cost their work again and free nothing."""
    assert not redone(layer(model, "megatron-bridge")[1], ("core_attn",)).runs
