"""Bidirectional transformers: BERT with its heads, and ViT. A layer maps activations to activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from executor.training.models.parts import Activation, Core, Dropout, Linear, make_norm
from sim.framework.framework import Framework
from sim.model.specs.spec import Encoder, Vit


class Layer(nn.Module):
    """Attention, residual, MLP, residual, with a norm after each (BERT) or before each (`pre_norm`: ViT)."""

    def __init__(self, spec: Encoder | Vit, habits: Framework, *, fused: bool, pre_norm: bool, mask: bool) -> None:
        super().__init__()
        h, ffn, rate = spec.hidden, spec.ffn or 4 * spec.hidden, spec.dropout
        self.pre_norm, self.heads = pre_norm, spec.heads
        first, second = make_norm("layernorm", h), make_norm("layernorm", h)
        if pre_norm:
            self.norm1 = first
        self.qkv = Linear(h, (3 * h,) if fused else (h, h, h), True)
        self.core = Core(habits.attention.implementation == "math", causal=False, mask=mask, dropout=rate)
        self.proj = nn.Linear(h, h)
        if pre_norm:
            self.norm2 = second
        else:
            self.norm1 = first
        self.up, self.act, self.down = Linear(h, (ffn,), True), Activation("gelu"), nn.Linear(ffn, h)
        if not pre_norm:
            self.norm2 = second
        self.drop = Dropout(rate)

    def _attended(self, x: Tensor) -> Tensor:
        parts: tuple[Tensor, ...] = self.qkv(x)
        whole = parts[0].chunk(3, -1) if len(parts) == 1 else parts
        q, k, v = (part.view(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in whole)
        out: Tensor = self.drop(self.proj(self.core(q, k, v)))
        return out

    def _fed(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.down(self.act(*self.up(x))))
        return out

    def forward(self, x: Tensor) -> Tensor:
        if self.pre_norm:
            x = x + self._attended(self.norm1(x))
            return x + self._fed(self.norm2(x))
        x = self.norm1(x + self._attended(x))
        out: Tensor = self.norm2(x + self._fed(x))
        return out


class Embed(nn.Module):
    """Embeddings of words, positions and segments, added; then dropout and a norm."""

    def __init__(self, spec: Encoder) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab, spec.hidden)
        self.positions = nn.Embedding(spec.positions, spec.hidden)
        self.types = nn.Embedding(spec.types, spec.hidden) if spec.types else None
        self.drop = Dropout(spec.dropout)
        self.norm = make_norm("layernorm", spec.hidden)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids))
        out: Tensor = self.norm(self.drop(x))
        return out


class MaskedHead(nn.Module):
    """BERT's head: scores of the masked words and, for `head` = "pretraining", of the next sentence."""

    def __init__(self, spec: Encoder) -> None:
        super().__init__()
        h, self.next = spec.hidden, None
        if spec.head == "pretraining":
            self.pooler, self.tanh, self.next = nn.Linear(h, h), Activation("tanh"), nn.Linear(h, 2)
        self.masked = Picked()
        self.transform, self.act, self.norm = nn.Linear(h, h), Activation("gelu"), make_norm("layernorm", h)
        self.logits = nn.Linear(h, spec.vocab)

    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        """`x`: (batch, seq, hidden); `places`: (batch, predictions). Returns (batch, predictions, vocab) and, in pretraining, (batch, 2)
        for the next sentence."""
        following = () if self.next is None else (self.next(self.tanh(self.pooler(x[:, 0]))),)
        return (self.logits(self.norm(self.act(self.transform(self.masked(x, places))))), *following)


class Picked(nn.Module):
    """Selects the rows of the masked words; if there are as many places as rows, returns all rows."""

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        if places.shape[1] == x.shape[1]:
            return x
        rows = places + torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)[:, None]
        return x.flatten(0, 1).index_select(0, rows.flatten()).view(*places.shape, -1)


class SpanHead(nn.Module):
    """SQuAD's head: two scores for each token, that the answer begins there, and that it ends there."""

    def __init__(self, spec: Encoder) -> None:
        super().__init__()
        self.span = nn.Linear(spec.hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.span(x)
        return out


class Patches(nn.Module):
    """ViT's patches as tokens: a convolution with stride = kernel = patch, then the class token in front, and learned positions."""

    def __init__(self, spec: Vit) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, spec.hidden, spec.patch, spec.patch)
        self.table = _Table(spec.hidden, (spec.image // spec.patch) ** 2 + 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).flatten(2).transpose(1, 2)
        return torch.cat((self.table.token.expand(len(y), -1, -1), y), 1) + self.table.positions


class _Table(nn.Module):
    """The class token and the positions, in a separate module so that the convolution's parameters come first: a module lists its own
    parameters before those of its children."""

    def __init__(self, hidden: int, rows: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.randn(1, rows, hidden) * 0.02)


class VitEmbed(nn.Module):
    """ViT's first block, which has one part, the patches."""

    def __init__(self, spec: Vit) -> None:
        super().__init__()
        self.patches = Patches(spec)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.patches(x)
        return out


class VitHead(nn.Module):
    """ViT's head: a norm, and the scores of the class token."""

    def __init__(self, spec: Vit) -> None:
        super().__init__()
        self.norm, self.logits = make_norm("layernorm", spec.hidden), nn.Linear(spec.hidden, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.logits(self.norm(x)[:, 0])
        return out
