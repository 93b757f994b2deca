"""Bytes of a device beside all tensors: the driver's context, communicators, and what the caching allocator cannot give again."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from sim.framework.framework import Framework
from sim.memory.activations import Moment
from sim.memory.groups import groups
from sim.model.parts import Network
from sim.plan import Plan
from topologies.hardware import Cpu, Gpu
from topologies.units import size


@cache
def constants() -> dict[str, float]:
    """The figures of `overhead.toml` by `table.key`: bytes or shares."""
    tree = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    read = {f"{table}.{key}": value for table, keys in tree.items() for key, value in keys.items()}
    return {name: float(size(value, name) if isinstance(value, str) else value) for name, value in read.items()}


def context_bytes(plan: Plan, network: Network, framework: Framework, device: Gpu | Cpu | None, moving: int) -> int:
    """Of the driver, the libraries and the allocator, and of each group's communicator (`groups`)."""
    if isinstance(device, Cpu):
        return 0
    c, made = constants(), len(groups(plan, network, framework))
    return round(c["context.bytes"] + c["context.workspace"] + made * c["nccl.communicator"] + c["allocator.fragmentation"] * moving)


def apart_bytes(framework: Framework, device: Gpu | Cpu | None, found: list[Moment], worst: Moment) -> int:
    """Reserved beside the fullest moment: the step's flat tensors find no room in the segments that activations leave, which are as small as
    these were, and the caching allocator joins no segments (c10/cuda/CUDACachingAllocator.cpp). `found`: the step's moment first."""
    if not framework.optimizer.flat_step or isinstance(device, Cpu):
        return 0
    step, *others = (moment.activations + moment.working for moment in found)
    return step + max(others, default=0) - worst.activations - worst.working
