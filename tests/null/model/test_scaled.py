"""Fixed numbers that multiply a decoder's activations: a kernel each, forward and backward, but for compilers."""

from __future__ import annotations

from typing import Any

import pytest

from sim.framework.framework import load_framework
from sim.model import Shape, describe
from sim.model.load import load_model
from sim.model.readers.huggingface import from_config
from sim.model.specs.decoder import Decoder
from sim.model.specs.spec import spec_of
from sim.work import MemoryBound
from tests.null.model.hf_configs import CONFIGS
from tests.null.model.hf_recent import RECENT

SHAPE = Shape(micro=2, seq=512)
ROWS = 2 * 512
GRANITE: dict[str, Any] = {
    "model_type": "granite", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 1000,
    "hidden_act": "silu", "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 16.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "scaled"),
    [
        (GRANITE, ("embedding", "mixers", "logits")),
        (GRANITE | {"model_type": "granitemoe", "num_local_experts": 4, "num_experts_per_tok": 2}, ("embedding", "mixers", "logits")),
        (RECENT["granite-4-h-small"][1], ("embedding", "mixers", "logits")),
        (CONFIGS["gemma-2b"][1], ("embedding",)),
        (CONFIGS["gemma-2-9b"][1], ("embedding",)),
        (CONFIGS["gemma-3-1b"][1], ("embedding",)),
        (CONFIGS["command-r-v01"][1], ("logits",)),
        (RECENT["command-r7b"][1], ("logits",)),
        (CONFIGS["mistral-7b-v0.1"][1], ()),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "-".join(value),
)
def test_a_config_says_what_its_code_multiplies(config: dict[str, Any], scaled: tuple[str, ...]) -> None:
    found = from_config(config, "config.json")
    assert isinstance(found, Decoder) and found.scaled == scaled


@pytest.mark.parametrize(
    ("name", "scaled"),
    [
        ("granite3.3-8b", ("embedding", "mixers", "logits")),
        ("gemma2-9b", ("embedding",)),
        ("minicpm-2.4b", ("embedding", "mixers", "head")),
    ],
)
def test_shipped_models_say_it_too(name: str, scaled: tuple[str, ...]) -> None:
    found = load_model(name)
    assert isinstance(found, Decoder) and found.scaled == scaled


TINY: dict[str, Any] = {"family": "decoder", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 1000, "dropout": 0.0}


def factors(more: dict[str, Any], compiled: bool = False) -> dict[str, tuple[list[int], list[int]]]:
    """Bytes that the kernels of each scaling part move, forward and backward."""
    spec = spec_of(TINY | more, "tests")
    network = describe(spec, SHAPE, load_framework("pytorch").but(compile=compiled))
    moved: dict[str, tuple[list[int], list[int]]] = {}
    for block, one in network.blocks:
        for part in one.parts:
            if part.name.endswith("scale"):
                there, back = ([work.bytes for work in works if isinstance(work, MemoryBound)] for works in (part.forward, part.backward))
                moved[f"{block}.{part.name}"] = there, back
    return moved


def test_each_factor_reads_and_writes_what_it_multiplies() -> None:
    stream, words = ROWS * 64 * 2 * 2, ROWS * 1000 * 2 * 2
    found = factors({"scaled": ["embedding", "mixers", "head", "logits"]})
    sizes = {
        "embed.embed.scale": stream, "L0.attn.scale": stream, "L0.mlp.scale": stream, "L1.attn.scale": stream, "L1.mlp.scale": stream,
        "head.head.norm.scale": stream, "head.head.scale": words,
    }  # fmt: skip
    assert found == {name: ([size], [size]) for name, size in sizes.items()}
    assert factors({}) == {}


def test_a_compiler_does_it_in_a_kernel_beside_it() -> None:
    assert factors({"scaled": ["embedding", "mixers", "head", "logits"]}, compiled=True) == {}


def test_nothing_before_frozen_tables_needs_a_gradient() -> None:
    found = factors({"scaled": ["embedding", "mixers"], "lora": {"rank": 8}})
    assert found["embed.embed.scale"][1] == [] and found["L0.attn.scale"][1] != []
