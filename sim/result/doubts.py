"""Warnings about plans that can run but are probably not what the user wants: nodes without a rank, groups that span nodes, sharding that
splits nothing, recomputation that saves nothing, a full device or host."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from sim.framework.chosen import sharding_of
from sim.memory.hosts import host_bytes
from sim.memory.report import MemoryReport
from sim.model.parts import ADAPTER
from sim.model.stages import held, layout
from sim.rules import mesh_of
from sim.setting.astride import astride
from sim.setting.bind import Setting
from sim.setting.rooms import smallest_devices
from topologies.units import show_size

_LITTLE = 0.02
"""Share of a layer's saved activations that recomputation should save at least."""
_PICTURES = ("images", "pairs", "videos")
"""Sample units that contain pictures."""


def doubts(setting: Setting, report: MemoryReport) -> list[str]:
    """Returns one sentence for each doubtful choice."""
    return [
        *_idle_nodes(setting),
        *_astride(setting),
        *_whole_shards(setting),
        *_whole_experts(setting),
        *_unmixed(setting),
        *_captured(setting),
        *_recorded(setting),
        *_adapters(setting),
        *_for_nothing(setting),
        *_undecoded(setting),
        *_full(setting, report),
        *_host_full(setting),
    ]


def _idle_nodes(setting: Setting) -> Iterator[str]:
    topology, world = setting.topology, setting.plan.world
    used = topology.nodes_of(world)
    if used < topology.nodes:
        yield (
            f"the plan's {f'{world} ranks leave' if world > 1 else 'one rank leaves'} {topology.nodes - used} of {topology.nodes} nodes of {topology.name} without one: more ranks are "
            "parallel.dp_shard or dp_replicate (and batch.global), or name a smaller machine"
        )


def _astride(setting: Setting) -> Iterator[str]:
    """Groups whose messages are many and large lie inside a node, as far as they are not larger than one."""
    topology, mesh, each = setting.topology, mesh_of(setting.plan), setting.topology.ranks_per_node
    if topology.cluster.scatter:
        return
    for axis in ("tp", "ep", "cp"):
        size = mesh.size(axis)
        if axis != "tp" and size * mesh.size("tp") > each:  # experts and sequences are spread over nodes on purpose, tensor ranks are not
            continue
        group = astride(mesh, topology, axis)
        if not group:
            continue
        nodes = len(set(map(topology.node, group)))
        where = f"{axis} = {size}: ranks {group[0]} to {group[-1]} lie on {nodes} nodes, and what they exchange takes the network"
        fitting = max((count for count in range(size, each + 1) if count % size == 0), default=0)
        if fitting and fitting < each:
            yield f"{where}. With ranks_per_node={fitting} (--set) each group has one node"
        elif not fitting:
            yield f"{where}. A node has {each} ranks: use tp = {each} at most"
        else:
            yield f"{where}. Let placement begin with {axis if axis == 'tp' or mesh.size('tp') == 1 else f'tp,{axis}'}"


def _whole_shards(setting: Setting) -> Iterator[str]:
    """Warns of dp_shard > 1 without `zero` where the framework's default splits nothing."""
    p, plan = setting.plan.parallel, setting.plan
    if p.zero is None and p.dp_shard > 1 and plan.task != "forward" and sharding_of(plan, setting.framework)[0] == 0:
        yield (
            f"dp_shard = {p.dp_shard} splits nothing: zero is 0 unless {plan.framework_name} is told otherwise, so that each rank keeps the whole "
            "model (DDP). zero = 3 splits all (FSDP), zero = 1 the optimizer; zero = 0, or dp_replicate, says that DDP is meant"
        )


def _whole_experts(setting: Setting) -> Iterator[str]:
    """Warns where experts are not split by tensor parallelism, while the framework (Megatron) splits them by default, which takes less
    memory and more time."""
    p = setting.plan.parallel
    if p.etp is None and p.tp > 1 and p.ep > 1 and setting.network.has_experts and setting.framework.tensor_parallel.splits_experts:
        yield (
            f"each expert is whole on its rank (parallel.etp is 1 with ep > 1): {setting.plan.framework_name} splits them over tp = {p.tp} too unless "
            f"expert_tensor_parallel_size says otherwise. parallel.etp = {p.tp} predicts that, etp = 1 says that this is meant"
        )


