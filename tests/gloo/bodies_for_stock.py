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


class Parts(msgspec.Struct):
    """How a model that is made without data begins."""

    losses: list[float]
    """Of three steps."""
    elements: int
    """Of parameters on this rank."""
    largest: int
    """Elements of the largest tensor that was ever given memory as a parameter."""
    tables: bool
    """What its modules register beside parameters is as in a model that is made whole."""


def unfilled(world: World, many: Many) -> list[Parts]:
    """Each trained as on a GPU on which the whole model has no place."""
    from executor.training import trainer, unfilled

    trainer.is_large = lambda *_: True  # type: ignore[assignment]
    drawn: list[int] = []
    draw = unfilled._draw
    unfilled._draw = lambda part, name: (drawn.append(part.numel()), draw(part, name))[1]  # type: ignore[func-returns-value]
    return [_parts(world, request, drawn) for request in many.requests]


def _parts(world: World, request: Request, drawn: list[int]) -> Parts:
    import torch

    from executor.training.models.build import model_for
    from executor.training.trainer import Trainer

    drawn.clear()
    world.beat.phase("three steps of a model without data")
    made = Trainer(world, request.plan, Path(request.data), 3)
    batches = made.batches()
    for number in range(3):
        made.step(batches, number)
    whole = model_for(made.spec, made.habits, made.seq, request.plan.parallel.tp)
    own = {id(module) for module in made.model.modules()}
    pairs = [(a, b) for (_, a), (_, b) in zip(_buffers(made.inner, own), _buffers(whole, None), strict=False)]
    held = [p.to_local() if hasattr(p, "to_local") else p for p in made.model.parameters()]
    assert not any(p.is_meta for p in held)
    same = bool(pairs) and all(torch.equal(a.float(), b.to(a.dtype).float()) for a, b in pairs)
    return Parts([float(x) for x in made._losses], sum(p.numel() for p in held), max(drawn), same)


def _buffers(model: Any, own: set[int] | None) -> list[tuple[str, Any]]:
    """Those of its own modules: other ranks' stages have none any more."""
    return [
        (name, buffer)
        for name, module in model.named_modules()
        if own is None or id(module) in own
        for buffer in module.buffers(recurse=False)
    ]
