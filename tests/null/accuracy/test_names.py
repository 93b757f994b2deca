"""Models by the names that publications print, and by their parameters where nothing else is said."""

from __future__ import annotations

import msgspec
import pytest

from sim.accuracy.architecture.models import model_of
from sim.accuracy.architecture.names import shipped_model, size_of
from sim.accuracy.rows.plans import case_of
from sim.model.load import model_from
from tests.null.accuracy.test_plans import row
from topologies.errors import BadInput, Refused

SILENT = {
    "n_layers": None,
    "hidden": None,
    "n_heads": None,
    "n_kv_heads": None,
    "head_dim": None,
    "ffn_hidden": None,
    "vocab_size": None,
    "model_type": "",
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"), ("Llama-3-8B-Instruct", "llama3-8b"), ("LLaMA-3 (70B)", "llama3-70b"), ("Llama 2 7B chat", "llama2-7b"),
        ("LLaMA-7B", "llama2-7b"), ("Vicuna-13B", "llama2-13b"), ("GPT-2 (124M)", "gpt2-124m"), ("GPT-2 (1.6B)", "gpt2-1.5b"), ("gpt2-xl", "gpt2-1.5b"),
        ("GPT2-345M", "gpt2-355m"), ("GPT 2.7B", "gpt3-2.7b"), ("MT-NLG 530B", "megatron-530b"), ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen2.5-7B-Instruct", "qwen2.5-7b"), ("DeepSeek-V3-671B", "deepseek-v3"), ("DeepSeek-V2-236B", "deepseek-v2"), ("OLMo-2-1124-7B", "olmo2-7b"),
        ("Nemotron-4-340B", "nemotron-340b"), ("bert-large-uncased", "bert-large"), ("ViT-Large", "vit-l16"), ("ViT-B/16", "vit-b16"), ("RN50", "resnet50"),
        ("ResNet-50 v1.5", "resnet50"), ("TinyLlama", "tinyllama-1.1b"), ("Llama-4-Scout-17B-16E", "llama4-scout"), ("Phi-3-mini-4k", "phi3-mini"),
        ("OPT-13B", "opt-13b"), ("OPT 1.3B", "opt-1.3b"), ("GPT-3 13B", "gpt3-13b"), ("Qwen2.5-1.5B", "qwen2.5-1.5b"), ("Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("LLaMA-65B", "llama-65b"), ("LLaMA 30B", "llama-33b"), ("CodeLlama-34B", "codellama-34b"), ("Yi-34B", "yi-34b"), ("Qwen-72B", "qwen1.5-72b"),
        ("Qwen2-72B", "qwen2.5-72b"), ("DeepSeek-R1-Distill-Llama-8B", "llama3-8b"), ("DeepSeek-R1", "deepseek-v3"), ("deepseek-llm-67b-base", "deepseek-67b"),
        ("DeepSeek-Coder-33B-Instruct", "deepseek-coder-33b"), ("T5X large", "flan-t5-large"), ("google/t5-v1_1-xl", "flan-t5-xl"), ("T5-large", "t5-large"),
        ("T5 XXL", "flan-t5-xxl"), ("T5X-XXL", "flan-t5-xxl"), ("t5x_base", "flan-t5-base"), ("T5X XL", "flan-t5-xl"), ("T5XL", "flan-t5-xl"), ("resnet50_v1.5", "resnet50"),
        ("Transformer (big)", "transformer-big"), ("BERT (large)", "bert-large"), ("Mistral Large 2", "mistral-large-123b"), ("OLMo-7B", "olmo-7b"),
        ("Qwen3-30B-A3B-Base", "qwen3-30b-a3b"), ("phi-4", "phi4-14b"), ("SSD", "ssd300"), ("GPT-NeoX-20B", "gpt-neox-20b"),
        ("RetinaNet", "retinanet-resnext50"), ("SSD (RetinaNet)", "retinanet-resnext50"), ("SSD-RetinaNet", "retinanet-resnext50"),
        ("RetinaNet (ResNeXt-50)", "retinanet-resnext50"), ("retinanet_resnext50_32x4d_fpn", "retinanet-resnext50"), ("RetinaNet-RX50", "retinanet-resnext50"),
        ("RetinaNet (ResNet-50)", ""), ("retinanet_r50_fpn", ""), ("RetinaNet ResNeXt-101", ""), ("RetinaNet Swin-T", ""),
        ("Llama-3.1-405B-proxy7L", ""), ("Llama-3-70B-cut12L", ""), ("Swin-B", ""), ("7B", ""), ("", ""),
    ],
)  # fmt: skip
def test_names(name: str, found: str) -> None:
    assert shipped_model(name) == found


