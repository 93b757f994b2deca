"""config.json without transformers: the same model as the preset, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from sim.framework.framework import Framework, load_framework
from sim.model import Shape, describe, load_model
from sim.model.language.decoder import kind_of
from sim.model.readers.huggingface import READERS, from_config
from sim.model.specs.decoder import Decoder
from sim.model.specs.spec import Encoder
from tests.null.model.hf_configs import CONFIGS
from tests.null.model.hf_recent import RECENT
from topologies.errors import BadInput, Refused, UnknownName

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
FUSED = Framework(name="fused", source="test").but(elementwise={"fused_activation": True})
"""transformers writes GPT-2's gelu out, operator by operator: the same model where the framework fuses it."""


@pytest.mark.parametrize(("config", "preset"), [(LLAMA, "llama3-8b"), (DEEPSEEK, "deepseek-v3"), (GPT2, "gpt2-124m")])
def test_a_config_is_its_preset(config: dict[str, object], preset: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    read, shipped = (describe(load_model(name), SHAPE, FUSED) for name in (str(path), preset))
    assert [block for _, block in read.blocks] == [block for _, block in shipped.blocks]
    assert (read.parameters, read.flops_per_sample) == (shipped.parameters, shipped.flops_per_sample)


def test_gelu_new_is_eight_kernels_where_nothing_fuses_it() -> None:
    read = from_config(GPT2, "config.json")
    eager, fused = (next(p for p in describe(read, SHAPE, how).blocks[1][1].parts if p.name == "mlp.act") for how in (PLAIN, FUSED))
    assert (len(eager.forward), len(fused.forward)) == (8, 1)
    assert eager.saved == 4 * fused.saved


def test_dropout_of_probabilities_is_its_own() -> None:
    opt = {"model_type": "opt", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 256, "vocab_size": 100}
    opt |= {"max_position_embeddings": 64, "dropout": 0.1}

    def drops(config: dict[str, object], part: str) -> bool:
        parts = describe(from_config(config, "config.json"), Shape(micro=1, seq=64), PLAIN, "math").blocks[1][1].parts
        return any(getattr(work, "what", "") == "dropout" for p in parts if p.name == part for work in p.forward)

    assert (drops(opt, "attn.core"), drops(opt, "attn.residual")) == (False, True)
    assert (drops({**opt, "attention_dropout": 0.1}, "attn.core"), drops({**opt, "dropout": 0.0}, "attn.residual")) == (True, False)


@pytest.mark.parametrize("name", CONFIGS)
def test_served_configs_have_the_published_parameters(name: str) -> None:
    count, config = CONFIGS[name]
    assert describe(from_config(config, "config.json"), SHAPE, PLAIN).parameters == count


@pytest.mark.parametrize("name", CONFIGS)
def test_each_missing_size_is_named(name: str) -> None:
    """Without any one of its numbers a config is read with the class's default, or refused with the field's name."""
    _, config = CONFIGS[name]
    for key, value in config.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        try:
            from_config({k: v for k, v in config.items() if k != key}, "config.json")
        except BadInput as error:
            assert "config.json" in str(error) and ("is missing for model_type" in str(error) or "does not divide" in str(error)), error


def test_variants_that_are_known_and_not_described_are_refused() -> None:
    for name, change, word in (
        ("opt-6.7b", {"word_embed_proj_dim": 512}, "opt-350m"),
        ("qwen2.5-0.5b", {"use_sliding_window": True, "max_window_layers": 12}, "max_window_layers = 12"),
        ("flan-t5-base", {"num_decoder_layers": 6}, "num_decoder_layers"),
    ):
        with pytest.raises(Refused, match=word):
            from_config(CONFIGS[name][1] | change, "config.json")
    with pytest.raises(Refused, match="Save its text_config"):
        from_config({"model_type": "llava_onevision", "text_config": CONFIGS["gemma-3-1b"][1], "vision_config": {}}, "config.json")
    with pytest.raises(BadInput, match="is no ResNet-18"):
        from_config(CONFIGS["resnet-50"][1] | {"depths": [3, 4, 5, 3]}, "config.json")


def test_weights_that_stay_quantized_are_refused() -> None:
    """Those of QLoRA were taken for 16 bits; what a release is merely stored in is read."""
    for form in ("bitsandbytes", "gptq", "awq"):
        with pytest.raises(Refused, match=f"quant_method = '{form}': weights that stay quantized are read of no config"):
            from_config(LLAMA | {"quantization_config": {"quant_method": form, "load_in_4bit": True}}, "config")
    stored = from_config(DEEPSEEK | {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}, "config")
    assert stored == from_config(DEEPSEEK, "config")


def test_layers_that_see_all_keys_alternate_with_windows() -> None:
    def windows(name: str) -> list[bool]:
        spec = from_config(CONFIGS[name][1], "config.json")
        return [kind_of(spec, index)[1] for index in range(7)]  # type: ignore[arg-type]

    assert windows("gemma-3-1b") == [True] * 5 + [False, True]
    assert windows("gemma-2-9b") == [True, False] * 3 + [True]
    assert windows("mistral-7b-v0.1") == [True] * 7
    assert windows("qwen2.5-0.5b") == [False] * 7


def test_the_closest_type_is_named() -> None:
    for wrong, near in (("qwen_3", "qwen3"), ("deepseekv3", "deepseek_v3"), ("gpt-neox", "gpt_neox"), ("bertt", "bert")):
        with pytest.raises(UnknownName, match=f"Did you mean .*{near}"):
            from_config({"model_type": wrong}, "config.json")
    assert len(READERS) >= 50


def test_errors_name_the_field_and_the_closest() -> None:
    with pytest.raises(UnknownName, match="Did you mean llama"):
        from_config(LLAMA | {"model_type": "lama"}, "config.json")
    with pytest.raises(BadInput, match=r"takes the model_type whose keys and layers it has, .* plan capture"):
        from_config(LLAMA | {"model_type": "my_moe"}, "config.json")
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


def test_a_byte_order_mark_is_read_over_and_another_ending_is_named(tmp_path: Path) -> None:
    source = json.dumps({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                         "vocab_size": 100})  # fmt: skip
    (tmp_path / "plain.json").write_text(source, "utf-8")
    (tmp_path / "marked.json").write_text(source, "utf-8-sig")
    (tmp_path / "config.yaml").write_text(source, "utf-8")
    plain, marked = (describe(load_model(str(tmp_path / f"{name}.json")), Shape(micro=1, seq=8), PLAIN) for name in ("plain", "marked"))
    assert plain.parameters == marked.parameters and plain.flops_per_sample == marked.flops_per_sample
    with pytest.raises(BadInput, match=r"config\.yaml: its name must end in \.json"):
        load_model(str(tmp_path / "config.yaml"))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"hidden_act": ["silu"]}, "unknown activation"),
        (LLAMA | {"hidden_act": {"name": "silu"}}, "unknown activation"),
        ({"model_type": "gptj", "n_embd": 64, "n_head": 0, "n_layer": 2, "vocab_size": 100}, "not of the form"),
        ({"model_type": "resnet", "depths": 3}, "not of the form"),
        ({"model_type": "resnet", "depths": [[3]]}, "not of the form"),
        (LLAMA | {"model_type": "bert", "max_position_embeddings": 512, "architectures": 1}, "not of the form"),
    ],
)
def test_fields_of_another_form_are_errors(config: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        from_config(config, "config.json")


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_token_types_that_are_not_said_are_the_class_s_two(kind: str) -> None:
    said = {key: value for key, value in CONFIGS["roberta-base"][1].items() if key != "type_vocab_size"} | {"model_type": kind}
    one, two = (describe(from_config(tree, "config.json"), SHAPE, PLAIN).parameters for tree in (said | {"type_vocab_size": 1}, said))
    assert two - one == 768


def test_published_blooms_say_their_width_by_another_name() -> None:
    config = {"model_type": "bloom", "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32, "vocab_size": 250880}
    said = {"hidden_size" if key == "n_embed" else key: value for key, value in config.items()}
    assert from_config(config, "config.json") == from_config(said, "config.json")


@pytest.mark.parametrize("kind", ["phi", "glm4_moe", "stablelm", "gpt_neox"])
def test_the_rotated_share_may_stand_in_a_table_of_its_own(kind: str) -> None:
    """As transformers 5 writes it; without it the class's default holds."""
    config = next(fields for _, fields in {**CONFIGS, **RECENT}.values() if fields["model_type"] == kind)
    bare = {key: value for key, value in config.items() if key not in ("partial_rotary_factor", "rotary_pct", "rope_pct")}
    table = {"rope_type": "default", "partial_rotary_factor": 0.75}
    assert msgspec.to_builtins(from_config({**bare, "rope_parameters": table}, "c"))["rotary"] == 0.75
    assert from_config({**bare, "rope_parameters": {"rope_type": "default"}}, "c") == from_config(bare, "c")


def test_a_folder_that_is_called_like_a_shipped_model_hides_it_only_with_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results or checkpoints of Llama 3 8B lie in a folder llama3-8b more often than not: no shipped plan of it could be predicted beside them."""
    monkeypatch.chdir(tmp_path)
    Path("gpt2-124m").mkdir()
    assert load_model("gpt2-124m").name == "gpt2-124m"
    Path("gpt2-124m/config.json").write_text(json.dumps(GPT2 | {"n_layer": 3}))
    assert load_model("gpt2-124m").layers == 3  # type: ignore[union-attr]
    with pytest.raises(BadInput, match=r"mine/config\.json does not exist"):
        Path("mine").mkdir()
        load_model("mine")


@pytest.mark.parametrize("kind", ["roberta-base", "distilbert-base-uncased"])
def test_transformers_heads_over_words_give_logits_of_all_of_them(kind: str) -> None:
    """Of a sequence as long as the plan's, of which nothing is picked out first; the papers' own code picks 15 %."""
    found = from_config(CONFIGS[kind][1], "config.json")
    assert isinstance(found, Encoder) and found.picked(128) == 128 and found.picked(512) == 512
    head = describe(found, Shape(micro=2, seq=128), load_framework("pytorch"), "flash").blocks[-1][1]
    assert "head.masked" not in [part.name for part in head.parts]
    picks = describe(msgspec.structs.replace(found, predictions=0), Shape(micro=2, seq=128), load_framework("pytorch"), "flash").blocks[-1][
        1
    ]
    assert "head.masked" in [part.name for part in picks.parts] and msgspec.structs.replace(found, predictions=0).picked(128) == 20


def test_gemma_2_bounds_what_its_file_says() -> None:
    said = CONFIGS["gemma-2-9b"][1]
    without = {**said, "attn_logit_softcapping": None, "final_logit_softcapping": None}
    found = [from_config(tree, "config.json") for tree in (said, without)]
    assert [(one.capped_scores, one.capped_logits) for one in found if isinstance(one, Decoder)] == [(True, True), (False, False)]
