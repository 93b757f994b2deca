"""Builds large models without the whole model on any device: parameters have no data until each rank has its own part of them.

The order is torchtitan's (train.py): the model is made on the device "meta", split, given memory, and initialised there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from executor.ranks.world import World
from sim.framework.framework import Framework
from sim.plan import Plan
from sim.setting.bind import network_of

LARGE = 0.25
"""Share of a GPU's memory: a model that needs more in fp32 is made without data, if ranks split it."""


def is_large(plan: Plan, framework: Framework, world: World) -> bool:
    """True if no rank should make the plan's whole model. Never for models with tied embeddings, which are small: the tie would be lost."""
    p, network = plan.parallel, network_of(plan, framework)
    if world.kind != "cuda" or max(p.dp_shard, p.tp, p.pp) == 1 or network.tied:
        return False
    return 4 * network.parameters > LARGE * torch.cuda.get_device_properties(world.device).total_memory


@contextmanager
def without_data(yes: bool) -> Iterator[None]:
    """If `yes`, parameters of modules that are made inside are on "meta", without data; their buffers have data."""
    register = nn.Module.register_parameter

    def bare(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param if param is None else nn.Parameter(param.to("meta"), requires_grad=param.requires_grad))

    if yes:
        nn.Module.register_parameter = bare  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def unfilled(model: nn.Module) -> bool:
    """True if the model has parameters without data."""
    return any(parameter.is_meta for parameter in model.parameters())


def filled(model: nn.Module, device: torch.device) -> nn.Module:
    """The same model, which has been split already, with memory on the device, where this rank's part is initialised: matrices and tables
    with a standard deviation of 0.02, as in GPT-2, scales of norms with 1, biases with 0. A model with data is not changed."""
    if not unfilled(model):
        return model
    kept = [(module, name, buffer) for module in model.modules() for name, buffer in module.named_buffers(recurse=False)]
    model.to_empty(device=device)
    for module, name, buffer in kept:
        module._buffers[name] = buffer.to(device)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            _draw(_local(parameter), name)
    return model


def _local(parameter: nn.Parameter) -> Tensor:
    part: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return part.detach()


def _draw(part: Tensor, name: str) -> None:
    if part.ndim > 1:
        part.normal_(std=0.02)
    else:
        part.fill_(0.0 if name == "bias" else 1.0)