def test_a_llama_without_its_generation_is_that_of_its_time() -> None:
    assert shipped_model("LLaMA 70B", modern=True) == "llama3-70b" and shipped_model("LLaMA 70B", modern=False) == "llama2-70b"


def test_parameters_stand_in_for_a_size() -> None:
    assert shipped_model("GPT-2", 1_558_000_000) == "gpt2-1.5b" and shipped_model("GPT-3", 175_000_000_000) == "gpt3-175b"
    assert (size_of("GPT 2.7B"), size_of("1T"), size_of("Qwen3-30B-A3B"), size_of("8x7B"), size_of("H100")) == (
        2_700_000_000,
        10**12,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("changes", "layers", "hidden"),
    [
        ({"model_name": "ours", "params": 175_000_000_000}, 96, 12288), ({"model_name": "custom", "params": 10**12, "pp": 8}, 128, 25600),
        ({"model_name": "mine 8.3B", "n_layers": 72}, 72, 3072), ({"model_name": "mine 8.3B", "hidden": 3072}, 72, 3072),
        ({"model_name": "Chinchilla 70B", "tp": None, "pp": None}, 68, 9216), ({"model_name": "Transformer 1T", "model_type": ""}, 132, 25088),
        ({"model_name": "Yours-34B", "tp": 4, "pp": 4, "gpus": 16}, 56, 7168),
    ],
)  # fmt: skip
def test_parameters_alone_make_a_model_of_their_size(changes: dict[str, object], layers: int, hidden: int) -> None:
    """96 layers of 12288 are GPT-3, 128 of 25600 Megatron-LM's 1T, 72 of 3072 its first 8.3B."""
    notes: list[str] = []
    tree = model_of(row(**(SILENT | changes)), notes)
    assert (tree["layers"], tree["hidden"]) == (layers, hidden) and any("architecture not stated" in note for note in notes)
    model_from(tree)


def test_guessed_heads_share_the_keys_that_are_stated() -> None:
    tree = model_of(row(**(SILENT | {"model_name": "custom", "params": 175_000_000_000, "n_kv_heads": 8, "tp": 4})), [])
    assert tree["heads"] == 96 and tree["kv_heads"] == 8


@pytest.mark.timeout(60)
def test_a_width_that_no_model_has_is_refused_at_once() -> None:
    """Its heads were looked for among all its divisors."""
    with pytest.raises(BadInput, match=r"hidden = 9000000000000 must be a whole number from 1 to 100,000,000"):
        case_of(row(hidden=9 * 10**12, n_heads=None, n_kv_heads=None))


def test_parameters_do_not_tell_a_mixtures_layers() -> None:
    for name in ("MoE 1T", "Switch-C 1.6T", "Foo-30B-A3B", "DeepSeek-V9 700B", "Llama-3.1-405B-proxy"):
        with pytest.raises(Refused, match="no architecture"):
            model_of(row(**(SILENT | {"model_name": name})), [])


def test_a_mixture_by_name_alone_is_run_as_its_recipe_runs_mixtures() -> None:
    """GPT-OSS has experts whether the row counts them or not."""
    bridge = {
        "framework": "Megatron-Bridge",
        "framework_version": "26.04",
        "gpu": "B200",
        "gpus": 8,
        "ep": 8,
        "tp": 1,
        "pp": 1,
        "n_experts": None,
    }
    named = case_of(row(**(SILENT | bridge | {"model_name": "GPT-OSS-20B"})))
    assert named.plan.framework == case_of(row(**(bridge | {"model_name": "GPT-OSS-20B", "n_experts": 32, "top_k": 4}))).plan.framework
    assert named.plan.framework != "megatron-bridge-captured"


