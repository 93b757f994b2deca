"""Small plans for the table of `executor.validation.here`: one of each kind that a machine without GPUs can run, sized for two cores.

Their shapes lie between those that `probe` measures, so that the table tests the predictions and not only the calibration.
`KINDS`: each way of parallelism or update. `INPUTS`: input paths, logging and checkpoints. `MODELS`: other models.
`SHIPPED`: the presets with a single bottleneck.
"""

from __future__ import annotations

from typing import Any

Tree = dict[str, Any]

GPT: Tree = {
    "family": "decoder", "name": "gpt-10m", "layers": 4, "hidden": 320, "heads": 5, "vocab": 1536, "ffn": 1280,
    "position": "learned", "activation": "gelu", "norm": "layernorm", "bias": True, "tied": True, "dropout": 0.0,
}  # fmt: skip
LLAMA: Tree = {
    "family": "decoder", "name": "llama-8m", "layers": 4, "hidden": 288, "heads": 4, "kv_heads": 2, "vocab": 1152, "ffn": 768,
    "position": "rope", "activation": "swiglu", "norm": "rmsnorm",
}  # fmt: skip
DEEP = LLAMA | {"name": "llama-deep", "layers": 8, "hidden": 192, "ffn": 512}
MLP: Tree = {"family": "mlp", "name": "mlp-6m", "widths": [640, 1440, 1440, 1440, 640]}
HEAVY: Tree = {"family": "mlp", "name": "mlp-14m", "widths": [1500, 1500, 1500, 1500, 1500, 1500, 1500]}
_SEQ = 160


def _decoder(model: Tree, batch: Tree, parallel: Tree, **more: Any) -> Tree:
    return {"model": model, "seq_len": _SEQ, "precision": "fp32", "batch": batch, "parallel": parallel} | more


def _mlp(model: Tree, micro: int, ranks: int = 1, **more: Any) -> Tree:
    batch = {"micro": micro, "global": micro * ranks}
    return {"model": model, "precision": "fp32", "batch": batch, "parallel": {"dp_replicate": ranks}, **more}


KINDS: dict[str, tuple[str, Tree]] = {
    "one-rank": ("one rank", _decoder(GPT, {"micro": 2}, {})),
    "ddp": ("DDP", _decoder(GPT, {"micro": 2, "global": 4}, {"dp_replicate": 2})),
    "ddp-four": ("DDP", _decoder(LLAMA, {"micro": 2, "global": 8}, {"dp_replicate": 4})),
    "ddp-one-bucket": ("DDP without overlap", _mlp(HEAVY, 24, 2, comm={"overlap": False}, optimizer={"name": "momentum"})),
    "accumulation": ("gradient accumulation", _decoder(GPT, {"micro": 1, "global": 8}, {"dp_replicate": 2})),
    "zero-1": ("ZeRO-1", _decoder(LLAMA, {"micro": 2, "global": 4}, {"dp_shard": 2, "zero": 1})),
    "zero-2": ("FSDP2, kept after forward", _decoder(LLAMA, {"micro": 2, "global": 4}, {"dp_shard": 2, "zero": 2})),
    "fsdp": ("FSDP2", _decoder(LLAMA, {"micro": 2, "global": 4}, {"dp_shard": 2, "zero": 3})),
    "fsdp-four": ("FSDP2", _decoder(LLAMA, {"micro": 2, "global": 8}, {"dp_shard": 4, "zero": 3})),
    "fsdp-recompute": (
        "FSDP2, layers recomputed",
        _decoder(LLAMA, {"micro": 2, "global": 4}, {"dp_shard": 2, "zero": 3}, memory={"recompute": "full"}),
    ),
    "hsdp": ("HSDP", _decoder(LLAMA, {"micro": 2, "global": 8}, {"dp_replicate": 2, "dp_shard": 2, "zero": 3})),
    "tp": ("TP", _decoder(LLAMA, {"micro": 2}, {"tp": 2, "sequence_parallel": False})),
    "tp-sp": ("TP with SP", _decoder(LLAMA, {"micro": 2}, {"tp": 2})),
    "fsdp-tp": ("FSDP2 x TP", _decoder(LLAMA, {"micro": 2, "global": 4}, {"dp_shard": 2, "tp": 2, "zero": 3})),
    "gpipe": ("PP, GPipe", _decoder(LLAMA, {"micro": 1, "global": 4}, {"pp": 2, "schedule": "gpipe"})),
    "1f1b": ("PP, 1F1B", _decoder(LLAMA, {"micro": 1, "global": 6}, {"pp": 2, "schedule": "1f1b"})),
    "1f1b-four": ("PP, 1F1B", _decoder(DEEP, {"micro": 1, "global": 8}, {"pp": 4, "schedule": "1f1b"})),
    "interleaved": (
        "PP, interleaved",
        _decoder(LLAMA, {"micro": 1, "global": 4}, {"pp": 2, "schedule": "interleaved", "virtual_stages": 2}),
    ),
    "zb-h1": ("PP, ZB-H1", _decoder(LLAMA, {"micro": 1, "global": 6}, {"pp": 2, "schedule": "zb-h1"})),
    "fsdp-pp": ("FSDP2 x PP", _decoder(LLAMA, {"micro": 1, "global": 8}, {"pp": 2, "dp_shard": 2, "zero": 3})),
    "ring": ("CP, ring attention", _decoder(LLAMA, {"micro": 1}, {"cp": 2})),
    "local-updates": ("local updates", _mlp(MLP, 96, 2, update={"mode": "local", "every": 4})),
    "parameter-server": ("asynchronous updates by a parameter server", _mlp(MLP, 96, 2, update={"mode": "async"})),
    "summed-on-host": ("gradients summed on one host", _mlp(MLP, 96, 2, update={"aggregate": "cpu"})),
    "muon": ("Muon beside AdamW", _decoder(LLAMA, {"micro": 4}, {}, optimizer={"name": "muon"})),
    "optimizer-bound": ("optimizer on the CPU", _mlp(HEAVY, 4, 1, optimizer={"name": "adamw"})),
}
"""Name -> (kind, plan). Plans that stock training refuses are played."""


