"""FLOPs of a plan's products: as torch counts those that it runs, and as they are described."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from executor.training.examples import example_of
from executor.training.models.build import Model, loss_of
from sim.framework.chosen import framework_of
from sim.plan import Plan
from sim.setting.bind import network_of
from sim.work import MemoryBound

SEQ, MICRO = 16, 2


def run(model: Model) -> int:
    """Of a forward and a backward, which leaves its gradients."""
    pairs = [example_of(model.spec, SEQ, i) for i in range(MICRO)]
    given, ids = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: _grouped}) as counter:
        loss_of(model.spec, model(given), ids).backward()  # type: ignore[no-untyped-call]
    return counter.get_total_flops()


def described(plan: Plan) -> float:
    """Of all parts, forward and backward."""
    parts = [part for _, block in network_of(plan, framework_of(plan)).blocks for part in block.parts]
    works = [work for part in parts for work in (*part.forward, *part.backward, *part.wgrad)]
    return sum(work.flops for work in works if not isinstance(work, MemoryBound))


def _grouped(a: tuple[int, ...], b: tuple[int, ...], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Of torch's grouped product, which its counter does not know: rows by the columns of each expert, or the weights' gradient."""
    return 2 * a[0] * a[1] * b[-1]
