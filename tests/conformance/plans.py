"""Plans that stock PyTorch runs as they are, over small models: the grid of the conformance tests.

Sizes divide evenly: FSDP2 pads what does not (the one row of ViT's class token, or of a gate), and the program counts no padding. Left out,
since program and stock differ: clip without FSDP under tp (DTensor sums each norm's gradient once more for its part of the global norm).
"""

from __future__ import annotations

from typing import Any

from sim.files.planfile import load_plan
from sim.plan import Plan

LLAMA = {"family": "decoder", "layers": 3, "hidden": 64, "heads": 8, "kv_heads": 4, "ffn": 128, "vocab": 256}
GPT = {
    "family": "decoder", "layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 256,
    "position": "learned", "activation": "gelu", "norm": "layernorm", "bias": True, "tied": True,
}  # fmt: skip
MLP = {"family": "mlp", "widths": [64, 128, 128, 64]}
NEOX = GPT | {"position": "rope", "rotary": 0.25, "parallel_block": True, "two_norms": True, "tied": False}
OLMO2 = LLAMA | {"qk_norm": True, "qk_norm_whole": True, "pre_norms": False, "post_norms": True}
BERT = {"family": "encoder", "layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "positions": 32}
SQUAD = BERT | {"head": "squad"}
VIT = {"family": "vit", "layers": 2, "hidden": 64, "heads": 4, "image": 32, "patch": 8, "classes": 16}
RESNET = {"family": "cnn", "arch": "resnet", "depth": 18, "image": 64, "classes": 16}
VGG = {"family": "cnn", "arch": "vgg", "depth": 11, "image": 32, "classes": 16, "batch_norm": False}
EFFICIENT = {"family": "efficientnet", "image": 64, "classes": 16, "width": 0.5, "depth": 0.5}
NEXT = {"family": "convnext", "depths": [1, 1, 2, 1], "widths": [16, 32, 48, 64], "image": 32, "classes": 16}

MOE = LLAMA | {"moe": {"experts": 8, "top_k": 2, "ffn": 32}}
"""Mixtral's kind; DEEPSEEK's: a first dense layer, shared experts, a correction of the choice; QWEN2's: shared experts with a gate; LATENT: with DeepSeek-V3's attention."""
DEEPSEEK = LLAMA | {"moe": {"experts": 8, "top_k": 2, "ffn": 32, "shared": 64, "correction": True}, "first_dense": 1}
LATENT = DEEPSEEK | {"mla": {"q_lora": 48, "kv_lora": 32, "rope": 8, "nope": 16, "value": 24}}
QWEN2 = LLAMA | {"moe": {"experts": 4, "top_k": 1, "ffn": 64, "shared": 64, "shared_gate": True, "router_bias": True}, "moe_every": 2}
EXPERTS = [MOE, DEEPSEEK, QWEN2, LATENT]


def plan(model: dict[str, Any], micros: int = 1, **parallel: Any) -> Plan:
    """`micros` micro-batches of one sample; sections of the plan other than [parallel] as their own keywords."""
    sections = {key: parallel.pop(key) for key in ("comm", "optimizer", "memory", "update", "precision", "framework") if key in parallel}
    ranks = parallel.get("dp_replicate", 1) * parallel.get("dp_shard", 1)
    tree = {"model": model, "seq_len": 16, "precision": "fp32", "batch": {"global": micros * ranks}, "parallel": parallel}
    return load_plan(tree | sections)


SMALL = {"bucket": "64 KiB"}
T5 = {"family": "encdec", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 256, "relative": 32, "norm": "rmsnorm", "bias": False}
TRANSFORMER = T5 | {"relative": 0, "norm": "layernorm", "pre_norm": False, "bias": True, "tied": False, "target": 24}
UNET = {"family": "unet", "width": 8, "levels": 2, "image": 32}
FAMILIES = [NEOX, OLMO2, BERT, SQUAD, VIT, RESNET, RESNET | {"depth": 50, "se": True}, VGG, EFFICIENT, NEXT, T5, TRANSFORMER, UNET]
FUSED = {"implementation": "fused"}

DDP = [
    *(
        plan(model, micros, dp_replicate=ranks, comm=comm)
        for model in (LLAMA, GPT, MLP)
        for ranks, micros in ((2, 1), (4, 3))
        for comm in ({}, SMALL)
    ),
    plan(LLAMA, dp_replicate=2, comm={"overlap": False}),
    plan(LLAMA, dp_shard=4, zero=0, comm=SMALL),
    plan(MLP, dp_replicate=64),
    plan(LLAMA, dp_replicate=2, optimizer={"clip": True}),
    plan(LLAMA, dp_replicate=2, precision="bf16", comm=SMALL),
    *(plan(model, micros, dp_replicate=2, comm=SMALL) for model in FAMILIES for micros in (1, 2)),
    *(plan(model, dp_replicate=2, framework="pytorch-amp", precision="bf16", comm=SMALL) for model in (GPT, RESNET)),
    plan(RESNET, dp_replicate=2, precision="bf16"),
    *(plan(model, micros, dp_replicate=2, comm=SMALL | {"reduce_dtype": "bf16"}) for model in (LLAMA, MLP) for micros in (1, 2)),
    plan(GPT, dp_replicate=4, comm={"reduce_dtype": "fp16"}),
    plan(GPT, dp_replicate=2, framework="pytorch-amp", precision="bf16", comm={"reduce_dtype": "bf16"}),
]
FSDP = [
    *(
        plan(model, micros, dp_shard=4, zero=3, reshard_after_forward=again)
        for model in (LLAMA, GPT, MLP)
        for again in (True, False)
        for micros in (1, 2)
    ),
    *(plan(model, 2, dp_shard=8, zero=3, reshard_after_forward=4) for model in (LLAMA, GPT, MLP)),
    plan(LLAMA, dp_shard=4, zero=3, reshard_after_forward=2, framework="torchtitan", precision="bf16"),
    plan(LLAMA, dp_shard=4, zero=3, reshard_after_forward=2, memory={"recompute": "full"}),
    plan(LLAMA, dp_shard=16, zero=3),
    plan(LLAMA, dp_shard=2, zero=3, precision="bf16"),
    plan(LLAMA, 3, dp_shard=2, zero=3, optimizer={"name": "sgd"}),
    plan(LLAMA, dp_shard=2, zero=3, optimizer={"name": "adagrad"}),
    plan(GPT, dp_shard=2, zero=3, optimizer={"name": "momentum"}),
    plan(LLAMA, dp_shard=2, zero=3, memory={"recompute": "full"}),
    plan(GPT, 2, dp_shard=2, zero=3, memory={"recompute": "full"}),
    plan(LLAMA, dp_shard=2, zero=2),
    plan(GPT, 3, dp_shard=4, zero=2),
    plan(LLAMA, dp_shard=2, zero=3, optimizer={"clip": True}),
    *(plan(model, dp_shard=2, zero=3, comm=SMALL) for model in FAMILIES if model is not VIT),
    plan(BERT, 2, dp_shard=2, zero=3, memory={"recompute": "full"}),
    plan(NEXT, dp_shard=2, zero=2),
    *(plan(LLAMA, 2, dp_shard=4, zero=zero, comm={"reduce_dtype": dtype}) for zero, dtype in ((2, "bf16"), (3, "fp16"))),
    plan(LLAMA, dp_shard=2, zero=3, precision="bf16", comm={"reduce_dtype": "fp32"}),
    *(plan(model, 2, dp_shard=2, zero=3, precision="bf16", framework="torchtitan") for model in (LLAMA, RESNET)),
]
HSDP = [
    *(plan(model, micros, dp_replicate=2, dp_shard=shards, zero=3) for model in (LLAMA, MLP) for shards, micros in ((2, 1), (4, 2))),
    plan(GPT, dp_replicate=8, dp_shard=8, zero=3, reshard_after_forward=False),
    plan(LLAMA, 2, dp_replicate=2, dp_shard=4, zero=3, reshard_after_forward=2),
    plan(LLAMA, dp_replicate=2, dp_shard=2, zero=3, optimizer={"clip": True}),
    plan(LLAMA, dp_replicate=2, dp_shard=2, zero=3, comm={"reduce_dtype": "bf16"}),
]
TP = [
    *(plan(LLAMA, micros, tp=tp, sequence_parallel=split) for split in (True, False) for tp, micros in ((2, 1), (2, 3), (4, 1))),
    plan(LLAMA, tp=2, optimizer={"name": "sgd"}),
    plan(LLAMA, tp=2, optimizer={"name": "adagrad"}),
    plan(LLAMA, tp=2, optimizer={"name": "adam"} | FUSED),
    plan(LLAMA, tp=4, precision="bf16"),
    plan(LLAMA | {"norm": "layernorm", "fused_qkv": False, "activation": "gelu"}, tp=2),
    plan(LLAMA, tp=2, memory={"recompute": "full"}),
    plan(LLAMA, 2, tp=4, sequence_parallel=False, memory={"recompute": "full"}),
]
FSDP_TP = [
    *(
        plan(LLAMA, micros, dp_shard=shards, tp=tp, zero=3, sequence_parallel=split)
        for split in (True, False)
        for shards, tp, micros in ((2, 2, 1), (4, 2, 2), (2, 4, 1))
    ),
    plan(LLAMA, dp_shard=2, tp=2, zero=3, reshard_after_forward=False),
    plan(LLAMA, dp_shard=2, tp=2, zero=3, placement="dp,cp,tp,pp"),
    plan(LLAMA, dp_shard=2, tp=2, zero=3, precision="bf16"),
    plan(LLAMA, dp_shard=2, tp=2, zero=3, optimizer={"name": "adam"} | FUSED),
    plan(LLAMA | {"heads": 16, "kv_heads": 8}, dp_shard=8, tp=8, zero=3),
    plan(LLAMA, dp_replicate=2, dp_shard=2, tp=2, zero=3),
    plan(LLAMA, 2, dp_replicate=2, dp_shard=4, tp=4, zero=3, sequence_parallel=False),
    plan(LLAMA, 2, dp_shard=2, tp=2, zero=3, memory={"recompute": "full"}),
    plan(LLAMA, 2, dp_shard=2, tp=2, zero=2),
    plan(LLAMA, dp_shard=2, tp=2, zero=3, optimizer={"clip": True}),
]
MIXTURES = [
    *(plan(model, micros, dp_replicate=2, comm=SMALL) for model in EXPERTS for micros in (1, 2)),
    *(plan(model, dp_shard=4, zero=zero) for model in (MOE, DEEPSEEK, LATENT) for zero in (2, 3)),
    plan(DEEPSEEK, 2, dp_replicate=2, dp_shard=2, zero=3),
    plan(MOE, dp_shard=2, zero=3, memory={"recompute": "full"}),
    plan(DEEPSEEK, dp_shard=2, zero=3, optimizer={"clip": True}),
    plan(MOE, 2, dp_shard=2, zero=3, framework="torchtitan"),
    plan(MOE, dp_replicate=2, precision="bf16"),
    *(plan(MOE, 4, pp=2, schedule=name) for name in ("1f1b", "zb-h1")),
    plan(DEEPSEEK, 2, pp=2, dp_shard=2, zero=3),
    plan(LATENT, 2, pp=2, dp_shard=2, zero=3, memory={"recompute": "full"}),
]
LOCAL = [plan(LLAMA, dp_replicate=2, update={"mode": "local", "every": 2} | outer) for outer in ({}, {"outer": "nesterov"})]
DEEP = LLAMA | {"layers": 5}
UNTIED = GPT | {"layers": 4, "tied": False}
PP = [
    *(plan(DEEP, micros, pp=pp, schedule=name) for name in ("gpipe", "1f1b") for pp, micros in ((2, 2), (4, 5))),
    *(plan(DEEP, micros, pp=2, schedule="interleaved", virtual_stages=2) for micros in (4, 3)),
    plan(DEEP, 3, pp=2, stages=(3, 2)),
    plan(UNTIED, 2, pp=2, optimizer={"clip": True}),
    plan(DEEP, 2, pp=2, memory={"recompute": "full"}),
    plan(DEEP, 2, pp=2, precision="bf16"),
    *(plan(DEEP, 3, pp=2, dp_replicate=2, comm=comm) for comm in ({}, SMALL)),
    *(plan(DEEP, 4, pp=pp, dp_shard=shards, zero=zero) for pp, shards, zero in ((2, 2, 3), (2, 4, 2), (4, 2, 3))),
    plan(DEEP, 4, pp=2, dp_shard=2, zero=3, schedule="interleaved", virtual_stages=2),
    plan(UNTIED, 2, pp=2, dp_replicate=2, dp_shard=2, zero=3),
    *(plan(DEEP, 2, pp=2, tp=tp, sequence_parallel=split, schedule=name) for tp, split, name in ((2, True, "1f1b"), (4, False, "gpipe"))),
    plan(DEEP, 2, pp=2, tp=2, schedule="interleaved", virtual_stages=2),
    plan(DEEP, 2, pp=2, tp=2, dp_shard=2, zero=3),
    plan(DEEP, 2, pp=2, tp=2, dp_shard=4, zero=3, sequence_parallel=False, placement="pp,tp,cp,dp"),
    plan(DEEP, 4, pp=4, tp=2, dp_replicate=2, dp_shard=4, zero=3),
    plan(DEEP, 2, pp=2, dp_shard=2, zero=3, optimizer={"clip": True}),
    plan(DEEP, 4, pp=2, dp_shard=2, zero=3, comm={"reduce_dtype": "bf16"}),
    plan(DEEP, 3, pp=2, dp_replicate=2, comm={"reduce_dtype": "bf16"}),
]
PLANS = DDP + FSDP + HSDP + TP + FSDP_TP + MIXTURES + LOCAL + PP


def title(given: Plan) -> str:
    """`decoder-learned dp_shard=4 zero=3 micros=2`."""
    p, model = given.parallel, given.model
    assert isinstance(model, dict)
    axes = [f"{name}={getattr(p, name)}" for name in ("dp_replicate", "dp_shard", "zero", "tp", "pp") if getattr(p, name) not in (1, None)]
    return " ".join(
        [
            f"{model['family']}-{model.get('position', 'rope') if model['family'] == 'decoder' else model.get('arch', '')}",
            *axes,
            f"micros={given.microbatches}",
        ]
    )


REPLICAS: list[dict[str, Any]] = [{"dp_shard": 4}, {"dp_shard": 2, "dp_replicate": 2}]
SPREAD = [
    plan(model, micros, framework=framework, optimizer={"clip": False}, ep=2, **parallel)
    for framework in ("pytorch", "torchtitan")
    for model, micros in ((MOE, 1), (DEEPSEEK, 2))
    for parallel in (
        {"dp_shard": 2, "zero": 3},
        {"dp_shard": 4, "zero": 2},
        {"dp_shard": 4, "zero": 3},
        {"dp_shard": 2, "dp_replicate": 2, "zero": 3},
    )
] + [
    plan(MOE | {"moe": {"experts": 16, "top_k": 2, "ffn": 32}}, ep=8, dp_shard=16, zero=3),
    plan(MOE, ep=2, dp_shard=4, zero=3, memory={"recompute": "full"}),
    *(
        plan(DEEPSEEK | {"layers": 4}, 4, pp=2, ep=2, zero=3, schedule=name, **more)
        for name in ("1f1b", "zb-h1", "zb-v")
        for more in REPLICAS
    ),
    plan(DEEPSEEK | {"layers": 5}, 4, pp=2, ep=2, dp_shard=4, zero=3, virtual_stages=2, schedule="interleaved"),
    plan(MOE | {"layers": 4}, 3, pp=2, ep=2, dp_shard=4, zero=3, schedule="gpipe", framework="torchtitan", optimizer={"clip": False}),
]
"""Expert parallelism. Left out: clip, whose norms over `ep` are one message more in stock."""
