"""Every key of a plan, changed on plans of many kinds: it moves what is predicted, or a warning names it, or a reason stands here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest

from sim.files.fullplan import full_tree
from sim.files.planfile import load_plan
from sim.plan import Plan
from sim.predict import predict
from sim.result.prediction import Prediction
from topologies.errors import SteptwinError

GPT: dict[str, Any] = {"model": {"base": "gpt2-124m", "layers": 2, "vocab": 4096}, "seq_len": 256, "batch": {"global": 8, "micro": 1}}
MOE: dict[str, Any] = {"model": {"base": "qwen3-30b-a3b", "layers": 2}, "seq_len": 256, "batch": {"global": 8, "micro": 1}}
LOADED = {"source": "disk", "sample": "8 MiB", "workers": 2, "preprocess": "1 ms"}
REPLICAS = {"dp_replicate": 4}
PLANS: dict[str, dict[str, Any]] = {
    "one GPU": {},
    "DDP": {"parallel": REPLICAS},
    "DDP, loaded": {"parallel": REPLICAS, "data": LOADED, "output": {"checkpoint_every": 2}, "memory": {"recompute": "full"}},
    "DDP on CPUs": {"parallel": {"dp_replicate": 2}, "precision": "fp32", "data": LOADED},
    "Horovod, at the end": {"framework": "tf2-horovod", "parallel": REPLICAS},
    "Horovod": {"framework": "tf1-horovod", "parallel": REPLICAS, "comm": {"bucket": "4 MiB"}},
    "Megatron-Core": {"framework": "megatron-core", "parallel": {"dp_shard": 4, "tp": 2}, "comm": {"bucket": "4 MiB"}},
    "Megatron-LM": {"framework": "megatron-lm", "parallel": {"dp_shard": 4, "tp": 2}},
    "DeepSpeed": {"framework": "deepspeed", "parallel": {"dp_shard": 4, "zero": 2}, "comm": {"bucket": "4 MiB"}},
    "FSDP": {"parallel": {"dp_shard": 4, "zero": 3}},
    "HSDP": {"parallel": {"dp_replicate": 2, "dp_shard": 2, "zero": 3}},
    "pipeline": {"parallel": {"pp": 2, "dp_replicate": 2}},
    "pipeline of chunks": {"model": GPT["model"] | {"layers": 4}, "parallel": {"pp": 2, "schedule": "interleaved", "virtual_stages": 2}},
    "pipeline, FSDP": {"parallel": {"pp": 2, "dp_shard": 2, "zero": 3}},
    "rings": {"parallel": {"cp": 2, "dp_shard": 2, "zero": 3}, "memory": {"recompute": "selective"}},
    "rings and heads": {"parallel": {"cp": 4, "cp_kind": "all_to_all+p2p", "cp_ulysses": 2}},
    "experts": MOE | {"parallel": {"ep": 4, "dp_shard": 4}},
    "experts, split": MOE | {"parallel": {"dp_shard": 4, "tp": 2}},
    "forward": {"task": "forward", "parallel": REPLICAS},
    "adapters": {"task": "lora", "parallel": REPLICAS, "comm": {"bucket": "64 KiB"}},  # of few layers they fill no larger one
    "local": {"parallel": REPLICAS, "update": {"mode": "local", "every": 2}},
    "server": {"parallel": REPLICAS, "update": {"mode": "async"}},
    "host's update": {"optimizer": {"on": "cpu"}, "parallel": {"dp_replicate": 2}},
    "activations away": {"model": GPT["model"] | {"layers": 4}, "memory": {"offload": "activations"}},
    "parameters away": {"parallel": {"dp_shard": 4, "zero": 3}, "memory": {"offload": "parameters"}},
    "pictures": {"model": "resnet50", "seq_len": None, "batch": {"global": 8}, "parallel": REPLICAS},
    "noise": {"parallel": REPLICAS, "noise": {"stragglers": "lognormal(0.1)"}},
}
SECTIONS = {
    "DDP on CPUs": ("comm", "data", "output"),
    "pipeline of chunks": ("parallel",),
    "experts, split": ("parallel", "memory"),
    "adapters": ("comm", "memory", "optimizer"),
    "local": ("comm", "optimizer", "update"),
    "server": ("comm", "optimizer", "update"),
    "host's update": ("memory", "optimizer", "update"),
    "activations away": ("memory",),
    "parameters away": ("memory", "optimizer", "output", "parallel"),
    "pictures": ("", "memory"),
    "noise": ("", "noise"),
}
"""Of plans that differ from others in some sections alone, those ("": keys of none)."""
VALUES: dict[str, tuple[Any, ...]] = {
    "name": ("other",),
    "task": ("forward", "finetune", "lora", "dpo"),
    "framework": ("deepspeed",),
    "seq_len": (128,),
    "precision": ("fp32", "fp16"),
    "attention": ("math", "flash"),
    "compile": (True, False),
    "cuda_graphs": (True, False),
    "seed": (7,),
    "batch.global": (16,),
    "batch.micro": (2,),
    "parallel.dp_replicate": (1, 8),
    "parallel.dp_shard": (2, 8),
    "parallel.zero": (0, 1, 2, 3),
    "parallel.reshard_after_forward": (False, 2),
    "parallel.prefetch": (0, 2),
    "parallel.tp": (1, 2),
    "parallel.sequence_parallel": (False,),
    "parallel.tp_overlap": (True,),
    "parallel.pp": (1, 2),
    "parallel.schedule": ("gpipe", "interleaved"),
    "parallel.actions": (["0F0,0F1,0B0,0B1"],),
    "parallel.virtual_stages": (1, 2),
    "parallel.stages": ([0, 2], [2, 0]),
    "parallel.cp": (2,),
    "parallel.cp_kind": ("all_gather", "all_to_all", "all_to_all+p2p"),
    "parallel.cp_ulysses": (1, 2),
    "parallel.ep": (2,),
    "parallel.etp": (1, 2),
    "parallel.capacity": (2.0,),
    "parallel.placement": ("dp,tp,cp,pp", "pp,dp,cp,tp"),
    "memory.recompute": ("full", "selective"),
    "memory.recompute_modules": (["layernorm"],),
    "memory.recompute_layers": (1,),
    "memory.offload": ("optimizer", "parameters", "activations"),
    "memory.offload_layers": (1,),
    "optimizer.name": ("sgd", "momentum", "adam", "lamb", "lion", "adagrad", "lars", "ademamix", "muon", "adafactor"),
    "optimizer.implementation": ("for-loop", "foreach", "fused"),
    "optimizer.states": ("bf16", "fp8"),
    "optimizer.clip": (True, False),
    "optimizer.on": ("cpu",),
    "update.mode": ("sync", "local", "async"),
    "update.every": (3,),
    "update.outer": ("nesterov",),
    "update.aggregate": ("cpu", "primary"),
    "comm.bucket": ("64 KiB",),
    "comm.overlap": (False,),
    "comm.reduce_dtype": ("fp32", "fp16", "bf16"),
    "comm.algorithm": ("ring", "tree", "nvls", "pat", "collnet", "hierarchical"),
    "data.source": ("disk", "object-store", "database", "device"),
    "data.workers": (1,),
    "data.sample": ("1 MiB",),
    "data.preprocess": ("2 ms",),
    "data.prefetch": (1, 5),
    "data.pinned": (False,),
    "data.shuffle": (False,),
    "data.document": (64, 256),
    "data.stream": ("compute",),
    "data.handover": ("synchronize", "none"),
    "data.create": ("cpu", "device"),
    "output.log_every": (1,),
    "output.sync_every": (1,),
    "output.item_every": (1,),
    "output.print_every": (1,),
    "output.checkpoint_every": (3,),
    "output.checkpoint_to": ("store",),
    "output.checkpoint_mode": ("full", "async"),
    "noise.stragglers": ("r0: 2x",),
    "noise.imbalance": ("r0: 2x",),
}
NEVER = {
    "name": "is what a plan is called",
    "data.shuffle": "a run reads its samples in that order; all are alike to a prediction",
    "seed": "of a run's weights and samples, and of noise that names none",
    "parallel.actions": "come with a schedule's file, and are refused beside another schedule",
    "parallel.placement": "of ranks on links that are all alike; which ranks make a group is in the program's mesh",
}
"""Keys that need not move anything on a plan."""
SAME: dict[tuple[str, object], str] = {
    ("task", "finetune"): "trains all parameters, from other first values",
    ("framework", "deepspeed"): "forward runs PyTorch's own kernels",
    ("output.sync_every", 1): "a host that updates has waited for the device",
    ("optimizer.name", "adam"): "AdamW's kernels with another decay: the same passes",
    ("memory.offload", "optimizer"): 'is what optimizer.on = "cpu" says',
    ("parallel.zero", 2): "in a pipeline FSDP2 keeps what it has gathered, as with zero = 3",
    ("optimizer.name", "lars"): "moves as many bytes through a host's memory as AdamW",
}
"""Words that may mean what a plan says or is anyway."""


def keys(struct: type[msgspec.Struct] = Plan, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a plan but the model."""
    for name, written in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        inner = next((field.type for field in msgspec.structs.fields(struct) if field.name == name), None)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from keys(inner, f"{written}.")
        elif written != "model":
            yield prefix + written


