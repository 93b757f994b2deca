"""Multi-layer perceptrons: linear layers with activations between them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torch import Tensor, nn

from executor.training.models.parts import Activation
from sim.model.specs.spec import Mlp


class Dense(nn.Module):
    """One linear and its activation (`act`; "": none)."""

    def __init__(self, k: int, n: int, bias: bool, act: str) -> None:
        super().__init__()
        self.linear = nn.Linear(k, n, bias=bias)
        self.act = Activation(act) if act else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return self.act(y) if self.act is not None else y


def blocks(spec: Mlp) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of each block: L0 ..."""
    last = len(spec.widths) - 2
    for i, (k, n) in enumerate(pairwise(spec.widths)):
        yield f"L{i}", Dense(k, n, spec.bias, spec.activation if i < last else "")
