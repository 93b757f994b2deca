"""Fused optimizer updates."""

from __future__ import annotations

import torch

from executor.arena import Arena
from executor.kernels.site import Body, Site
from sim.optimizers import OPTIMIZERS
from sim.work import HostWork, MemoryBound

FUSED = ("sgd", "momentum", "adam", "adamw", "adagrad")
"""The optimizers for which torch has fused updates."""


def update(s: Site) -> Body:
    """A fused update of one flat fp32 parameter that moves the work's bytes. An optimizer for which torch has no fused kernel runs that of
    the optimizer which it is `like`."""
    what = s.work.what if s.work.what in FUSED else OPTIMIZERS[s.work.what].like
    count = max(1, int((s.work.read + s.work.written) // (4 * sum(OPTIMIZERS[what].fused))))
    p, g, m, v = ([s.arena.updated(count)] for _ in range(4))
    if what in ("sgd", "momentum"):
        beta, state = (0.0, []) if what == "sgd" else (0.9, m)
        return lambda: torch._fused_sgd_(
            p, g, state, weight_decay=0.0, momentum=beta, lr=1e-6, dampening=0.0, nesterov=False, maximize=False, is_first_step=False
        )
    v[0].abs_()
    if what == "adagrad":
        step = [torch.ones((), device=s.arena.device)]
        return lambda: torch._fused_adagrad_(p, g, v, step, lr=1e-6, lr_decay=0.0, weight_decay=0.0, eps=1e-10, maximize=False)
    steps, none = [torch.ones((), device=s.arena.device)], list[torch.Tensor]()
    fused = torch._fused_adamw_ if what == "adamw" else torch._fused_adam_
    return lambda: fused(
        p, g, m, v, none, steps, lr=1e-6, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
    )


def on_host(work: HostWork, arena: Arena) -> Body:
    """The fused AdamW update of `work.count` elements in host memory; updates on the host are counted in such elements."""
    count = max(1, int(work.count))
    read, written = OPTIMIZERS["adamw"].fused
    return update(Site(MemoryBound("adamw", 4 * read * count, 4 * written * count, "fp32"), arena, torch.float32))
