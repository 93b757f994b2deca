"""config.json without transformers: the same model as the preset, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.framework import Framework
from sim.model import Shape, describe, load_model
from sim.model.huggingface import from_config
from topologies.errors import BadInput, UnknownName

LLAMA = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size": 128256,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257, "resid_pdrop": 0.1}
SHAPE = Shape(micro=2, seq=512)
PLAIN = Framework(name="plain", source="test")


@pytest.mark.parametrize(("config", "preset"), [(LLAMA, "llama3-8b"), (DEEPSEEK, "deepseek-v3"), (GPT2, "gpt2-124m")])
def test_a_config_is_its_preset(config: dict[str, object], preset: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    read, shipped = describe(load_model(str(path)), SHAPE, PLAIN), describe(load_model(preset), SHAPE, PLAIN)
    assert [block for _, block in read.blocks] == [block for _, block in shipped.blocks]
    assert (read.parameters, read.flops_per_sample) == (shipped.parameters, shipped.flops_per_sample)


def test_errors_name_the_field_and_the_closest() -> None:
    with pytest.raises(UnknownName, match="Did you mean llama"):
        from_config(LLAMA | {"model_type": "lama"}, "config.json")
    with pytest.raises(BadInput, match=r"config\.json: 'intermediate_size' is missing for model_type 'llama'"):
        from_config({key: value for key, value in LLAMA.items() if key != "intermediate_size"}, "config.json")
    with pytest.raises(BadInput, match="'model_type' is missing"):
        from_config({"hidden_size": 8}, "config.json")
    with pytest.raises(BadInput, match="hidden_size = '4096' must be a whole number"):
        from_config(LLAMA | {"hidden_size": "4096"}, "config.json")
    with pytest.raises(UnknownName, match="activation"):
        from_config(LLAMA | {"hidden_act": "mystery"}, "config.json")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(BadInput, match="not valid JSON"):
        load_model(str(broken))
    with pytest.raises(BadInput, match="does not exist"):
        load_model(str(tmp_path / "absent.json"))
