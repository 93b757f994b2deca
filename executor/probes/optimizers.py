"""Time on the CPU of whole optimizer steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from executor.probes.bench import Bench, middle


def optimizers(bench: Bench) -> None:
    """Whole `optimizer.step()` by tensors and parameters; per-tensor host time follows from the smallest."""
    bench.phase("optimizers")
    makers: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
        "adamw.foreach": lambda p: torch.optim.AdamW(p, lr=1e-6, foreach=True),
        "adamw.fused": lambda p: torch.optim.AdamW(p, lr=1e-6, fused=True),
        "adamw.for-loop": lambda p: torch.optim.AdamW(p, lr=1e-6, foreach=False, fused=False),
        "adam.foreach": lambda p: torch.optim.Adam(p, lr=1e-6, foreach=True),
        "sgd.foreach": lambda p: torch.optim.SGD(p, lr=1e-6, foreach=True),
        "momentum.foreach": lambda p: torch.optim.SGD(p, lr=1e-6, momentum=0.9, foreach=True),
    }
    shapes = ((4, 1 << 8), (64, 1 << 8), (4, 1 << 16), (4, 1 << 20), (64, 1 << 16))
    for name, make in makers.items():
        for tensors, each in shapes[:3] if bench.quick else shapes:
            parameters = [nn.Parameter(torch.full((each,), 0.02, device=bench.world.device)) for _ in range(tensors)]
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 0.01)
            bench.add("optimizer", name, "fp32", (tensors, tensors * each), bench.times([make(parameters).step]))
    # What torch.optim chooses by itself: one tensor after the other on CPUs, lists of tensors on CUDA.
    own = "adamw.for-loop" if bench.world.kind == "cpu" else "adamw.foreach"
    small = {s.shape[0]: s for kind, s in bench.found if kind == "optimizer" and s.name == own and s.shape[1] == s.shape[0] << 8}
    slope = (small[64].median - small[4].median) / 60
    bench.add("host", "optimizer", "", (), [slope])
    bench.add("host", "cpu_optimizer", "", (), [_on_cpu(bench)])
    bench.add("host", "optimizer_step", "", (), [max(1e-6, small[4].median - 4 * slope)])


def _on_cpu(bench: Bench) -> float:
    """Seconds per element of the fused update in host memory."""
    if bench.world.kind != "cpu":
        parameter = nn.Parameter(torch.full((1 << 22,), 0.02))
        parameter.grad = torch.full_like(parameter, 0.01)
        return middle(bench.times([torch.optim.AdamW([parameter], lr=1e-6, fused=True).step])) / parameter.numel()
    large = max(
        (s for kind, s in bench.found if kind == "optimizer" and s.name == "adamw.fused" and s.shape[0] == 4), key=lambda s: s.shape[1]
    )
    return large.median / large.shape[1]
