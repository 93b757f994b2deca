"""Models written as people write them, to be captured: each takes nothing but its inputs and is imported by name."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Cnn(nn.Module):
    """Convolutions, norms, pooling, a linear; images to a loss-like output."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).flatten(1))  # type: ignore[no-any-return]


class Words(nn.Module):
    """A small language model around torch's own encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 64)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(4))
        self.head = nn.Linear(64, 512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Lstm(nn.Module):
    """Two recurrent layers over token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(512, 64), nn.LSTM(64, 128, 2, batch_first=True), nn.Linear(128, 512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.lstm(self.embed(ids))[0]).flatten(0, 1), ids.flatten())


class Gate(nn.Module):
    """Decides by a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else 2 * x


class Chooser(nn.Module):
    """Has a module inside that decides by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(8, 8), Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(self.first(x))  # type: ignore[no-any-return]


class Picker(nn.Module):
    """How many rows it returns depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(x)
        return y[y > 0]


def needs_more(size: int) -> nn.Module:
    """Takes an argument that nobody gives."""
    return nn.Linear(size, size)


def nothing() -> int:
    """Returns no module."""
    return 3


ready = nn.Linear(2, 2)
"""A module, not a function that makes one."""
