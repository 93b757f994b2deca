"""Time on the CPU of whole optimizer steps."""

from __future__ import annotations

import torch
from torch import nn

from executor.probes.bench import Bench

_TENSORS, _SMALL, _LARGE = (4, 64), 1 << 8, 1 << 20
"""Tensors of a shorter and of a longer list, and elements of each: small ones, whose kernels take nothing, and such as memory bounds."""


def optimizers(bench: Bench) -> None:
    """Whole `optimizer.step()` of AdamW: what the host spends for a step and for each tensor, as torch.optim chooses by itself (one tensor after
    the other on CPUs, lists of tensors on CUDA), and what a fused update takes of a CPU for each parameter."""
    bench.phase("optimizers")
    own = "adamw.for-loop" if bench.world.kind == "cpu" else "adamw.foreach"
    few, many = (_step(bench, own, tensors, _SMALL, bench.world.device) for tensors in _TENSORS)
    slope = (many - few) / (_TENSORS[1] - _TENSORS[0])
    bench.add("host", "optimizer", "", (), [slope])
    bench.add("host", "optimizer_step", "", (), [max(1e-6, few - _TENSORS[0] * slope)])
    fused = _step(bench, "adamw.fused", _TENSORS[0], _LARGE, torch.device("cpu"))
    bench.add("host", "cpu_optimizer", "", (), [fused / (_TENSORS[0] * _LARGE)])


def _step(bench: Bench, name: str, tensors: int, each: int, device: torch.device) -> float:
    """Seconds of one step over so many tensors of `each` elements; the point is kept."""
    parameters = [nn.Parameter(torch.full((each,), 0.02, device=device)) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.01)
    how = name.partition(".")[2]
    step = torch.optim.AdamW(parameters, lr=1e-6, foreach=how == "foreach", fused=how == "fused").step
    return bench.add("optimizer", name, "fp32", (tensors, tensors * each), bench.times([step]))
