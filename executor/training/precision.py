"""Automatic mixed precision: fp32 weights, GEMMs in 16 bits, and for fp16 a scaled loss."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from executor.kernels.bodies import dtype_of
from executor.training.optimizers import Updates
from sim.framework.framework import Framework
from sim.plan import Plan


class Mixed:
    """torch.autocast and torch.amp.GradScaler if the plan's framework trains with them; otherwise its methods change nothing."""

    def __init__(self, plan: Plan, habits: Framework, kind: str) -> None:
        self._kind = kind
        self._dtype = dtype_of(plan.precision) if habits.precision.autocast or habits.precision.wide_adapters else None
        scales = self._dtype is torch.float16
        self._scaler = torch.amp.GradScaler(kind, enabled=scales) if scales else None

    def casts(self) -> contextlib.AbstractContextManager[object]:
        """The context for forward and loss."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._kind, self._dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss from which backward starts, scaled for fp16."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def unscale(self, optimizer: Updates) -> None:
        """Undoes the scaling of gradients; to be called before they are clipped."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)  # type: ignore[arg-type]

    def step(self, optimizer: Updates) -> None:
        """The optimizer's step; it is skipped if a scaled gradient overflowed."""
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)  # type: ignore[arg-type]
            self._scaler.update()
