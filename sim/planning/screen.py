"""A step from fewer layers: what a sweep ranks by before it simulates the plans that matter whole.

Equal layers of a stage follow each other in a steady rhythm, as equal micro-batches do: from a few layers on, each further layer adds the
same time. Two short networks give that time; the step of the whole one follows. What does not repeat (ends, fill and drain, buckets
that span layers) is in both.
"""

from __future__ import annotations

import msgspec

from sim.bind import Setting
from sim.model.parts import Block, Network
from sim.steady import step_of

_COUNTS = (3, 5, 9)
"""Layers of a stage in the short networks, without a pipeline: FSDP works two layers ahead."""
_PIPED = (2, 3, 5)
"""With a pipeline: stages compute whole layers one after the other."""
_STEADY = 0.01
"""Two slopes that differ by more belong to different rhythms (launches bind here, kernels there): the plan is simulated whole."""


def screened(setting: Setting) -> float:
    """Seconds of a step. What binds may still change beyond the layers that are tried, and a step only grows by that: the figure is
    then too low, never too high. Raises `BadInput` and its kinds."""
    layers = _per_stage(setting)
    counts = _PIPED if setting.plan.parallel.pp > 1 else _COUNTS
    if layers < 2 * counts[-1]:
        return step_of(setting)[0]
    a, b, c = (step_of(msgspec.structs.replace(setting, network=_shortened(setting, count)))[0] for count in counts)
    before, slope = (b - a) / (counts[1] - counts[0]), (c - b) / (counts[2] - counts[1])
    if abs(slope - before) > _STEADY * slope:
        return step_of(setting)[0]
    return c + slope * (layers - counts[2])


def _stages(setting: Setting) -> int:
    p = setting.plan.parallel
    return p.pp * (2 if p.schedule == "dualpipe" else p.virtual_stages) if p.pp > 1 else 1


def _per_stage(setting: Setting) -> int:
    """Equal layers on each stage; 0 where stages or layers differ."""
    layers = _layers(setting.network)
    stages = _stages(setting)
    equal = len({id(block) for block in layers}) == 1 and setting.plan.parallel.stages is None
    return len(layers) // stages if equal and len(layers) % stages == 0 and not setting.plan.memory.recompute_layers else 0


def _layers(network: Network) -> list[Block]:
    return [block for _, block in network.blocks if block.kind == "layer"]


def _shortened(setting: Setting, count: int) -> Network:
    """The network with `count` layers on each stage."""
    left = count * _stages(setting)
    blocks = []
    for name, block in setting.network.blocks:
        if block.kind == "layer":
            if left == 0:
                continue
            left -= 1
        blocks.append((name, block))
    return msgspec.structs.replace(setting.network, blocks=tuple(blocks))
