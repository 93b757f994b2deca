"""Several stock runs one after the other on the same ranks: starting processes takes longer than these plans."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from executor.ranks.world import World
from executor.stock import Request, train


class Many(msgspec.Struct):
    """Requests in order."""

    requests: list[Request]


def losses(world: World, many: Many) -> list[list[float]]:
    """Losses of each; empty where this rank does not know them (pipelines)."""
    return [train(world, request).losses for request in many.requests]


def gradients(world: World, many: Many) -> list[dict[str, float]]:
    """Of each: the norm of every parameter's gradient that this rank knows, over all ranks that hold parts of it."""
    return [_gradients(world, request) for request in many.requests]


def _gradients(world: World, request: Request) -> dict[str, float]:
    import torch.distributed as dist

    from executor.training.expert_parallel import ranks_of
    from executor.training.trainer import Trainer

    world.beat.phase("one step without an update")
    trainer = Trainer(world, request.plan, Path(request.data), 1)
    trainer.optimizer = SimpleNamespace(step=lambda: None, zero_grad=lambda set_to_none=True: None)  # type: ignore[assignment]
    trainer.step(trainer.batches(), 0)
    found: dict[str, float] = {}
    for name, parameter in trainer.inner.named_parameters():
        if parameter.grad is not None:
            grad: Any = parameter.grad
            squared = (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).double().square().sum()
            if request.plan.parallel.ep > 1 and (".moe.up." in name or ".moe.down." in name):
                dist.all_reduce(squared, group=ranks_of(trainer.model))
            found[name] = float(squared.sqrt())
    return found
