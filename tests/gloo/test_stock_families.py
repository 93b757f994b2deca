"""Stock training of models that are no plain decoders, and under autocast: splits change no loss, profiles have the parts, errors are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.ranks.launch import launch
from executor.stock import Request, run_stock
from sim.files.planfile import load_plan
from sim.plan import Plan
from tests.gloo.bodies_for_stock import Many
from topologies.errors import Refused

pytestmark = pytest.mark.usefixtures("forked")
GPT = {
    "family": "decoder",
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "vocab": 64,
    "ffn": 128,
    "norm": "layernorm",
    "activation": "gelu",
    "bias": True,
}
NEOX = GPT | {"rotary": 0.5, "parallel_block": True, "two_norms": True}
OLMO2 = GPT | {"norm": "rmsnorm", "qk_norm": True, "qk_norm_whole": True, "pre_norms": False, "post_norms": True, "activation": "swiglu"}
BERT = {"family": "encoder", "layers": 2, "hidden": 64, "heads": 4, "vocab": 128, "positions": 32, "dropout": 0.0}
VIT = {"family": "vit", "layers": 2, "hidden": 64, "heads": 4, "image": 32, "patch": 8, "classes": 16}
NEXT = {"family": "convnext", "depths": [1, 1], "widths": [16, 32], "image": 32, "classes": 16, "drop_path": 0.0}
RESNET = {"family": "cnn", "arch": "resnet", "depth": 18, "image": 64, "classes": 16}
T5 = {
    "family": "encdec",
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "ffn": 128,
    "vocab": 64,
    "relative": 32,
    "norm": "rmsnorm",
    "bias": False,
    "dropout": 0.0,
}
MOE = GPT | {
    "norm": "rmsnorm",
    "activation": "swiglu",
    "bias": False,
    "moe": {"experts": 4, "top_k": 2, "ffn": 64, "shared": 64},
    "first_dense": 1,
}
SIGMOID = MOE | {"moe": {"experts": 4, "top_k": 2, "ffn": 64, "correction": True}}
SEEING = {
    "family": "vlm",
    "tower": {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "image": 32, "patch": 8, "class_token": True, "layer_scale": True},
    "projector": {"merge": 2, "norm": "layernorm", "joined_norm": True},
    "decoder": GPT | {"tied": True, "kv_heads": 2},
    "images": 2,
}
DEEP = {
    "family": "vlm",
    "tower": {"layers": 3, "hidden": 64, "heads": 4, "ffn": 128, "image": 32, "patch": 8, "frames": 2, "position": "rope", "grid": 6},
    "projector": {"merge": 2, "norm": "layernorm", "inner": 256, "deepstack": [0, 1]},
    "decoder": GPT | {"tied": True, "kv_heads": 2},
}
TILED = {
    "family": "vlm",
    "tower": {
        "layers": 3,
        "hidden": 64,
        "heads": 4,
        "ffn": 128,
        "image": 32,
        "patch": 8,
        "class_token": True,
        "tiles": 2,
        "ratios": 3,
        "gated_layers": 1,
    },
    "projector": {"layers": 1, "beside": [0]},
    "decoder": GPT | {"layers": 3, "mixers": "*X*", "kv_heads": 2},
}
MODELS = {
    "moe": MOE,
    "sigmoid": SIGMOID,
    "neox": NEOX,
    "olmo2": OLMO2,
    "bert": BERT,
    "squad": BERT | {"head": "squad"},
    "vit": VIT,
    "convnext": NEXT,
    "t5": T5,
    "seeing": SEEING,
    "deepstack": DEEP,
    "tiled": TILED,
    "frozen tower": SEEING | {"frozen": ["tower"]},
}
SPLITS: dict[str, dict[str, Any]] = {"one": {}, "ddp": {"dp_replicate": 2}, "fsdp": {"dp_shard": 2, "zero": 3}}


SPREAD: dict[str, dict[str, Any]] = {
    "two": {"dp_shard": 2, "zero": 3, "ep": 2},
    "four": {"dp_shard": 4, "zero": 3, "ep": 2},
    "kept": {"dp_shard": 4, "zero": 2, "ep": 4},
    "replicas": {"dp_shard": 2, "dp_replicate": 2, "zero": 3, "ep": 2},
    "piped": {"pp": 2, "dp_shard": 2, "zero": 3, "ep": 2},
}
"""Experts shared out, on two and four ranks; in the pipeline by one stage of two."""


def _plan(model: dict[str, Any], parallel: dict[str, Any], **more: Any) -> Plan:
    ranks = parallel.get("dp_shard", 1) * parallel.get("dp_replicate", 1) * parallel.get("pp", 1)
    batch = {"micro": 8 // ranks, "global": 8}
    return load_plan({"model": model, "seq_len": 16, "precision": "fp32", "batch": batch, "parallel": parallel, **more})


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[float]]:
    """Five losses of every model and split; one launch for each number of ranks."""
    cases = {(name, split): _plan(model, SPLITS[split]) for name, model in MODELS.items() for split in SPLITS}
    bf16 = {"framework": "pytorch-amp", "precision": "bf16"}
    cases |= {("amp", split): _plan(GPT, SPLITS[split], **bf16) for split in ("one", "ddp")} | {("amp", "fp32"): _plan(GPT, {})}
    cases[("vit", "ends")] = _plan(VIT, SPLITS["fsdp"], framework="torchtitan", optimizer={"clip": False})
    sgd, clipped = {"optimizer": {"name": "sgd"}}, {"optimizer": {"name": "sgd", "clip": True}}
    for kind, more in (("sgd", sgd), ("clipped", clipped), ("recomputed", sgd | {"memory": {"recompute": "full"}})):
        cases |= {(kind, name): _plan(MOE, split, **more) for name, split in (("one", {}), *SPREAD.items())}
    cases[("resnet", "one")] = _plan(RESNET, {})
    cases[("resnet", "bf16")] = _plan(RESNET, {}, **bf16)
    cases[("amp", "fp16")] = _plan(GPT, {}, framework="pytorch-amp", precision="fp16")  # a CPU convolves fp16 maps by a loop
    found: dict[tuple[str, str], list[float]] = {}
    for ranks in (1, 2, 4):
        mine = [key for key, plan in cases.items() if plan.world == ranks]
        many = Many([Request(cases[key], 4, 1, 0) for key in mine])
        answers = launch("tests.gloo.bodies_for_stock:losses", many, ranks, tmp_path_factory.mktemp("many"), list[list[float]], stall=60)
        for k, key in enumerate(mine):
            known = [answer[k] for answer in answers if answer[k]]
            found[key] = [sum(values) / len(values) for values in zip(*known, strict=True)]
    return found


def test_a_class_token_in_a_unit_of_its_own(losses: dict[tuple[str, str], list[float]]) -> None:
    """torchtitan wraps a model's ends: FSDP2 shares out what is smaller than the number of ranks, too."""
    assert losses["vit", "ends"] == pytest.approx(losses["vit", "one"], rel=2e-4)


