"""Architectures from a row's columns and name: encoders, pictures, mixtures, and blanks that the name fills."""

from __future__ import annotations

from typing import Any

import pytest

from sim.accuracy.architecture.blanks import whole_name
from sim.accuracy.architecture.models import model_of
from sim.framework.framework import Framework
from sim.model import Shape, describe
from sim.model.load import model_from
from tests.null.accuracy.test_names import SILENT
from tests.null.accuracy.test_plans import row

PLAIN = Framework(name="plain", source="test")


def parameters(**cells: object) -> float:
    """Of the model that a row with these cells is taken for."""
    return describe(model_from(model_of(row(**(SILENT | {"seq_len": 512} | cells)), [])), Shape(micro=1, seq=512), PLAIN).parameters


def sizes(layers: int, hidden: int, heads: int, ffn: int | None, vocab: int | None, **more: object) -> dict[str, Any]:
    return {"n_layers": layers, "hidden": hidden, "n_heads": heads, "ffn_hidden": ffn, "vocab_size": vocab, "activation": "", **more}


@pytest.mark.parametrize(
    ("cells", "published"),
    [
        # Encoders (model pages): RoBERTa, ELECTRA's discriminator, and BERT by its parameters or MLPerf's name.
        (sizes(24, 1024, 16, 4096, 50265, model_name="RoBERTa-large", model_type="roberta"), 355e6),
        (sizes(24, 1024, 16, 4096, 30522, model_name="ELECTRA-large", model_type="electra"), 335e6),
        ({"model_name": "BERT", "model_type": "bert", "params": 336_000_000}, 336e6),
        ({"model_name": "BERT", "model_type": "bert", "framework": "PyTorch (MLPerf)"}, 336e6),
        ({"model_name": "BERT", "model_type": "bert"}, 110e6),
        # T5 and its kin by columns (Raffel et al. 2019; config.json): heads of T5-11B are as wide as the row says.
        (sizes(24, 1024, 128, 65536, 32128, model_name="T5-11B", model_type="t5", head_dim=128), 11.3e9),
        (sizes(24, 2048, 32, 5120, None, model_name="mT5-XL", model_type="mt5"), 3.74e9),
        (sizes(24, 1024, 16, 2816, None, model_name="T5 v1.1 large", model_type="t5"), 783e6),
        (sizes(24, 1024, 16, 4096, 50265, model_name="BART-large", model_type="bart", params=406_000_000), 406e6),
    ],
)  # fmt: skip
def test_models_with_an_encoder(cells: dict[str, Any], published: float) -> None:
    assert parameters(**cells) == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # timm's and torchvision's tables
        ("vit_small_patch16_224", 22.05e6), ("DeiT-S", 22.05e6), ("DeiT-Ti", 5.72e6), ("vit_base_patch16_384", 86.86e6), ("ViT-L/16", 304.3e6), ("ViT-B/32", 88.2e6),
        ("ViT-g/14", 1.01e9), ("ViT-G/14", 1.84e9), ("vit_huge_patch14_224", 632e6), ("ResNeXt101-64x4d", 83.46e6), ("wide_resnet50_2", 68.88e6),
        ("wide_resnet101_2", 126.9e6), ("vgg19_bn", 143.68e6), ("VGG-16", 138.36e6),
    ],
)  # fmt: skip
def test_pictures_by_the_names_of_libraries(name: str, published: float) -> None:
    assert parameters(model_name=name, model_type="", batch_unit="images", seq_len=None) == pytest.approx(published, rel=0.01)


def test_a_vision_transformers_columns_win_over_its_name() -> None:
    tree = model_of(row(**(SILENT | sizes(24, 1024, 16, 4096, None, model_name="ViT-custom", model_type="vit", arch_note="384x384"))), [])
    assert (tree["layers"], tree["hidden"], tree["image"]) == (24, 1024, 384)