def _unmixed(setting: Setting) -> Iterator[str]:
    """Warns where the framework would compute in fp32. In torchtitan's maybe_enable_amp, FSDP casts, or autocast does where nothing is
    split."""
    plan, precision = setting.plan, setting.framework.precision
    split = [name for name in ("tp", "pp") if getattr(plan.parallel, name) > 1]
    if precision.autocast_alone and precision.master and split and sharding_of(plan, setting.framework)[0] == 0:
        yield (
            f"precision = {plan.precision}: {plan.framework_name} has mixed precision by FSDP, or by autocast where nothing is split, and with "
            f"{' and '.join(split)} alone computes in fp32. The prediction is of {plan.precision} beside fp32 copies; dp_shard > 1 makes it so"
        )


def _captured(setting: Setting) -> Iterator[str]:
    plan = setting.plan
    if plan.cuda_graphs and setting.network.has_experts and not plan.parallel.capacity:
        yield (
            "cuda_graphs = true: how many rows an expert gets depends on the data, and a graph of the step holds them only where they are filled up to "
            "a fixed number. What that takes is counted with parallel.capacity alone"
        )


def _recorded(setting: Setting) -> Iterator[str]:
    """Warns of compile with a captured model: a compiler makes other kernels than those in the captured file."""
    if setting.framework.compile and setting.network.captured:
        yield (
            f"compile = true: the kernels of {setting.network.name} are those that it launched without a compiler when it was captured. What a compiler "
            "would fuse is not counted, the host's time for launches alone is less"
        )


def _adapters(setting: Setting) -> Iterator[str]:
    """Warns of task = "finetune" with a model that has adapters: adapters alone are trained, as with task = "lora"."""
    parts = [part.name for block in setting.network.kinds for part in block.parts]
    if setting.plan.task == "finetune" and any(name.endswith(ADAPTER) for name in parts):
        yield (
            'task = "finetune": the [model] table has lora, so adapters alone are trained, as with task = "lora", which says that this is meant. '
            "Leave lora out to train all parameters"
        )


def _for_nothing(setting: Setting) -> Iterator[str]:
    """Warns of selective recomputation with fused attention, which keeps no scores: recomputing its core saves only one number for each
    row."""
    memory = setting.plan.memory
    if memory.recompute != "selective" or memory.recompute_modules or setting.plan.task == "forward":
        return
    parts = [part for _, block in setting.network.blocks if block.kind == "layer" for part in block.parts]
    again = [part for part in parts if part.recompute]
    if again and sum(part.dropped for part in again) < _LITTLE * sum(part.saved for part in parts):
        yield (
            'memory.recompute = "selective" runs attention\'s core again, and fused attention keeps next to nothing that this would save. Name '
            'what else to run again in recompute_modules (["op"] is torchtitan\'s way), or set recompute = "none"'
        )


def _undecoded(setting: Setting) -> Iterator[str]:
    """Warns of pictures from storage without `data.sample` and `data.preprocess`: files are compressed, and decoding takes CPU time.
    (Tokens need no decoding.)"""
    data, network = setting.plan.data, setting.network
    if data.stored and not data.sample and not data.preprocess and network.sample_unit in _PICTURES:
        yield (
            f'data.source = "{data.source}" reads {network.sample_unit} as the tensors that they are on the device ({show_size(network.sample_bytes)} '
            'each), and decodes none. Say what a file has, and what a core takes for it, e.g. data.sample = "110 KB", data.preprocess = "8 ms"'
        )


def _full(setting: Setting, report: MemoryReport) -> Iterator[str]:
    fill = report.fill(smallest_devices(setting))
    if fill.nearly_full:
        yield (
            f"tensors and context take {show_size(fill.needed)} of {show_size(fill.available)}: the allocator has little to choose from, frees and "
            "asks again, and an uneven step may not fit"
        )


def _host_full(setting: Setting) -> Iterator[str]:
    """Warns where the offloaded data need more host memory than a node has."""
    plan, topology = setting.plan, setting.topology
    if not plan.host_optimizer or plan.task == "forward" or topology.kind == "cpu":
        return
    stages, places = layout(setting.network, plan), mesh_of(plan).places("pp")
    sizes = [host_bytes(plan, setting.network, setting.framework, held(stages, plan, rank)) for rank in range(plan.parallel.pp)]
    needed = Counter[int]()
    for rank, stage in enumerate(places):
        needed[topology.node(rank)] += sizes[stage]
    rooms = {node: topology.host_memory(node) for node in needed}
    node = max(needed, key=lambda at: needed[at] / (rooms[at] or math.inf))
    if 0 < rooms[node] < needed[node]:
        yield (
            f"what is offloaded takes {show_size(needed[node])} of host memory on a node, which has {show_size(rooms[node])} "
            f"({topology.host(node).name}; --set cpu.memory says another): it would not run. More ranks, or zero, share it out"
        )
