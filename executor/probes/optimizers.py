"""Host time of whole optimizer steps."""

from __future__ import annotations

import torch
from torch import nn

from executor.probes.bench import Bench

_TENSORS, _SMALL, _LARGE = (4, 64), 1 << 8, 1 << 20
"""Tensors of a shorter and of a longer list, and elements of each tensor: small ones, whose kernels take almost no time, and memory-bound
ones."""


def optimizers(bench: Bench) -> None:
    """Whole `optimizer.step()` calls of AdamW: host seconds for a step and for each tensor, with torch.optim's default (for-loop on CPUs,
    foreach on CUDA), and seconds of a fused update on a CPU for each element."""
    bench.phase("optimizers")
    own = "adamw.for-loop" if bench.world.kind == "cpu" else "adamw.foreach"
    few, many = (_step(bench, own, tensors, _SMALL, bench.world.device) for tensors in _TENSORS)
    slope = (many - few) / (_TENSORS[1] - _TENSORS[0])
    bench.add("host", "optimizer", "", (), [slope])
    bench.add("host", "optimizer_step", "", (), [max(1e-6, few - _TENSORS[0] * slope)])
    fused = _step(bench, "adamw.fused", _TENSORS[0], _LARGE, torch.device("cpu"))
    bench.add("host", "cpu_optimizer", "", (), [fused / (_TENSORS[0] * _LARGE)])


def _step(bench: Bench, name: str, tensors: int, each: int, device: torch.device) -> float:
    """Seconds of one step over `tensors` tensors of `each` elements; keeps the point."""
    parameters = [nn.Parameter(torch.full((each,), 0.02, device=device)) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.01)
    how = name.partition(".")[2]
    step = torch.optim.AdamW(parameters, lr=1e-6, foreach=how == "foreach", fused=how == "fused").step
    return bench.add("optimizer", name, "fp32", (tensors, tensors * each), bench.times([step]))
