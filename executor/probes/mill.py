"""Other work between two timed calls.

A training step runs a layer's other kernels, and much Python and autograd code, before it runs the same kernel again: by then its code is
no longer in instruction caches and branch predictors. In a tight loop a small kernel takes half of its time in a step. One pass through the
mill before each timed call makes the call as cold as in a step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_TOKENS, _WIDTH, _HEADS = 16, 64, 2
_TURNS = 6
"""Turns of the mill in a stretch. With the stretch's larger kernels they take 2 to 4 ms, as the work between two collectives of a small
step, after which equal ranks are no longer in step."""
_SIDE, _PASS = 512, 1 << 21
"""Side of the square matrices of a stretch's GEMM, and elements of the array that it passes over (8 MB)."""
_SPREAD = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Elements of an array that fills the L2 of a server's core (1 to 2 MB): it stands for what a step's kernels read and write between two
hooks. On a GPU a pass over it takes 0.1 to 0.4 ms and keeps the device busy while the host launches, as in a step (see
`executor.probes.in_step`)."""


class Mill(nn.Module):
    """Forward and backward of one small block with many different kernels: about 0.3 ms on one core. On a GPU mainly the launches take
    time."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(_TOKENS, _WIDTH), nn.LayerNorm(_WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
        self.tokens, self.spread = torch.arange(_TOKENS, device=device), torch.zeros(_SPREAD[device.type], device=device)
        self.to(device)

    def turn(self) -> None:
        """Runs forward and backward of the block once and deletes its gradients."""
        with torch.enable_grad():
            self.loss().backward()  # type: ignore[no-untyped-call]
        for parameter in self.parameters():
            parameter.grad = None

    def pass_by(self) -> None:
        """One forward of the block, like the work of a step between two calls of a kernel that comes once in each layer and pass. After a
        whole turn also the code that leads to the kernel would be cold, which in a step holds only for the first layer of a pass (a layer
        norm of 6 KB: 18 us then, 10 after one forward, 8 in a step, 5 in a tight loop)."""
        with torch.enable_grad():
            self.loss()

    def loss(self) -> torch.Tensor:
        """The block's forward; returns its loss."""
        x = self.table(self.tokens)
        y = self.down(F.gelu(self.up(self.norm(x)))) + x
        heads = y.view(1, _TOKENS, _HEADS, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(_TOKENS, _WIDTH)
        return F.cross_entropy(y, self.tokens)


class Stretch:
    """What a rank computes between two collectives: small kernels, a GEMM, a pass over an array that no L2 holds; about 4 ms on one core.

    After communication the caches hold other data, a core that slept wakes slowly, and one rank waits for the other. So the stretch takes
    longer between collectives than without them, and that time is a part of a collective's cost (on two cores 5 to 11 % of 6 ms).
    """

    def __init__(self, mill: Mill) -> None:
        self.mill = mill
        self.a, self.b = torch.full((_SIDE, _SIDE), 0.02), torch.full((_SIDE, _SIDE), 0.02)
        self.product, self.array = torch.empty(_SIDE, _SIDE), torch.zeros(_PASS)

    def run(self) -> None:
        """Runs the stretch once."""
        for _ in range(_TURNS):
            self.mill.turn()
        torch.mm(self.a, self.b, out=self.product)
        self.array.add_(1.0)


class Between(nn.Module):
    """Returns its input, and runs a mill in forward and in backward, which stands for the layers' kernels between the hooks of two layers.
    Back to back, the Python code of FSDP2's hooks takes only half as long (490 us against 980 for both passes of a unit)."""

    def __init__(self, mill: Mill) -> None:
        super().__init__()
        self.mills = [mill]  # in a list it is not a submodule, and the model does not get its parameters

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
