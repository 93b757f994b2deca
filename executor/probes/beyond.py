"""Host time of a wrapper of modules (FSDP2, DTensor, checkpoint): wrapped blocks against bare ones, several in a model, with other work
between."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import torch
from torch import nn

from executor.probes.bench import Bench
from executor.probes.mill import Between

_BLOCKS = (2, 6)
"""Blocks of the smaller and of the larger model; in their difference the costs of a model that occur once are left out."""
_WARM, _ROUNDS, _QUICK = 3, 25, 8
"""Steps before the first timed one (DTensor caches its plans), and timed rounds, fewer in a quick probe. In each round all models take one
step, so that changes of the machine's speed are in all of them."""

Maker = Callable[[int], nn.Module]
"""Makes a model of so many blocks."""


def beyond(bench: Bench, wrapped: Maker, bare: Maker, x: torch.Tensor) -> float:
    """Seconds by which forward and backward of one block of `wrapped` take longer than those of one block of `bare`; may be below 0 by
    noise."""
    steps = [_step(make(blocks), x) for make in (wrapped, bare) for blocks in _BLOCKS]
    for step in steps * _WARM:
        step()
    found = list[float]()
    for _ in range(_QUICK if bench.quick else _ROUNDS):
        few, many, bare_few, bare_many = (bench.once(step) for step in steps)
        found.append((many - few - (bare_many - bare_few)) / (_BLOCKS[1] - _BLOCKS[0]))
    bench.world.beat.touch()
    return statistics.median(found)


def apart(bench: Bench, blocks: Iterable[nn.Module]) -> nn.Sequential:
    """A model of the blocks, with other work (`Between`) before each."""
    return nn.Sequential(*(module for block in blocks for module in (Between(bench.mill), block)))


def _step(net: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        net(x).sum().backward()
        net.zero_grad()

    return step
