"""DiLoCo's outer step over local updates (Douillard et al. 2023, algorithm 1), with torch.optim.SGD as the outer optimizer."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sim.framework.framework import Framework
from sim.plan import Plan


class Outer:
    """Keeps a copy of the parameters after the last outer step. The outer gradient is the mean over ranks of how far each has moved since
    then; SGD with Nesterov momentum applies it to the copy."""

    def __init__(self, model: nn.Module, habits: Framework) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._copies = [p.detach().clone() for p in self._parameters]
        options: dict[str, Any] = {
            "foreach": habits.optimizer.implementation == "foreach",
            "fused": habits.optimizer.implementation == "fused",
        }
        # the learning rate and momentum of the paper's table of hyperparameters
        self._optimizer = torch.optim.SGD(self._parameters, lr=0.7, momentum=0.9, nesterov=True, **options)
        self._each = habits.optimizer.implementation == "for-loop"

    @torch.no_grad()
    def step(self) -> None:
        """One outer step, on all ranks together; each has taken its own steps before, and cleared its gradients."""
        self._point([copy - p for copy, p in zip(self._copies, self._parameters, strict=True)] if self._each else self._moved())
        self._copy(self._parameters, self._copies)
        self._optimizer.step()
        self._copy(self._copies, self._parameters)
        self._optimizer.zero_grad()

    def _moved(self) -> list[torch.Tensor]:
        return list(torch._foreach_sub(self._copies, list(self._parameters)))

    def _point(self, moved: list[torch.Tensor]) -> None:
        """Sets the outer gradients: the mean of `moved` over all ranks, by one all_reduce."""
        if dist.is_initialized() and dist.get_world_size() > 1:
            flat = torch.cat([each.reshape(-1) for each in moved])
            flat /= dist.get_world_size()
            dist.all_reduce(flat)
            sizes = [p.numel() for p in self._parameters]
            moved = [part.view_as(p) for part, p in zip(torch.split(flat, sizes), self._parameters, strict=True)]
        for p, gradient in zip(self._parameters, moved, strict=True):
            p.grad = gradient

    def _copy(self, to: list[Any], source: list[Any]) -> None:
        if not self._each:
            torch._foreach_copy_(to, source)
            return
        for one, other in zip(to, source, strict=True):
            one.copy_(other)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint: the copy and the momentum."""
        return {"parameters": self._copies, "optimizer": self._optimizer.state_dict()}


def outer_of(plan: Plan, habits: Framework, model: nn.Module) -> Outer | None:
    """The outer optimizer of a plan; None if it has none."""
    return Outer(model, habits) if plan.local and plan.update.outer == "nesterov" else None
