"""Plans for the table of `executor.validation.gpu_twin`: real models, slices of larger ones, and one plan for each thing that can delay a
GPU.

Plans of `single` run on one GPU, of `node` on all GPUs of a node, of `shared` as ranks that take turns on one GPU. Plans run in the order
of the lists: if time runs out, the rest waits for the next call. `shrunk` makes of each plan a tiny one of the same kind, which a CPU
trains in a second, so that the whole table can be tested without a GPU.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sim.files.planfile import dump_tree, load_plan
from sim.plan import Plan
from sim.setting.bind import model_of

Tree = dict[str, Any]


PADDED = 50304
"""Vocabulary of GPT-2 as nanoGPT and llm.c train it: with 50,257 words, rows do not suit matrix units, and the head takes several times as
long. One plan of the table has that size nevertheless."""


WHOLE: Tree = {"attention_dropout": 0.0}
"""GPT-2 has no dropout in attention, as nanoGPT and llm.c train it, and BERT no dropout at all. Since 2.12, if the rate of dropout in
attention is not a multiple of 1/16, torch uses FlashAttention-2 instead of cuDNN (check_cudnn_dropout,
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp), which is about half as fast on Hopper; programs and the probe have no dropout in
attention."""


def _model(preset: str, layers: int = 0) -> Tree | str:
    """A preset, or its first `layers` layers as a [model] table; GPT-2 with its vocabulary `PADDED`. Attention is `WHOLE`."""
    if preset.startswith("gpt2"):
        return {"base": preset, "vocab": PADDED, "name": f"{preset} padded", **WHOLE}
    if preset.startswith("bert"):
        return {"base": preset, "dropout": 0.0, "name": preset}
    if not layers:
        return preset
    spec = model_of(load_plan({"model": preset}))
    return {**msgspec.to_builtins(spec), "layers": layers, "name": f"{preset} x {layers} layers"}


def _lm(preset: str, micro: int, seq: int, layers: int = 0, parallel: Tree | None = None, **more: Any) -> Tree:
    return {"model": _model(preset, layers), "seq_len": seq, "batch": {"micro": micro}, "parallel": parallel or {}, **more}


THIN: Tree = {
    "family": "decoder", "name": "thin-gpt", "layers": 16, "hidden": 64, "heads": 4, "vocab": 512, "norm": "layernorm",
    "activation": "gelu", "bias": True, "position": "learned", "dropout": 0.0,
}  # fmt: skip
SMALL: Tree = THIN | {"name": "gpt-30m", "layers": 6, "hidden": 512, "heads": 8, "vocab": 16384}
LADDER: Tree = {"family": "mlp", "name": "ladder", "widths": [128] * 65, "activation": "gelu"}
INPUT: Tree = {"family": "mlp", "name": "wide-input", "widths": [24576, 4096, 4096, 4096, 4096, 1000], "loss": "cross_entropy"}
"""A batch of 64 is 6 MB: to copy it from pageable memory takes about as long as to compute with it, from pinned memory a tenth of that. A
loader process needs some milliseconds to make one (it touches new pages of shared memory), so there are `LOADERS` processes: no plan should
wait for them. Steps may wait for the single thread that pins their batches. Each process prefetches one batch: twice as many would not fit
into the 64 MiB of shared memory that containers have."""
LOADERS = 8


def _mlp(model: Tree, micro: int, **more: Any) -> Tree:
    return {"model": model, "batch": {"micro": micro}, **more}


def _input(**data: Any) -> Tree:
    return _mlp(INPUT, 64, precision="fp32", optimizer={"name": "sgd"}, data={"workers": LOADERS, "prefetch": 1, **data})


def single() -> dict[str, tuple[str, Tree]]:
    """Name -> (kind, plan) for one GPU."""
    small: Tree = {"model": SMALL, "seq_len": 512, "batch": {"micro": 8}}
    return {
        "gpt2-124m": ("GPT-2", _lm("gpt2-124m", 8, 1024)),
        "launch-bound": ("launch-bound", {"model": THIN, "seq_len": 64, "batch": {"micro": 4}}),
        "gpt2-1.5b": ("GPT-2", _lm("gpt2-1.5b", 2, 1024)),
        "llama3-8b-4": ("slice of Llama", _lm("llama3-8b", 1, 2048, 4)),
        "bert-base": ("BERT", _lm("bert-base", 32, 128)),
        "resnet50": ("ResNet-50", {"model": "resnet50", "batch": {"micro": 64}, "data": {"workers": LOADERS}}),
        "item-every-step": ("sync points", small | {"output": {"item_every": 1}}),
        "copy-overlap": ("copy beside compute", _input()),
        "pageable": ("pageable copy", _input(pinned=False)),
        "checkpoints": ("checkpoints", small | {"output": {"checkpoint_every": 4, "checkpoint_mode": "full"}}),
        "fsdp2-one-rank": ("FSDP2 on one rank", _lm("gpt2-124m", 8, 1024, parallel={"zero": 3})),
        "gpt2-355m": ("GPT-2", _lm("gpt2-355m", 4, 1024)),
        "llama3.2-1b-8": ("slice of Llama", _lm("llama3.2-1b", 2, 2048, 8)),
        "accumulation": ("gradient accumulation", _lm("gpt2-124m", 4, 1024) | {"batch": {"micro": 4, "global": 16}}),
        "odd-vocabulary": ("rows of an odd number", _lm("gpt2-124m", 8, 1024) | {"model": {"base": "gpt2-124m", **WHOLE}}),
        "recompute": ("layers recomputed", _lm("gpt2-355m", 4, 1024, memory={"recompute": "full"})),
        "ladder": ("launch-bound", _mlp(LADDER, 16)),
        "llama3-70b-1": ("large products", _lm("llama3-70b", 1, 2048, 1, optimizer={"name": "sgd"})),
        "copy-in-line": ("copy on the compute stream", _input(stream="compute")),
        "sync-every-step": ("sync points", small | {"output": {"sync_every": 1, "log_every": 1}}),
        "gpt2-124m-fp32": ("GPT-2 in fp32", _lm("gpt2-124m", 2, 1024, precision="fp32")),
        "llama3.2-3b-6": ("slice of Llama", _lm("llama3.2-3b", 1, 2048, 6)),
        "gpt2-774m": ("GPT-2", _lm("gpt2-774m", 2, 1024)),
        "bert-large": ("BERT", _lm("bert-large", 8, 512)),
        "vit-b16": ("ViT", {"model": "vit-b16", "batch": {"micro": 64}, "data": {"workers": LOADERS}}),
        "gpt2-autocast": ("autocast in bf16", _lm("gpt2-124m", 8, 1024, framework="pytorch-amp")),
        "pythia-410m": ("NeoX", _lm("pythia-410m", 4, 1024)),
        "muon": ("Muon beside AdamW", _lm("gpt2-355m", 4, 1024, optimizer={"name": "muon"})),
        "loader-bound": (
            "input",
            small | {"data": {"source": "disk", "workers": 2, "sample": "256 KiB", "preprocess": "4 ms"}},
        ),
    }  # fmt: skip


def node(gpus: int) -> dict[str, tuple[str, Tree]]:
    """Name -> (kind, plan) for all GPUs of a node; {} for a single GPU."""
    if gpus < 2:
        return {}
    found: dict[str, tuple[str, Tree]] = {
        "ddp-gpt2-124m": ("DDP", _lm("gpt2-124m", 8, 1024, parallel={"dp_replicate": gpus})),
        "fsdp-llama3-8b-4": ("FSDP2", _lm("llama3-8b", 1, 2048, 4, {"dp_shard": gpus, "zero": 3})),
        "ddp-gpt2-1.5b": ("DDP", _lm("gpt2-1.5b", 2, 1024, parallel={"dp_replicate": gpus})),
        "fsdp-llama3.2-1b": ("FSDP2", _lm("llama3.2-1b", 2, 2048, 8, {"dp_shard": gpus, "zero": 3})),
        "zero-2-llama3.2-1b": ("FSDP2, kept after forward", _lm("llama3.2-1b", 2, 2048, 8, {"dp_shard": gpus, "zero": 2})),
        "1f1b": ("PP, 1F1B", _lm("llama3-8b", 1, 2048, 4, {"pp": 2, "schedule": "1f1b"}) | {"batch": {"micro": 1, "global": 6}}),
        "ring": ("CP, ring attention", _lm("llama3-8b", 1, 4096, 2, {"cp": 2})),
        "nccl-two-gpus": ("one all_reduce", load_tree("nccl-two-gpus")),
    }  # fmt: skip
    width = 2 if gpus % 2 == 0 else 1
    if width > 1:
        found["tp-sp"] = ("TP with SP", _lm("llama3-8b", 1, 2048, 4, {"tp": width}))
        if gpus >= 4:
            found["hsdp"] = ("HSDP", _lm("llama3.2-1b", 2, 2048, 8, {"dp_replicate": 2, "dp_shard": gpus // 2, "zero": 3}))
            found["fsdp-tp"] = ("FSDP2 x TP", _lm("llama3-8b", 1, 2048, 4, {"dp_shard": gpus // 2, "tp": 2, "zero": 3}))
    return found


def shared() -> dict[str, tuple[str, Tree]]:
    """Name -> (kind, plan) for ranks that take turns on one GPU and communicate through gloo."""
    base = {"model": SMALL, "seq_len": 512}
    return {
        "two-on-one": ("gloo, 2 ranks on one GPU", base | {"batch": {"micro": 4}, "parallel": {"dp_replicate": 2}}),
        "four-on-one": ("gloo, 4 ranks on one GPU", base | {"batch": {"micro": 2}, "parallel": {"dp_replicate": 4}}),
    }  # fmt: skip


def load_tree(preset: str) -> Tree:
    """A shipped plan as a mapping."""
    return dump_tree(load_plan(preset))


_TINY: dict[str, Tree] = {
    "decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 128, "vocab": 128, "positions": 0},
    "encoder": {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 128},
    "vit": {"layers": 2, "hidden": 64, "heads": 4, "image": 32, "patch": 8, "classes": 10},
    "cnn": {"arch": "resnet", "depth": 18, "image": 64, "classes": 10},
}


def shrunk(tree: Tree) -> Tree:
    """The same plan with a tiny model in fp32: same parallelism, same input path, same output."""
    spec = msgspec.to_builtins(model_of(load_plan(tree)))
    if spec["family"] == "mlp":
        small = spec | {"widths": [min(width, 64) for width in spec["widths"][:4]] + [spec["widths"][-1] and min(spec["widths"][-1], 64)]}
    else:
        small = spec | _TINY[spec["family"]]
        if not spec.get("kv_heads"):
            small.pop("kv_heads", None)
    batch = tree.get("batch", {})
    micro, whole = batch.get("micro", 1), batch.get("global", 0)
    sizes = {"micro": 1, "global": whole // micro} if whole else {"micro": 1}
    return tree | {"model": small, "precision": "fp32", "batch": sizes} | ({"seq_len": 32} if "seq_len" in tree else {})


def fewer_layers(plan: Plan) -> Plan | None:
    """The plan with half as many layers; None if it has no layers, or if too few for its pipeline stages would be left."""
    spec = msgspec.to_builtins(model_of(plan))
    least = plan.parallel.pp * plan.parallel.chunks
    if spec.get("layers", 0) // 2 < max(1, least):
        return None
    layers = spec["layers"] // 2
    name = f"{str(spec.get('name') or plan.model_name).partition(' x ')[0]} x {layers} layers"
    return load_plan(dump_tree(plan) | {"model": spec | {"layers": layers, "name": name}})