def test_adapters_are_trained_whoever_gives_the_sizes() -> None:
    """A shipped model has its adapters too, by task or name; MLPerf's rows are not packed."""
    for changes in ({"task": "PEFT"}, {"task": "finetune (LoRA)"}, {"model_name": "Llama-2-70B LoRA", "task": "finetune"}):
        case = case_of(
            row(
                **(SILENT | {"model_name": "Llama-2-70B", "framework": "NeMo (MLPerf)", "seq_len": 8192, "tp": 4, "sharding": ""} | changes)
            )
        )
        assert case.plan.task == "lora" and isinstance(case.plan.model, dict)
        assert case.plan.model["lora"]["rank"] == 16 and not case.plan.data.document


def test_a_bert_by_name_alone_is_trained_as_the_row_says() -> None:
    tree = model_of(row(**(SILENT | {"model_name": "bert-large-uncased", "model_type": "bert", "task": "finetune (SQuAD)"})), [])
    assert (tree["layers"], tree["hidden"], tree["heads"], tree["head"]) == (24, 1024, 16, "squad")


def test_a_mamba_that_ships_needs_no_pattern() -> None:
    assert model_of(row(model_name="Mamba2-2.7B", model_type="mamba2"), [])["layers"] == 64


@pytest.mark.parametrize(
    ("changes", "layers", "hidden"),
    [
        ({"model_name": "BERT"}, 12, 768), ({"model_name": "BERT-336M"}, 24, 1024), ({"model_name": "BERT (340M)"}, 24, 1024),
        ({"model_name": "BERT", "params": 345_000_000}, 24, 1024), ({"model_name": "BERT 110M"}, 12, 768), ({"model_name": "BERT-L"}, 24, 1024),
        ({"model_name": "BERT (Large)"}, 24, 1024), ({"model_name": "BERT 2.5B", "tp": 1, "pp": 1}, 31, 2560),
    ],
)  # fmt: skip
def test_parameters_tell_which_bert_is_meant(changes: dict[str, object], layers: int, hidden: int) -> None:
    tree = model_of(row(**(SILENT | {"model_type": "bert"} | changes)), [])
    assert (tree["family"], tree["layers"], tree["hidden"]) == ("encoder", layers, hidden)


@pytest.mark.parametrize(
    "name",
    ["SSD (ResNet-34)", "SSD-MobileNet v2", "RetinaNet (ResNet-50)", "Mask R-CNN (ResNeXt-101-32x8d)", "Faster R-CNN (ResNeXt101-64x4d)"],
)
def test_detectors_on_other_backbones_are_not_the_one_that_ships(name: str) -> None:
    with pytest.raises(Refused, match="no architecture"):
        model_of(row(**(SILENT | {"model_name": name, "model_type": "cnn detection", "batch_unit": "images"})), [])


@pytest.mark.parametrize(
    ("name", "note", "framework", "side"),
    [
        ("DiT-XL/2 512", "", "PyTorch", 512), ("DiT-XL/2", "512x512", "PyTorch", 512), ("DiT-XL/2", "", "PyTorch", None), ("SDXL", "512 px", "PyTorch", 512),
        ("ResNet-50", "224x224 ImageNet", "PyTorch", None), ("ResNet-50", "160 x 160", "PyTorch", 160), ("ResNet-152", "", "PyTorch", None),
        ("SSD300", "300x300", "PyTorch", None), ("EfficientNet-B4 (448x448)", "", "PyTorch", 448), ("FLUX.1-schnell", "", "torchtitan", 256),
        ("flux.1-dev", "", "torchtitan", 512), ("FLUX.1-dev 1024px", "", "torchtitan", None), ("FLUX.1-dev", "", "diffusers", None),
    ],
)  # fmt: skip
def test_pictures_have_the_side_that_a_row_states(name: str, note: str, framework: str, side: int | None) -> None:
    """Of a shipped model, which has one of its own: None."""
    pictures = row(**(SILENT | {"model_name": name, "model_type": "", "arch_note": note, "framework": framework, "batch_unit": "images"}))
    notes: list[str] = []
    tree = model_of(pictures, notes)
    shipped = model_of(msgspec.structs.replace(pictures, model_name=name.partition(" ")[0], arch_note="", framework=""), [])
    assert tree.get("image") == (side or shipped.get("image"))
    assert any(note.startswith("pictures of") for note in notes) == (side is not None)
