"""Fused optimizer updates."""

from __future__ import annotations

import torch

from executor.kernels.site import Call, Site

OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "lamb", "optimizer")
OPTIMIZER_BYTES = {"sgd": 12, "momentum": 20, "adam": 28, "adamw": 28, "lamb": 28, "optimizer": 28}
"""fp32 bytes that one fused update moves per parameter: reads parameter, gradient and states, writes all but the gradient."""


def update(s: Site) -> Call:
    """A fused update of one flat parameter with the work's bytes (SGD and momentum as their fused kernels)."""
    count = max(1, int((s.work.read + s.work.written) // OPTIMIZER_BYTES[s.work.what]))
    p, g, m, v = ([s.arena.distant(count)] for _ in range(4))
    if s.work.what in ("sgd", "momentum"):
        beta, state = (0.9, m) if s.work.what == "momentum" else (0.0, [])
        return lambda: torch._fused_sgd_(
            p, g, state, weight_decay=0.0, momentum=beta, lr=1e-6, dampening=0.0, nesterov=False, maximize=False, is_first_step=False
        )
    v[0].abs_()
    steps, none = [torch.ones((), device=s.arena.device)], list[torch.Tensor]()
    fused = torch._fused_adamw_ if s.work.what == "adamw" else torch._fused_adam_
    return lambda: fused(
        p, g, m, v, none, steps, lr=1e-6, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
    )