@pytest.mark.parametrize("split", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_equal_one_process(name: str, split: str, losses: dict[tuple[str, str], list[float]]) -> None:
    assert len(set(losses[name, "one"])) == 5
    assert losses[name, split] == pytest.approx(losses[name, "one"], rel=1e-3)


@pytest.mark.parametrize("split", SPREAD)
@pytest.mark.parametrize("kind", ["sgd", "clipped", "recomputed"])
def test_experts_train_alike_wherever_they_are(kind: str, split: str, losses: dict[tuple[str, str], list[float]]) -> None:
    """With plain SGD: Adam would hide gradients that are too large or too small by a factor."""
    assert losses[kind, split] == pytest.approx(losses[kind, "one"], rel=1e-5)
    assert losses["sgd", "one"] != pytest.approx(losses["clipped", "one"], rel=1e-4), "nothing was clipped"


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Norms of one step's gradients, by split and parameter."""
    cases = {name: _plan(MOE, split) for name, split in (("one", {}), *SPREAD.items())}
    halves = {"comm": {"reduce_dtype": "fp16"}}
    cases |= {f"{name} in fp16": _plan(MOE, SPREAD[name], **halves) for name in ("two", "four", "replicas")}
    found: dict[str, dict[str, float]] = {}
    for ranks in (1, 2, 4):
        mine = [name for name, plan in cases.items() if plan.world == ranks]
        many, folder = Many([Request(cases[name], 1, 0, 0) for name in mine]), tmp_path_factory.mktemp("gradients")
        answers = launch("tests.gloo.bodies_for_stock:gradients", many, ranks, folder, list[dict[str, float]], stall=60)
        for k, name in enumerate(mine):
            found[name] = {key: value for answer in answers for key, value in answer[k].items()}
    return found


@pytest.mark.parametrize("split", [*SPREAD, "two in fp16", "four in fp16", "replicas in fp16"])
def test_gradients_are_the_mean_over_all_data_ranks(split: str, gradients: dict[str, dict[str, float]]) -> None:
    """Losses of a few steps hardly feel experts' gradients that are too small by a factor."""
    assert {name for name in gradients["one"] if ".moe.up." in name}
    assert gradients[split] == pytest.approx(gradients["one"], rel=1e-2 if "fp16" in split else 1e-5)


def test_copies_of_sharded_units_are_not_the_models(tmp_path: Path) -> None:
    """They stand beside what the prediction calls so, and the exchange of experts beside other communication."""
    found = run_stock(_plan(MOE, SPREAD["two"]), tmp_path, steps=1, warmup=1, profile=1, stall=60)
    fsdp = {"aten::split_with_sizes_copy", "aten::_chunk_cat", "aten::_foreach_copy_"}
    for cls, named in (("grad.copy", fsdp), ("elementwise", set())):
        assert fsdp & {span.name for span in found.trace.spans if span.cls == cls} == named
    assert {span.cls for span in found.trace.spans if span.kind == "collective"} == {"comm"}
    assert any("all_to_all" in span.name for span in found.trace.spans if span.kind == "collective")


def test_autocast_trains_nearly_as_fp32_does(losses: dict[tuple[str, str], list[float]]) -> None:
    assert losses["amp", "one"] == pytest.approx(losses["amp", "fp32"], rel=2e-2)
    assert losses["amp", "one"] != pytest.approx(losses["amp", "fp32"], rel=1e-6), "nothing was cast"
    assert losses["amp", "ddp"] == pytest.approx(losses["amp", "one"], rel=1e-2)
    assert losses["amp", "fp16"] == pytest.approx(losses["amp", "fp32"], rel=2e-3), "its gradients are scaled"
    assert losses["amp", "fp16"] != pytest.approx(losses["amp", "fp32"], rel=1e-7), "nothing was cast"
    assert losses["resnet", "bf16"] == pytest.approx(losses["resnet", "one"], rel=0.1)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (RESNET, {"S0.1.conv1": "conv", "S1.0.downsample.bn": "norm", "S0.0.bn2": "norm", "head.fc": "gemm", "stem.pool": "elementwise"}),
        (
            BERT,
            {"L0.attn.qkv": "gemm", "L1.attn.core": "attention", "embed.norm": "norm", "head.pooler": "gemm", "head.masked": "embedding"},
        ),
        (
            MOE,
            {
                "L1.moe.router": "moe",
                "L1.moe.up": "moe",
                "L1.moe.down": "moe",
                "L1.moe.permute": "moe",
                "L1.moe.shared.up": "gemm",
                "L0.mlp.up": "gemm",
            },
        ),
    ],
)
def test_a_profile_names_the_parts(model: dict[str, Any], said: dict[str, str], tmp_path: Path) -> None:
    plan = load_plan({"model": model, "seq_len": 16, "precision": "fp32", "batch": {"micro": 2}})
    spans = run_stock(plan, tmp_path, steps=2, warmup=1, profile=1, stall=60).trace.spans
    for part, cls in said.items():
        for way in ("fwd", "bwd"):
            found = [span for span in spans if f"/{way}/{part}" in span.id and span.kind == "compute"]
            assert any(span.cls == cls for span in found), (way, part, {span.cls for span in found})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": BERT | {"head": "none"}}, "has no loss"),
        ({"model": "resnet50", "parallel": {"pp": 2}, "batch": {"micro": 1, "global": 2}}, "pipeline parallelism of models of family cnn"),
        ({"model": "dlrm-kaggle"}, "family dlrm"),
        ({"model": {"family": "cnn", "arch": "inception-v3"}}, 'arch = "inception-v3"'),
        ({"model": GPT | {"window": 8}}, "`window`"),
        ({"model": MOE, "parallel": {"dp_replicate": 2, "ep": 2}}, "expert parallelism beside DDP"),
        ({"model": MOE, "parallel": {"dp_shard": 2, "dp_replicate": 2, "zero": 3, "ep": 4}}, "ep = 4 does not divide dp_shard = 2"),
        ({"model": MOE, "parallel": {"dp_shard": 6, "zero": 3, "ep": 2}}, "shards 2 of them over 3 ranks by their rows, evenly alone"),
        ({"model": MOE, "parallel": {"dp_shard": 3, "zero": 2}}, "shards 4 of them over 3 ranks"),
        ({"model": NEOX, "parallel": {"tp": 2}}, "under tensor parallelism"),
        ({"model": GPT, "framework": "pytorch-amp", "precision": "bf16", "parallel": {"dp_shard": 2, "zero": 3}}, "with FSDP2"),
        ({"model": GPT, "framework": "pytorch-amp", "precision": "bf16", "parallel": {"tp": 2}}, "on whole models"),
    ],
)
def test_refused_with_a_reason(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=words):
        run_stock(
            load_plan({"seq_len": 16, "precision": "fp32", "batch": {"micro": 2}} | more), tmp_path, steps=1, warmup=0, profile=0, stall=60
        )
