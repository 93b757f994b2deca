"""DLRM in plain PyTorch, written from Naumov et al. 2019, and from TorchRec's LowRankCrossNet: numbers to the loss (ids are made inside)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F


def _mlp(widths: Sequence[int], last: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for at, (k, n) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(k, n))
        if last or at < len(widths) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Crossed(nn.Module):
    """x0 (W V x + b) + x, layer by layer."""

    def __init__(self, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.v = nn.ParameterList(torch.randn(rank, width) for _ in range(layers))
        self.w = nn.ParameterList(torch.randn(width, rank) for _ in range(layers))
        self.bias = nn.ParameterList(torch.zeros(width) for _ in range(layers))

    def forward(self, first: torch.Tensor) -> torch.Tensor:
        x = first
        for v, w, bias in zip(self.v, self.w, self.bias, strict=True):
            x = first * (F.linear(F.linear(x, v), w) + bias) + x
        return x


class Dlrm(nn.Module):
    """Tables, an MLP, the products of all pairs (or `cross` layers of a cross network), an MLP."""

    def __init__(
        self, tables: Sequence[int], dim: int, bottom: Sequence[int], top: Sequence[int], dense: int = 13, cross: int = 0, rank: int = 512
    ) -> None:
        super().__init__()
        vectors = len(tables) + 1
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for rows in tables)
        self.bottom = _mlp((dense, *bottom), True)
        self.crossed = Crossed(vectors * dim, cross, rank) if cross else None
        self.top = _mlp((vectors * dim if cross else vectors * (vectors - 1) // 2 + dim, *top), False)
        self.rows, self.columns = zip(*((i, j) for i in range(vectors) for j in range(i)), strict=True)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.bottom(numbers)
        ids = torch.zeros(numbers.shape[0], 1, dtype=torch.int64, device=numbers.device)
        looked = [table(ids) for table in self.tables]
        if self.crossed is not None:
            return self.clicked(self.crossed(torch.stack([x, *looked], 1).flatten(1)))
        rows, columns = (torch.tensor(one, device=numbers.device) for one in (self.rows, self.columns))
        both = torch.stack([x, *looked], 1)
        pairs = torch.bmm(both, both.transpose(1, 2))[:, rows, columns]
        return self.clicked(torch.cat([x, pairs], 1))

    def clicked(self, joined: torch.Tensor) -> torch.Tensor:
        """The loss of what the MLP on top makes."""
        clicks = torch.sigmoid(self.top(joined))
        return F.binary_cross_entropy(clicks, torch.zeros_like(clicks))
