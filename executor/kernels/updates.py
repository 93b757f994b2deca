"""Fused optimizer updates."""

from __future__ import annotations

import torch

from executor.kernels.site import Call, Site

OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "lamb", "lion", "adagrad", "lars", "optimizer")
OPTIMIZER_BYTES = {"sgd": 12, "momentum": 20, "adam": 28, "adamw": 28, "lamb": 28, "lion": 20, "adagrad": 20, "lars": 20, "optimizer": 28}
"""fp32 bytes that one fused update moves per parameter: reads parameter, gradient and states, writes all but the gradient."""


def update(s: Site) -> Call:
    """A fused update of one flat parameter with the work's bytes (SGD, momentum and Adagrad by their fused kernels; Lion and LARS, which torch has
    none for, by momentum's)."""
    count = max(1, int((s.work.read + s.work.written) // OPTIMIZER_BYTES[s.work.what]))
    p, g, m, v = ([s.arena.updated(count)] for _ in range(4))
    if s.work.what in ("sgd", "momentum", "lion", "lars"):
        beta, state = (0.0, []) if s.work.what == "sgd" else (0.9, m)
        return lambda: torch._fused_sgd_(
            p, g, state, weight_decay=0.0, momentum=beta, lr=1e-6, dampening=0.0, nesterov=False, maximize=False, is_first_step=False
        )
    v[0].abs_()
    if s.work.what == "adagrad":
        step = [torch.ones((), device=s.arena.device)]
        return lambda: torch._fused_adagrad_(p, g, v, step, lr=1e-6, lr_decay=0.0, weight_decay=0.0, eps=1e-10, maximize=False)
    steps, none = [torch.ones((), device=s.arena.device)], list[torch.Tensor]()
    fused = torch._fused_adamw_ if s.work.what == "adamw" else torch._fused_adam_
    return lambda: fused(
        p, g, m, v, none, steps, lr=1e-6, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
    )
