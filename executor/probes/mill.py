"""Other work between two timed calls.

A training step runs a layer's other kernels and as much Python and autograd code before it comes back to the same one: instruction
caches and branch predictors have forgotten it. Timed in a loop of its own, a small kernel takes half of what it takes in a
step. One pass through the mill before each timed call makes the call as cold as it is in a step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_TOKENS, _WIDTH, _HEADS = 16, 64, 2
_TURNS = 6
"""Turns of the mill in a stretch: with its larger kernels the 2 to 4 ms between two collectives of a small step, after which equal ranks come
apart."""
_SIDE, _PASS = 512, 1 << 21
"""Of a stretch's product, and numbers of the array that it passes over (8 MB)."""
_SPREAD = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Numbers of an array that takes the L2 of a server's core (1 to 2 MB): what the kernels of a step read and write between two hooks. On a GPU a pass
over it takes 0.1 to 0.4 ms and keeps the device at work, as a step does, while the host launches (see `executor.probes.in_step`)."""


class Mill(nn.Module):
    """Forward and backward of one small block with many different kernels: about 0.3 ms on one core. On a GPU it is the launches that count."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(_TOKENS, _WIDTH), nn.LayerNorm(_WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
        self.tokens, self.spread = torch.arange(_TOKENS, device=device), torch.zeros(_SPREAD[device.type], device=device)
        self.to(device)

    def turn(self) -> None:
        """Runs the block once and forgets its gradients."""
        with torch.enable_grad():
            self.loss().backward()  # type: ignore[no-untyped-call]
        for parameter in self.parameters():
            parameter.grad = None

    def pass_by(self) -> None:
        """One pass through the block: what a step has between two calls of one kernel, which comes once in a layer and pass. After a whole turn
        the way to any kernel is cold as well, as it is for the first layer of a pass alone (a layer norm of 6 KB: 18 us then, 10 after one pass,
        8 in a step, 5 in a loop of its own)."""
        with torch.enable_grad():
            self.loss()

    def loss(self) -> torch.Tensor:
        """Forward of the block."""
        x = self.table(self.tokens)
        y = self.down(F.gelu(self.up(self.norm(x)))) + x
        heads = y.view(1, _TOKENS, _HEADS, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(_TOKENS, _WIDTH)
        return F.cross_entropy(y, self.tokens)


class Stretch:
    """What a rank computes between two meetings: small kernels, a product, a pass over an array that no L2 holds; about 4 ms on one core.

    After a message the caches hold other things, a core that slept wakes slowly, and the one rank waits for the other: the stretch takes
    longer between meetings than without, which is a part of what a meeting costs (on two cores 5 to 11 % of 6 ms).
    """

    def __init__(self, mill: Mill) -> None:
        self.mill = mill
        self.a, self.b = torch.full((_SIDE, _SIDE), 0.02), torch.full((_SIDE, _SIDE), 0.02)
        self.product, self.array = torch.empty(_SIDE, _SIDE), torch.zeros(_PASS)

    def run(self) -> None:
        """Once."""
        for _ in range(_TURNS):
            self.mill.turn()
        torch.mm(self.a, self.b, out=self.product)
        self.array.add_(1.0)


class Between(nn.Module):
    """Hands on what it gets, and turns a mill in both passes: two layers' hooks have the layers' own kernels between them. Back to back, the
    Python of FSDP2's hooks takes less than a half of what it takes so (490 us against 980 for both passes of a unit)."""

    def __init__(self, mill: Mill) -> None:
        super().__init__()
        self.mills = [mill]  # in a list: no submodule, its parameters are nobody's

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Turned.apply(x, self.mills[0])  # type: ignore[no-any-return, no-untyped-call]


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mill: Mill) -> torch.Tensor:
        ctx.mill = mill
        _elsewhere(mill)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        _elsewhere(ctx.mill)
        return grad, None


@torch.no_grad()
def _elsewhere(mill: Mill) -> None:
    mill.loss()
    mill.spread.add_(1.0)
