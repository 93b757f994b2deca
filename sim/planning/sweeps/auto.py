"""All sensible plans for a model on a number of GPUs, as a space (`sim.planning.sweeps.space`)."""

from __future__ import annotations

import math

import msgspec

from sim.files.overrides import SHORT
from sim.framework.chosen import framework_of
from sim.model.layers.redo import modules_of
from sim.plan import Plan
from sim.planning.sweeps.space import REST
from sim.sections import Parallel
from sim.setting.bind import attention_of, length_of, model_of, network_of
from topologies.errors import BadInput
from topologies.load import load_topology

_DEEPEST = 64
"""Stages of a pipeline that are tried."""
_CHUNKS = 6
"""Stages of a rank that are tried, at most: powers of two, and what divides the layers."""
_UNEVEN = 1.1
"""Layers of the fullest stage over the mean, at most: 126 layers on 16 stages are 8 against 7.9."""


def expanded(plan: Plan, space: dict[str, tuple[str, ...]], on: str, edits: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """The space with all sensible plans in place of its `auto`; what it says of a key itself holds. Raises `BadInput`."""
    gpus = space.get("auto")
    if gpus is None:
        return space
    if "gpus" in space or len(gpus) > 1 or not gpus[0].isdecimal():
        raise BadInput(f"auto = {','.join(gpus)}: one number of GPUs, in place of gpus")
    said = {SHORT.get(key, key) for key in space}
    found = auto_space(plan, space.get("on", (on,))[0], int(gpus[0]), edits)
    own = {key: values for key, values in space.items() if key != "auto"}
    if "parallel.dp_replicate" in said:
        said.add("parallel.dp_shard")
    return {key: values for key, values in found.items() if SHORT.get(key, key) not in said} | own


def auto_space(plan: Plan, on: str, gpus: int, edits: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """All sensible plans for the plan's model on so many GPUs: tp inside a node, pp whose stages are nearly even, ...

    Raises `BadInput` where the model has no layers to split (CNNs, captured modules).
    """
    model, machine = model_of(plan), load_topology(on, edits)
    layers, heads = getattr(model, "layers", 0), getattr(model, "heads", 0)
    if not layers or not heads:
        raise BadInput(f"--auto knows how to split transformers; {plan.model_name} is none. Write the space, e.g. zero=0,1,3 micro=1..16")
    if not 1 <= gpus <= machine.gpus:
        raise BadInput(f"--auto {gpus}: {machine.name} has 1 to {machine.gpus} GPUs")
    experts = getattr(getattr(model, "moe", None), "experts", 0) or 0
    space = sensible(layers, heads, gpus, machine.ranks_per_node, experts, long=length_of(plan, model) >= 32_768)
    if modules := selective(plan):
        space["memory.recompute_modules"] = modules
    elif not core_saves(plan):
        space["recompute"] = ("none", "full")
    framework = framework_of(plan)
    apart = framework.data_parallel.zero2 == "layers"
    if apart or not framework.te_attention:
        space["zero"] = ("1", "2", "3")  # Megatron has no ZeRO-2
    if lacks_tp_overlap(plan) and overlap_needs(plan) == ():
        space["parallel.tp_overlap"] = ("false", "true")
    if gpus > machine.ranks_per_node > 1 and plan.update.summed and (apart or framework.te_attention):
        # FSDP's hybrid shards and Megatron's num_distributed_optimizer_instances; DeepSpeed's ZeRO-1 and -2 shard over all.
        space["dp_shard"] = (REST, str(machine.ranks_per_node))
    if "cp" in space and getattr(model, "window", False):
        space["parallel.cp_kind"] = ("all_to_all",)  # no ring takes sliding windows (`sim.lower.model_parallel.context`)
    if "cp" in space and getattr(getattr(model, "mla", None), "index", None):
        space["parallel.cp_kind"] = ("all_gather",)  # `sim.model.layers.sparse`
    if plan.memory.recompute_layers:  # a number for the stages of the plan's own pipeline
        space["memory.recompute_layers"] = ("0",)
    if plan.memory.offload_layers:
        space["memory.offload_layers"] = ("0",)
    return space


def core_saves(plan: Plan) -> bool:
    """Does recompute = "selective" save memory? Fused attention keeps no scores that its core alone, run again, would save."""
    return attention_of(framework_of(plan), model_of(plan)) == "math" or bool(plan.memory.recompute_modules)


def selective(plan: Plan) -> tuple[str, ...]:
    """What recompute = "selective" is to run again where attention's core saves nothing: by operator (torchtitan; torch's checkpoint in a loop of one's
    own), or modules in Megatron-Core's words, of which those around experts cost little and keep much (NVIDIA's recipes for Qwen3 and DeepSeek)."""
    if core_saves(plan) or plan.task == "forward":
        return ()
    framework = framework_of(plan)
    if not framework.te_attention:
        return ("op",)
    network = network_of(msgspec.structs.replace(plan, parallel=Parallel()), framework)
    has = modules_of(block for _, block in network.blocks)
    sets = (("mla_up_proj", "layernorm", "moe_act"),) if network.has_experts else (("layernorm",), ("mlp",))
    found = (",".join(module for module in wanted if module in has) for wanted in sets)
    return tuple(filter(None, found))


def lacks_tp_overlap(plan: Plan) -> bool:
    """Would tensor parallel messages of this plan stand between products that its framework could run beside them?"""
    p, habits = plan.parallel, framework_of(plan).tensor_parallel
    overlaps = habits.overlap if p.tp_overlap is None else p.tp_overlap
    return not overlaps and p.sequence_parallel and habits.style != "sync"


def overlap_needs(plan: Plan) -> tuple[str, ...]:
    """What else the plan must have for that: DTensor's is a pass of the compiler (torchtitan: enable_async_tensor_parallel)."""
    framework = framework_of(plan)
    return ("compile=true",) if framework.tensor_parallel.style == "dtensor" and not framework.compile else ()


def sensible(model_layers: int, heads: int, gpus: int, per_node: int, experts: int = 0, long: bool = False) -> dict[str, tuple[str, ...]]:
    """All plans that people would try for a model on so many GPUs: tp inside a node, pp whose stages are nearly even, ..."""
    splits = [n for n in range(1, gpus + 1) if gpus % n == 0]
    powers = tuple(str(2**i) for i in range(4))
    pipelines = [n for n in splits if n <= min(_DEEPEST, model_layers) and math.ceil(model_layers / n) * n <= _UNEVEN * model_layers]
    space: dict[str, tuple[str, ...]] = {
        "gpus": (str(gpus),),
        "tp": tuple(str(n) for n in splits if n <= per_node and heads % n == 0 and n & (n - 1) == 0),
        "pp": tuple(map(str, pipelines)),
        "zero": ("1", "3"),
        "micro": powers,
        "recompute": ("none", "selective", "full"),
        "schedule": ("1f1b", "interleaved"),
        "virtual_stages": tuple(
            str(n) for n in range(1, _CHUNKS + 1) if n in (1, 2, 4) or any(model_layers % (p * n) == 0 for p in pipelines[1:])
        ),
    }
    if experts:
        space["ep"] = tuple(str(2**i) for i in range(8) if experts % 2**i == 0)
    if long:
        space["cp"] = ("1", "2", "4", "8")
    return space
