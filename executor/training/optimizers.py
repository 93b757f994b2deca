"""torch's optimizers by their names in a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn

from executor.training.models.names import ends_of
from executor.training.parallelize import alike
from sim.framework.framework import Framework
from sim.optimizers import OPTIMIZERS

RATES = {"adam": 1e-3, "adamw": 1e-3}
"""Learning rates of optimizers for which it is not 0.01."""


class Updates(Protocol):
    """The methods of an optimizer that a training step calls."""

    def step(self) -> Any: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...


def optimizer_of(name: str, habits: Framework, model: nn.Module) -> Updates:
    """Optimizer `name` over all of the model's parameters, with the framework's implementation (for-loop, foreach or fused)."""
    options: dict[str, Any] = {"foreach": habits.optimizer.implementation == "foreach"}
    if habits.optimizer.implementation == "fused":  # a class without fused kernels has no such argument
        options["fused"] = True
    if name == "muon":
        return Muon(model, options)
    if name == "momentum":
        options["momentum"] = 0.9
    kind = getattr(torch.optim, OPTIMIZERS[name].torch)
    made: Updates = kind([{"params": group} for group in alike(model)], lr=RATES.get(name, 1e-2), **options)
    return made


def _ends(model: nn.Module) -> Iterator[nn.Module]:
    """The ends (`ends_of`) of a model, of its pipeline stages, or of the model that DDP wraps."""
    for module in model.modules():
        blocks = dict(module.named_children())
        yield from (blocks[name] for name in ends_of(blocks))


class Muon:
    """torch.optim.Muon for the matrices of layers; AdamW for embeddings, the head and all that is not a matrix, with the same learning
    rate."""

    def __init__(self, model: nn.Module, options: dict[str, Any]) -> None:
        apart = {id(p) for block in _ends(model) for p in block.parameters()}
        matrices = [p for p in model.parameters() if p.dim() == 2 and id(p) not in apart]
        others = [p for p in model.parameters() if p.dim() != 2 or id(p) in apart]
        # scaled to AdamW's size of an update, so that one learning rate serves both (Liu et al. 2025, section 2.2)
        self._parts: list[torch.optim.Optimizer] = [torch.optim.Muon(matrices, lr=1e-3, adjust_lr_fn="match_rms_adamw")] if matrices else []
        self._parts += [torch.optim.AdamW(others, lr=1e-3, **options)] if others else []

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {type(part).__name__.lower(): part.state_dict() for part in self._parts}