@pytest.mark.parametrize(
    ("cells", "published"),
    [
        # DeepSeek's first models are Llamas; the mixtures have shared experts and dense first layers, which notes say in words or the name knows.
        (sizes(95, 8192, 64, 22016, 102400, n_kv_heads=8, model_name="deepseek-llm-67b", model_type="llama"), 67.4e9),
        (sizes(61, 7168, 128, 18432, 129280, model_name="DeepSeek-V3", model_type="deepseek_v3", n_experts=256, top_k=8, moe_ffn_hidden=2048,
               arch_note="first 3 layers dense; 1 shared expert; MLA"), 671e9),
        (sizes(61, 7168, 128, 18432, 129280, model_name="DeepSeek-V3", model_type="moe", n_experts=256, top_k=8, moe_ffn_hidden=2048), 671e9),
        (sizes(28, 2048, 16, 10944, 102400, model_name="ours", model_type="moe", n_experts=64, top_k=6, moe_ffn_hidden=1408,
               arch_note="2 shared experts, first layer dense", activation="silu"), 16.4e9),
        (sizes(27, 2048, 16, 10944, 102400, model_name="DeepSeek-V2-Lite", model_type="moe (MLA)", n_experts=64, top_k=6, moe_ffn_hidden=1408), 15.7e9),
        # A model of a family without a description of its own is the shipped one: gated and normed twice, or parallel.
        (sizes(42, 3584, 16, 14336, 256000, model_name="Gemma-2-9B", model_type="gemma2", n_kv_heads=8, head_dim=256), 9.24e9),
        (sizes(44, 6144, 64, 24576, 50432, model_name="GPT-NeoX-20B", model_type="gpt-neox"), 20.55e9),
        (sizes(60, 8192, 128, 32768, 65024, model_name="Falcon-40B", model_type="falcon", n_kv_heads=8, head_dim=64), 41.3e9),
    ],
)  # fmt: skip
def test_models_by_columns_and_name(cells: dict[str, Any], published: float) -> None:
    assert parameters(**cells) == pytest.approx(published, rel=0.01)


def test_blank_sizes_are_those_of_the_named_model_of_that_width() -> None:
    notes: list[str] = []
    cut = row(**(SILENT | {"model_name": "Llama-3-70B-cut12L", "model_type": "llama", "n_layers": 12, "hidden": 8192}))
    tree = model_of(cut, notes)
    assert (tree["heads"], tree["kv_heads"], tree["ffn"], tree["vocab"]) == (64, 8, 28672, 128256)
    assert notes == ["n_heads, vocab_size, n_kv_heads, ffn_hidden not stated: those of llama3-70b"]
    other = model_of(row(**(SILENT | {"model_name": "Llama-3-70B", "model_type": "llama", "n_layers": 12, "hidden": 4096})), [])
    assert other.get("kv_heads", 0) == 0


@pytest.mark.parametrize(("activation", "ffn"), [("SwiGLU", 11008), ("SiLU", 11008), ("ReGLU", 11008), ("GELU", 16384)])
def test_a_blank_width_is_that_of_the_activation_however_it_is_written(activation: str, ffn: int) -> None:
    cells = sizes(32, 4096, 32, None, 50304, model_name="ours", model_type="gpt", activation=activation)
    assert model_of(row(**(SILENT | cells)), [])["ffn"] == ffn


@pytest.mark.parametrize(
    ("changes", "ffn", "norm"),
    [
        ({"activation": "gelu"}, 24576, "layernorm"),
        ({"date": "2022-05"}, 24576, "layernorm"),
        ({"activation": "swiglu"}, 16384, None),
        ({}, 16384, None),
    ],
)
def test_a_decoder_without_a_type_is_a_gpt_where_its_mlp_has_no_gate(changes: dict[str, str], ffn: int, norm: str | None) -> None:
    """48 layers of 6144 are Megatron-LM's 22B; before February 2023 there was no Llama."""
    tree = model_of(row(**(SILENT | sizes(48, 6144, 64, None, 51200, model_name="ours", activation="") | changes)), [])
    assert (tree["ffn"], tree.get("norm")) == (ffn, norm)


def test_names_without_their_cut() -> None:
    names = ("Llama-3.1-405B-proxy7L", "Llama-3-70B-cut12L", "DeepSeek-V3 (4 layers)", "Llama 3 8B")
    assert [whole_name(name) for name in names] == ["Llama-3.1-405B", "Llama-3-70B", "DeepSeek-V3", "Llama 3 8B"]


@pytest.mark.parametrize(
    ("words", "found"),
    [("SiLU", "swiglu"), ("Swish-GLU", "swiglu"), ("GeGLU", "geglu"), ("GELU (tanh)", "gelu"), ("ReLU^2", "relu2"), ("ReLU²", "relu2"), ("ReLU", "relu"), ("gated quick-gelu", "swiglu")],
)  # fmt: skip
def test_activations_by_their_names(words: str, found: str) -> None:
    tree = model_of(row(model_type="gpt", model_name="ours", activation=words), [])
    assert tree.get("activation", "swiglu") == found


@pytest.mark.parametrize(
    ("name", "note", "layers"),
    [("Llama-3.1-405B-proxy7L", "", 7), ("Llama-3.1-405B proxy", "7 of 126 layers", 7), ("Llama-3.1-405B (12 layers)", "", 12), ("Llama-3.1-405B-12L", "", 12)],
)  # fmt: skip
def test_a_cut_model_has_the_layers_that_its_name_or_note_counts(name: str, note: str, layers: int) -> None:
    """They were refused."""
    silent = SILENT | {"model_name": name, "model_type": "llama", "arch_note": note}
    found = model_of(row(**silent), [])
    assert (found["layers"], found["hidden"], found["ffn"]) == (layers, 16384, 53248)
    assert model_of(row(**silent | {"hidden": 16384}), [])["layers"] == layers