def _reading(micro: int, ranks: int, data: Tree, **more: Any) -> Tree:
    return _mlp(MLP, micro, ranks, data={"source": "disk", **data}, **more)


INPUTS: dict[str, tuple[str, Tree]] = {
    "read-no-worker": ("input", _reading(32, 1, {"workers": 0, "sample": "150 KiB", "preprocess": "1 ms"})),
    "read-one-worker": ("input", _reading(64, 1, {"workers": 1, "sample": "150 KiB", "preprocess": "0.3 ms"})),
    "decode-one-worker": ("input", _reading(32, 1, {"workers": 1, "sample": "150 KiB", "preprocess": "5 ms"})),
    "decode-two-workers": ("input", _reading(32, 1, {"workers": 2, "sample": "150 KiB", "preprocess": "5 ms"})),
    "decode-two-ranks": ("input", _reading(16, 2, {"workers": 1, "sample": "150 KiB", "preprocess": "4 ms"})),
    "deep-prefetch": ("input", _reading(32, 1, {"workers": 1, "prefetch": 6, "sample": "100 KiB", "preprocess": "3 ms"})),
    "large-samples": ("input", _reading(32, 1, {"workers": 1, "sample": "3 MiB"})),
    "in-memory": ("input", _mlp(MLP, 160, 1, optimizer={"name": "sgd"})),
    "database": ("input", _reading(48, 1, {"source": "database", "workers": 1, "sample": "60 KiB", "preprocess": "0.5 ms"})),
    "logged": ("output", _decoder(GPT, {"micro": 1, "global": 2}, {"dp_replicate": 2}, output={"log_every": 1})),
    "saved-often": ("output", _mlp(HEAVY, 8, 1, optimizer={"name": "adam"}, output={"checkpoint_every": 2, "checkpoint_mode": "full"})),
    "saved-seldom": ("output", _mlp(MLP, 64, 2, output={"checkpoint_every": 10, "checkpoint_mode": "full"})),
}
_BERT: Tree = {
    "family": "encoder",
    "name": "bert-6m",
    "layers": 4,
    "hidden": 288,
    "heads": 4,
    "vocab": 4096,
    "positions": 160,
    "dropout": 0.0,
}
_NEOX = GPT | {"name": "neox-8m", "position": "rope", "rotary": 0.25, "parallel_block": True, "two_norms": True, "tied": False}
_MIXTURE = LLAMA | {"name": "mixture-9m", "moe": {"experts": 4, "top_k": 2, "ffn": 448}}
_LATENT = LLAMA | {"name": "latent-7m", "mla": {"q_lora": 192, "kv_lora": 128, "rope": 32, "nope": 64, "value": 64}}
_RESNET: Tree = {"family": "cnn", "name": "resnet-18", "arch": "resnet", "depth": 18, "image": 96, "classes": 100}
_PICTURES: dict[str, Tree] = {
    "vit": {"family": "vit", "name": "vit-6m", "layers": 4, "hidden": 288, "heads": 4, "image": 96, "patch": 12, "classes": 100},
    "resnet": _RESNET,
    "convnext": {
        "family": "convnext",
        "name": "convnext-5m",
        "depths": [2, 2, 4, 2],
        "widths": [40, 80, 160, 320],
        "image": 96,
        "classes": 100,
    },
    "vgg": {"family": "cnn", "name": "vgg-11", "arch": "vgg", "depth": 11, "image": 64, "classes": 100, "batch_norm": False},
}


def _picture(name: str, micro: int, ranks: int = 1, **more: Any) -> Tree:
    return _mlp(_PICTURES[name], micro, ranks, **more)


MODELS: dict[str, tuple[str, Tree]] = {
    "neox": ("NeoX", _decoder(_NEOX, {"micro": 2}, {})),
    "experts": ("experts", _decoder(_MIXTURE, {"micro": 3}, {})),
    "experts-fsdp": ("experts, FSDP2", _decoder(_MIXTURE, {"micro": 2, "global": 4}, {"dp_shard": 2, "zero": 3})),
    "experts-ep": ("EP beside FSDP2", _decoder(_MIXTURE, {"micro": 2, "global": 4}, {"dp_shard": 2, "zero": 3, "ep": 2})),
    "latent": ("latent attention", _decoder(_LATENT, {"micro": 3}, {})),
    "bert": ("BERT", _decoder(_BERT, {"micro": 3}, {})),
    "bert-fsdp": ("BERT, FSDP2", _decoder(_BERT, {"micro": 2, "global": 4}, {"dp_shard": 2, "zero": 3})),
    "vit": ("ViT", _picture("vit", 6)),
    "resnet": ("ResNet", _picture("resnet", 6, optimizer={"name": "momentum"})),
    "resnet-ddp": ("ResNet, DDP", _picture("resnet", 4, 2, optimizer={"name": "momentum"})),
    "convnext": ("ConvNeXt", _picture("convnext", 6)),
    "vgg": ("VGG", _picture("vgg", 4, optimizer={"name": "momentum"})),
    "autocast": ("autocast in bf16", _decoder(GPT, {"micro": 2}, {}, precision="bf16", framework="pytorch-amp")),
}
"""Other models than decoders and MLPs, and mixed precision."""
SHIPPED = ("cpu-comm-bound", "cpu-compute-bound", "cpu-data-bound", "cpu-launch-bound")
