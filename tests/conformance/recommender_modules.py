"""DLRM in plain PyTorch, written from Naumov et al. 2019: numbers to the loss (ids are made inside)."""

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


class Dlrm(nn.Module):
    """Tables, an MLP, the products of all pairs, an MLP."""

    def __init__(self, tables: Sequence[int], dim: int, bottom: Sequence[int], top: Sequence[int], dense: int = 13) -> None:
        super().__init__()
        vectors = len(tables) + 1
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for rows in tables)
        self.bottom = _mlp((dense, *bottom), True)
        self.top = _mlp((vectors * (vectors - 1) // 2 + dim, *top), False)
        self.rows, self.columns = zip(*((i, j) for i in range(vectors) for j in range(i)), strict=True)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.bottom(numbers)
        ids = torch.zeros(numbers.shape[0], 1, dtype=torch.int64, device=numbers.device)
        looked = [table(ids) for table in self.tables]
        rows, columns = (torch.tensor(one, device=numbers.device) for one in (self.rows, self.columns))
        both = torch.stack([x, *looked], 1)
        pairs = torch.bmm(both, both.transpose(1, 2))[:, rows, columns]
        clicks = torch.sigmoid(self.top(torch.cat([x, pairs], 1)))
        return F.binary_cross_entropy(clicks, torch.zeros_like(clicks))
