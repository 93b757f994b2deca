"""What stock training builds is what is described: the same blocks, and in each the same parameters in the same order, of every preset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.tensor import Shard  # noqa: E402

from executor.training.examples import example_of  # noqa: E402
from executor.training.limits import check_stock  # noqa: E402
from executor.training.models.build import loss_of, model_for  # noqa: E402
from executor.training.models.experts import Product, Router  # noqa: E402
from executor.training.models.parts import Core  # noqa: E402
from executor.training.parallelize import placement  # noqa: E402
from executor.training.trainer import sequence_length  # noqa: E402
from executor.validation.gpu_cases import cases  # noqa: E402
from sim.files.planfile import load_plan  # noqa: E402
from sim.framework.chosen import framework_of  # noqa: E402
from sim.framework.framework import load_framework  # noqa: E402
from sim.model import Shape, describe  # noqa: E402
from sim.model.load import model_from, models  # noqa: E402
from sim.model.specs.decoder import Decoder  # noqa: E402
from sim.plan import Plan  # noqa: E402
from sim.setting.bind import model_of, network_of  # noqa: E402
from tests.conformance import products  # noqa: E402
from tests.conformance.plans import (  # noqa: E402
    BERT,
    DEEPSEEK,
    EFFICIENT,
    GPT,
    LATENT,
    LLAMA,
    MOE,
    NEOX,
    NEXT,
    OLMO2,
    QWEN2,
    RESNET,
    SQUAD,
    T5,
    TRANSFORMER,
    UNET,
    VGG,
    VIT,
)
from topologies.errors import Refused  # noqa: E402

ROOT = Path(__file__).parents[2]


def _known() -> list[str]:
    found = []
    for name in models():
        plan = load_plan({"model": name})
        try:
            check_stock(plan, model_of(plan))
        except Refused:
            continue
        found.append(name)
    return found


def described(plan: Plan) -> dict[str, list[int]]:
    """Elements of each parameter of each block."""
    blocks = network_of(plan, framework_of(plan)).blocks
    return {name: [size for part in block.parts for size in part.tensors] for name, block in blocks}


def built(plan: Plan) -> dict[str, list[int]]:
    """The same of the torch model; a tied head has no table of its own."""
    spec = model_of(plan)
    with torch.device("meta"):
        model = model_for(spec, framework_of(plan), sequence_length(plan, spec))
    seen: set[int] = set()
    found: dict[str, list[int]] = {}
    for name, block in model.named_children():
        own = [p for p in block.parameters() if id(p) not in seen]
        seen |= {id(p) for p in own}
        found[name.replace("__", ".")] = [p.numel() for p in own]
    return found


KNOWN = _known()


def test_readme_says_how_many_presets_are_known() -> None:
    assert f"Stock training knows {len(KNOWN)} of {len(models())} shipped models" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.no_cover
@pytest.mark.parametrize("name", KNOWN)
def test_parameters_are_those_of_the_description(name: str) -> None:
    plan = load_plan({"model": name})
    model, network = built(plan), described(plan)
    assert list(model) == list(network)
    for block, sizes in network.items():
        assert model[block] == sizes, block


def test_norms_without_weights_have_no_biases() -> None:
    plan = load_plan({"model": GPT | {"norm_weight": False}, "seq_len": 16, "precision": "fp32"})
    assert built(plan) == described(plan)


TOWER = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "image": 32, "patch": 8}
SEEING: dict[str, Any] = {"family": "vlm", "decoder": LLAMA | {"tied": True}}
SMALL: dict[str, dict[str, Any]] = {
    "gpt": GPT, "llama": LLAMA, "neox": NEOX, "olmo2": OLMO2, "bert": BERT, "roberta": BERT | {"head": "masked", "types": 0}, "squad": SQUAD, "vit": VIT,
    "resnet": RESNET, "resnet-50": RESNET | {"depth": 50}, "resnext": RESNET | {"depth": 50, "groups": 32, "width": 4}, "se": RESNET | {"depth": 50, "se": True},
    "t5": T5 | {"activation": "geglu"}, "transformer": TRANSFORMER, "unet": UNET, "vgg": VGG, "alexnet": {"family": "cnn", "arch": "alexnet", "image": 64, "classes": 10}, "cifar": {"family": "cnn", "arch": "cifar"},
    "efficientnet": EFFICIENT, "efficientnet-v2": {"family": "efficientnet", "variant": "v2-s", "image": 32, "classes": 10}, "convnext": NEXT,
    "gemma": LLAMA | {"post_norms": True, "tied": True, "activation": "geglu", "qk_norm": True},
    "gemma2": LLAMA | {"post_norms": True, "capped_scores": True, "capped_logits": True}, "falcon": LLAMA | {"parallel_block": True, "norm": "layernorm", "head_bias": True, "kv_heads": 1},
    "mixtral": MOE, "deepseek": DEEPSEEK, "qwen2-moe": QWEN2,
    "deepseek-v3": LATENT, "deepseek-v2-lite": LLAMA | {"mla": LATENT["mla"] | {"q_lora": 0}},
    "llava": SEEING | {"frozen": ["tower"], "tower": TOWER | {"class_token": True, "first_norm": True, "last_norm": "class", "unread": 1, "activation": "quick_gelu"}},
    "gemma3": SEEING | {"tower": TOWER | {"last_norm": "patches", "image": 32}, "projector": {"pool": 2, "norm": "rmsnorm", "layers": 1, "bias": False}},
    "qwen-vl": SEEING | {
        "tower": TOWER | {"activation": "swiglu", "norm": "rmsnorm", "frames": 2, "position": "rope", "window": 4, "full_every": 2},
        "projector": {"merge": 2, "norm": "rmsnorm", "inner": 256}, "frozen": ["tower", "projector"]},
    "qwen3-vl": SEEING | {
        "tower": TOWER | {"layers": 3, "frames": 2, "position": "rope", "grid": 6, "patch_bias": True}, "frozen": ["tower"],
        "projector": {"merge": 2, "norm": "layernorm", "inner": 256, "deepstack": [0, 1]}},
    "mllama": {
        "family": "vlm", "decoder": LLAMA | {"layers": 3, "mixers": "*X*", "further_rows": 8}, "images": 2,
        "tower": TOWER | {"layers": 3, "class_token": True, "attention_bias": False, "tiles": 2, "ratios": 3, "gated_layers": 1},
        "projector": {"layers": 1, "beside": [0]}},
    "intern": SEEING | {
        "tower": TOWER | {"class_token": True, "layer_scale": True}, "images": 2, "frozen": ["decoder"],
        "projector": {"merge": 2, "norm": "layernorm", "joined_norm": True}},
    "bloom": GPT | {"embed_norm": True, "dropout": 0.1}, "phi": LLAMA | {"rotary": 0.5, "fused_qkv": False},
    "granite": LLAMA | {"tied": True, "scaled": ["embedding", "mixers", "head", "logits"]},
}  # fmt: skip


PICTURES = ("cnn", "efficientnet", "convnext", "unet")
"""Families without attention."""


def _ways(model: dict[str, Any]) -> tuple[str, ...]:
    """Of running attention; torch bounds no scores in a fused kernel."""
    return ("math",) if model["family"] in PICTURES or model.get("capped_scores") else ("flash", "math")


@pytest.mark.no_cover
@pytest.mark.parametrize(("name", "attention"), [(name, kind) for name in SMALL for kind in _ways(SMALL[name])])
def test_a_gradient_for_every_parameter(name: str, attention: str) -> None:
    plan = load_plan({"model": SMALL[name], "seq_len": 16, "precision": "fp32", "batch": {"micro": 2}, "attention": attention})
    spec = model_of(plan)
    check_stock(plan, spec)
    seq = sequence_length(plan, spec)
    torch.manual_seed(0)
    model = model_for(spec, framework_of(plan), seq)
    pairs = [example_of(spec, seq, i) for i in range(2)]
    output = model(torch.stack([x for x, _ in pairs]))
    loss = loss_of(spec, output, torch.stack([y for _, y in pairs]))
    loss.backward()
    assert torch.isfinite(loss)
    for path, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert path.endswith("router.correction.weight") or getattr(spec, "frozen", ())
            continue
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), path
    if isinstance(spec, Decoder):  # no token sees a later one
        ids = pairs[0][0][None]
        other = ids.clone()
        other[0, -1] = (other[0, -1] + 1) % spec.vocab
        model.eval()
        first, second = model(ids), model(other)
        assert torch.equal(first[:, :-1], second[:, :-1]) and not torch.equal(first[:, -1], second[:, -1])


@pytest.mark.parametrize("name", [name for name in SMALL if SMALL[name]["family"] in ("decoder", "vlm") and name != "qwen-vl"])
def test_products_are_those_of_the_description(name: str) -> None:
    """Attention is written out: fused, its causal half is counted once by us and whole by torch. (Windows, which qwen-vl has, we then count whole.)"""
    plan = load_plan({"model": SMALL[name], "seq_len": 16, "precision": "fp32", "batch": {"micro": 2}, "attention": "math"})
    assert products.described(plan) == products.run(model_for(model_of(plan), framework_of(plan), products.SEQ))


@pytest.mark.parametrize("model", [MOE, DEEPSEEK, QWEN2])
def test_every_expert_gets_as_many_rows(model: dict[str, Any]) -> None:
    plan = load_plan({"model": model, "seq_len": 16, "precision": "fp32", "batch": {"micro": 2}})
    spec = model_of(plan)
    assert isinstance(spec, Decoder) and spec.moe is not None
    router = Router(spec.hidden, spec.moe)
    weights, tokens, ends = router(torch.randn(32, spec.hidden))
    assert ends.tolist() == [32 * spec.moe.top_k // spec.moe.experts * (i + 1) for i in range(spec.moe.experts)]
    each = [set(part.tolist()) for part in tokens.tensor_split(ends[:-1].tolist())]
    assert all(sum(token in rows for rows in each) == spec.moe.top_k for token in range(32)), "of different experts each"
    sums = torch.zeros(32).index_add(0, tokens, weights[:, 0])
    assert torch.allclose(sums, torch.ones(32)) == (spec.moe.top_k > 1)


def test_experts_are_shared_out_whole_where_their_number_allows() -> None:
    whole, rows = Product(8, 4, (6,)), Product(6, 4, (8,))
    token = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1, 1, 8))])
    place = placement(torch.nn.ModuleList([whole, rows, token]), 4)
    assert place(whole.each[0]) is None
    assert place(rows.each[0]) == Shard(1)
    assert place(token[0]) is None, "a class token is nobody's expert"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": MOE, "framework": "megatron-bridge"}, "keeps each expert's weights apart"),
        ({"model": MOE, "framework": "pytorch-amp"}, "does not reach grouped_mm"),
        ({"model": MOE, "parallel": {"capacity": 1.0}}, "drops and pads nothing"),
        ({"model": MOE, "parallel": {"tp": 2}}, "under tensor parallelism"),
        ({"model": MOE | {"moe": MOE["moe"] | {"ffn": 12}}}, "multiples of 8 as hidden and moe.ffn"),
        ({"model": MOE | {"moe": MOE["moe"] | {"limited": True}}}, "`moe.limited`"),
    ],
)
def test_experts_refused_with_a_reason(more: dict[str, Any], words: str) -> None:
    plan = load_plan({"seq_len": 16, "precision": "bf16", "batch": {"micro": 2}} | more)
    with pytest.raises(Refused, match=words):
        check_stock(plan, model_of(plan))


@pytest.mark.parametrize("name", cases(8))
def test_no_gpu_plan_drops_out_inside_of_fused_attention(name: str) -> None:
    """There torch takes other kernels than those that are timed and played, which drop nothing."""
    plan = cases(8)[name].plan
    spec = model_of(plan)
    with torch.device("meta"):
        model = model_for(spec, framework_of(plan), sequence_length(plan, spec))
    assert {part.dropout for part in model.modules() if isinstance(part, Core)} <= {0.0}


def test_layers_that_see_all_keys_are_rotated_as_the_model_says() -> None:
    """Command R7B: every fourth layer is not."""
    spec = model_from({"base": "command-r7b", "layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256, "vocab": 500})
    framework = load_framework("pytorch")
    described = describe(spec, Shape(micro=1, seq=16, precision="fp32"), framework)
    predicted = {name: any(part.rope for part in block.parts) for name, block in described.blocks if block.kind == "layer"}
    blocks = dict(model_for(spec, framework, 16).named_children())
    trained = {name: blocks[name].rope is not None for name in predicted}
    assert trained == predicted == {"L0": True, "L1": True, "L2": True, "L3": False}
