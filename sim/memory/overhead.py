"""Bytes of a device beside all tensors: the driver's context, communicators, and what the caching allocator holds and no tensor uses."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from sim.framework.chosen import sharding_of
from sim.framework.framework import Framework
from sim.lower.optimizer.owned import flat_bytes
from sim.memory.activations import Moment
from sim.memory.groups import communicators
from sim.model.parts import Network
from sim.plan import Plan
from sim.work import BYTES
from topologies.hardware import Cpu, Gpu
from topologies.units import size


@cache
def constants() -> dict[str, float]:
    """The figures of `overhead.toml` by `table.key`: bytes or shares."""
    tree = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    read = {f"{table}.{key}": value for table, keys in tree.items() for key, value in keys.items()}
    return {name: float(size(value, name) if isinstance(value, str) else value) for name, value in read.items()}


def context_bytes(plan: Plan, network: Network, framework: Framework, device: Gpu | Cpu | None) -> int:
    """Bytes of the driver's and libraries' context, of the communicators' buffers, and of TransformerEngine's user buffers; 0 on a CPU."""
    if isinstance(device, Cpu):
        return 0
    c = constants()
    own = c["context.whole" if framework.loads_all else "context.bytes"] + c["context.workspace"]
    made = communicators(plan, network, framework) * communicator(device)
    return round(own + made + user_buffers(plan, network, framework))


def communicator(device: Gpu | None) -> float:
    """Bytes of one communicator's buffers. NCCL uses more channels, each with its own buffers, where there are more links to fill. Groups
    over the network are counted as those on a node (a send to another node has a buffer of hundreds of MiB for all its channels:
    NVIDIA/nccl issue 2363)."""
    c, links = constants(), device.nvlink_links if device else 0
    return c["nccl.connection"] * c["nccl.connections"] * max(c["nccl.least"], min(c["nccl.channels"], 2 * links))


def user_buffers(plan: Plan, network: Network, framework: Framework) -> float:
    """Bytes that TransformerEngine registers to overlap tensor parallelism with its GEMMs: ten buffers of a layer's whole input. Six of
    them, into which inputs and gradients are gathered, have the GEMMs' own dtype (module/base.py: initialize_ub)."""
    p, habits = plan.parallel, framework.tensor_parallel
    wanted = habits.overlap if p.tp_overlap is None else p.tp_overlap
    if p.tp == 1 or not wanted or not p.sequence_parallel or habits.style == "dtensor" or plan.task == "forward":
        return 0.0
    parts = (part for _, block in network.blocks for part in block.parts if block.kind == "layer" and part.seam == "tp.gather")
    whole = max((part.seam_bytes for part in parts), default=0)
    return whole * (4 + 6 * min(1.0, max(1.0, BYTES[plan.precision]) / 2.0))


def slack_bytes(plan: Plan, framework: Framework, device: Gpu | Cpu | None, found: list[Moment], worst: Moment, room: int) -> int:
    """Bytes that the caching allocator has reserved beside the tensors of the fullest moment (`worst`): a share of the largest
    activations and buffers that lies between them, and segments that wait for another moment. All but the `stuck` share is given back
    before an allocation fails, so it takes no more than there is `room` (bytes). `found`: all moments, the optimizer step's first."""
    if isinstance(device, Cpu):
        return 0
    c, most = constants(), max((moment.activations + moment.working for moment in found[1:]), default=0)
    stuck, loose = round(c["allocator.stuck"] * most), round((c["allocator.fragmentation"] - c["allocator.stuck"]) * most)
    return stuck + max(0, min(loose + max(0, _waiting(plan, framework, found) - sum(worst)), room - stuck))


def _waiting(plan: Plan, framework: Framework, found: list[Moment]) -> int:
    """Bytes of segments where these are not shared by all moments; 0 where moments share them. Flat tensors of a step find no room in the
    segments that activations and gradients leave, which are as small as these were, and segments are not joined
    (c10/cuda/CUDACachingAllocator.cpp). FSDP's shards of gradients are made in the stream that reduces them, and each stream has its own
    segments (_fsdp_collectives.py: foreach_reduce)."""
    step, *others = found
    if flat_bytes(plan, framework):
        return step.working + max(map(sum, others), default=0)
    if framework.data_parallel.zero2 == "layers" and sharding_of(plan, framework)[0] == 3:
        return max(moment.activations + moment.working for moment in found) + max(moment.gradients for moment in found)
    return 0