class Figures(NamedTuple):
    """What of a prediction a key may move."""

    step: float
    memory: int
    busy: frozenset[float]
    """Seconds of all spans of each rank that is simulated, to a nanosecond: a thread or link that the step does not wait for counts too."""


def figures(found: Prediction) -> Figures:
    """Of the predicted step."""
    assert found.trace is not None
    busy: dict[int, float] = {}
    for span in found.trace.spans:
        busy[span.rank] = busy.get(span.rank, 0.0) + span.end - span.start
    return Figures(found.step_time_s, found.peak_memory_bytes, frozenset(round(seconds, 9) for seconds in busy.values()))


def settled(plan: Plan) -> dict[str, object]:
    """What the plan's open keys come to: who says it says nothing new."""
    from sim.files.fullplan import _unsaid

    return {key: found for key, (found, _) in _unsaid(plan).items()}


@cache
def changed(name: str) -> tuple[dict[str, list[str]], frozenset[str], list[str]]:
    """(values of keys that move nothing and that no warning names, keys that move something, warnings of what moves something)."""
    tree, on = GPT | PLANS[name], "cpu-host" if "CPU" in name else "dgx-h100"
    tree = {key: said for key, said in tree.items() if said is not None}
    base = load_plan(tree)
    first, open_ = predict(base, on), settled(base)
    assert first.program is not None
    silent: dict[str, list[str]] = {}
    moving, wrong = set[str](), list[str]()
    for key, said in ((key, said) for key, values in VALUES.items() for said in values):
        if key.rpartition(".")[0] in SECTIONS.get(name, [key.rpartition(".")[0]]):
            try:
                plan = with_key(base, key, said)
                found = predict(plan, on)
            except SteptwinError:
                continue  # what cannot be is an error
            if plan == base:
                continue
            warned = [text for text in found.warnings if text.startswith(f"{key} = ") and "has no effect" in text]
            assert found.program is not None
            if figures(found) != figures(first):
                moving.add(key)
                wrong += warned
            elif not warned and open_.get(key) != said and found.program.segments == first.program.segments:
                silent.setdefault(key, []).append(said)
    return silent, frozenset(moving), wrong


def with_key(plan: Plan, key: str, said: Any) -> Plan:
    """The plan with `key` as a file would say it."""
    tree = full_tree(plan)
    section, _, last = key.rpartition(".")
    (tree[section] if section else tree)[last] = said
    return load_plan(tree)


def test_every_key_is_tried() -> None:
    assert set(keys()) == set(VALUES), "a new key of a plan: say here what values it takes"


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PLANS)
def test_a_key_moves_something_or_is_named(name: str) -> None:
    silent, _, wrong = changed(name)
    left = {key: [said for said in values if (key, said) not in SAME] for key, values in silent.items() if key not in NEVER}
    assert not {key: values for key, values in left.items() if values}, "moves nothing, in silence"
    assert not wrong, "is said to have no effect, and has one"


@pytest.mark.no_cover
def test_every_key_moves_something_somewhere() -> None:
    still = set(VALUES).difference(*(changed(name)[1] for name in PLANS))
    assert still <= set(NEVER), still
