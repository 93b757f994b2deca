"""What a wrapper of modules costs the host: a block with it against one without, among others of its kind and with other work between them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import torch
from torch import nn

from executor.probes.bench import Bench
from executor.probes.mill import Between

_BLOCKS = (2, 6)
"""Of the smaller and the larger model: their difference leaves out what a model pays once."""
_WARM, _ROUNDS, _QUICK = 3, 25, 8
"""Steps before any is timed (DTensor looks its plans up once), and rounds: in each all models take a step, so that what changes from one moment
to the next is in all of them."""

Maker = Callable[[int], nn.Module]
"""A model of so many blocks."""


def beyond(bench: Bench, wrapped: Maker, bare: Maker, x: torch.Tensor) -> float:
    """Seconds that forward and backward of one block of `wrapped` take beyond those of one of `bare`; may be below 0 by what timing wavers."""
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
    """The blocks, each with other work before it."""
    return nn.Sequential(*(module for block in blocks for module in (Between(bench.mill), block)))


def _step(net: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        net(x).sum().backward()
        net.zero_grad()

    return step
