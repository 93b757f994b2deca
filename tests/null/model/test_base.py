"""A [model] table that changes another model: its fields, its name, and what it may not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.model.load import load_model, model_from
from sim.model.specs.spec import spec_of
from sim.setting.bind import model_of
from topologies.errors import BadInput, Refused, UnknownName


def test_a_base_lends_what_the_table_does_not_say() -> None:
    base, half = load_model("mixtral-8x7b"), model_from({"base": "mixtral-8x7b", "layers": 16, "moe": {"experts": 16}})
    assert (half.layers, half.moe.experts, half.moe.top_k) == (16, 16, 2)  # type: ignore[union-attr]
    assert half.hidden == base.hidden and half.name == "mixtral-8x7b (changed)"  # type: ignore[union-attr]
    assert model_from({"base": "vit-b16", "image": 384, "name": "vit-b16-384"}).name == "vit-b16-384"


@pytest.mark.parametrize(
    ("written", "shipped"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"), ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"), ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"), ("google-t5/t5-base", "t5-base"), ("Llama 3 8B", "llama3-8b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"), ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"), ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
    ],
)  # fmt: skip
def test_a_model_is_found_by_its_name_on_the_hub(written: str, shipped: str) -> None:
    assert load_model(written) == load_model(shipped)


@pytest.mark.parametrize(
    "written",
    ["google-t5/t5", "meta-llama/Llama-3-8B-Vision", "Qwen/Qwen2.5-72B-Instruct-AWQ", "mistralai/Mistral-7B-v0.2", "instruct", "a/"],
)
def test_a_name_that_says_more_is_no_shipped_models(written: str) -> None:
    with pytest.raises(UnknownName):
        load_model(written)


def test_one_field_of_a_plans_model_by_override() -> None:
    plan = load_plan({"model": "llama3-8b"}, ("model.layers=2", "model.window=1024"))
    assert plan.model == {"base": "llama3-8b", "layers": 2, "window": 1024} and plan.model_name == "llama3-8b (changed)"
    assert model_of(plan).layers == 2  # type: ignore[union-attr]
    assert load_plan(plan).model == plan.model


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"base": "llama3-9b"}, "Did you mean llama3-8b"),
        ({"base": "llama3-8b", "layrs": 2}, "Did you mean layers"),
        ({"base": "llama3-8b", "lora": {"rnk": 64}}, r"unknown field 'lora\.rnk' in \[model\]\. Did you mean lora\.rank"),
        ({"base": "mixtral-8x7b", "top_k": 1}, r"unknown field 'top_k' in \[model\]\. Did you mean moe\.top_k\?$"),
        ({"base": 3}, "a model's name or file in quotes"),
        ({"base": "nemotron3-nano", "layers": 8}, "pattern has 52 letters for layers = 8"),
    ],
)
def test_what_a_base_cannot_be_or_take(table: dict[str, Any], words: str) -> None:
    with pytest.raises((BadInput, UnknownName), match=words):
        model_from(table)


def test_a_captured_module_has_no_fields(tmp_path: Path) -> None:
    (tmp_path / "mine.model.json").write_text('{"family": "captured", "order": [], "low": [], "high": []}')
    with pytest.raises(Refused, match="no fields to change"):
        model_from({"base": str(tmp_path / "mine.model.json"), "precision": "bf16"})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"activation": "swish"}, "Allowed: gelu, gelu_new, quick_gelu, relu"),
        ({"position": "absolute"}, "Allowed: rope, learned, alibi, none"),
        ({"lora": {"targets": ["qvk"]}}, "Allowed: qkv, q, k, v, proj, up, down"),
        ({"family": "cnn", "arch": "unet"}, "Allowed: resnet, vgg, alexnet, inception-v3, ssd300, mask-rcnn, retinanet, cifar"),
    ],
)
def test_words_that_a_field_does_not_take_are_answered_by_those_that_it_does(fields: dict[str, Any], words: str) -> None:
    sizes = {} if "family" in fields else {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100}
    with pytest.raises(BadInput, match=words):
        spec_of(sizes | fields, "[model]")
