"""Routed experts: router, rows sorted by expert, grouped GEMMs, their weighted sum, and shared experts.

As in torchtitan's models/moe/moe.py, the weights of all experts are one tensor, and rows are multiplied by torch.nn.functional.grouped_mm
(in 16 bits one kernel on a GPU; on a CPU a loop over experts in C++). Routing is balanced, as predictions assume: the router computes its
choice, which is then replaced by the experts in turn (torchtitan's debug.moe_force_load_balance, Megatron-Core's
moe_router_force_load_balancing). Without that, newly initialised routers send the fullest of four experts 1.4 to 2.0 times its share (the
plan `experts` of `executor.validation.here_plans`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.training.models.parts import GATES, Activation, Linear
from sim.model.specs.decoder import Moe

if TYPE_CHECKING:
    from executor.training.models.exchange import Exchange

Routed = tuple[Tensor, Tensor, Tensor]
"""For each sorted row its weight (rows x 1, fp32) and its token's number; for each expert where its rows end (int32)."""


class Router(nn.Module):
    """Scores, their softmax, top-k, and the order of rows by expert. With a correction bias, which only affects the choice of experts, the
    scores go through a sigmoid instead of a softmax (DeepSeek-V3, technical report, section 2.1.2)."""

    def __init__(self, hidden: int, spec: Moe) -> None:
        super().__init__()
        self.experts, self.top_k = spec.experts, spec.top_k
        self.scores = nn.Linear(hidden, spec.experts, bias=spec.router_bias)
        self.correction = Correction(spec.experts) if spec.correction else None

    def forward(self, rows: Tensor) -> Routed:
        """`rows`: (tokens, hidden)."""
        scores = self.scores(rows)
        shares = scores.softmax(-1, dtype=torch.float32) if self.correction is None else scores.float().sigmoid()
        ranked = shares if self.correction is None else self.correction(shares)
        chosen = balanced(ranked.topk(self.top_k, sorted=False)[1], self.experts)
        weights = shares.gather(1, chosen)
        if self.top_k > 1:  # normalised, a single weight would always be 1
            weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        rows_each = torch.histc(chosen.flatten().float(), self.experts, 0, self.experts)  # bincount would make the host wait
        ends = rows_each.cumsum(0, dtype=torch.int32)
        return weights.flatten()[order, None], order // self.top_k, ends


class Correction(nn.Module):
    """A bias for each expert, without a gradient, added to the scores that choose experts."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts), requires_grad=False)

    def forward(self, shares: Tensor) -> Tensor:
        return shares + self.weight


def balanced(chosen: Tensor, experts: int) -> Tensor:
    """Expert numbers of shape (tokens, top_k), like `chosen`, with the experts in turn: all get equally many rows, or one more."""
    return torch.arange(chosen.numel(), device=chosen.device).remainder_(experts).view(chosen.shape)


class Product(nn.Module):
    """One or several grouped GEMMs of the same rows, as one part. `widths`: columns of each result."""

    def __init__(self, experts: int, k: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.each = nn.ParameterList([nn.Parameter(torch.empty(experts, n, k)) for n in widths])
        for weight in self.each:
            nn.init.uniform_(weight, -(k**-0.5), k**-0.5)  # as nn.Linear's of each expert

    def forward(self, rows: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
        """`rows`: (rows, k), sorted by expert; `ends`: where each expert's rows end."""
        return tuple(F.grouped_mm(rows, weight.transpose(1, 2), offs=ends) for weight in self.each)


class Permute(nn.Module):
    """Copies each token once for each of its experts, sorted by expert."""

    def forward(self, rows: Tensor, tokens: Tensor) -> Tensor:
        return rows.index_select(0, tokens)


class Unpermute(nn.Module):
    """The sum of each token's results, weighted in fp32. scatter_add, since index_add would save its source for backward, which does not
    need it (torch 2.13)."""

    def forward(self, rows: Tensor, results: Tensor, weights: Tensor, tokens: Tensor) -> Tensor:
        return torch.zeros_like(rows).scatter_add(0, tokens[:, None].expand_as(results), (results.float() * weights).to(rows.dtype))


class Gated(Activation):
    """The activation on the results of `Linear` or `Product`: on one result, on the two halves of one, or on two results."""

    def forward(self, parts: tuple[Tensor, ...]) -> Tensor:  # type: ignore[override]
        if self.kind in GATES and len(parts) == 1:
            parts = parts[0].chunk(2, -1)
        return super().forward(*parts)


class Shared(nn.Module):
    """The shared experts, through which every token goes, as one MLP."""

    def __init__(self, hidden: int, inner: int, kind: str, fused: bool) -> None:
        super().__init__()
        self.up, self.act, self.down = (
            Linear(hidden, widths_of(inner, kind, fused), bias=False),
            Gated(kind),
            nn.Linear(inner, hidden, bias=False),
        )

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.down(self.act(self.up(rows)))
        return out


class Merge(nn.Module):
    """Adds the shared experts' result to that of the routed ones; `gated`: times the sigmoid of a linear with one column (Qwen2-MoE)."""

    def __init__(self, hidden: int, gated: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, 1, bias=False) if gated else None

    def forward(self, rows: Tensor, routed: Tensor, shared: Tensor) -> Tensor:
        return routed + (shared if self.gate is None else torch.sigmoid(self.gate(rows)) * shared)


class Experts(nn.Module):
    """Routed experts, which replace a layer's MLP: (batch, tokens, hidden) to the same shape."""

    def __init__(self, hidden: int, spec: Moe, kind: str, fused: bool) -> None:
        super().__init__()
        self.router, self.permute = Router(hidden, spec), Permute()
        self.exchange: Exchange | None = None
        """With expert parallelism, the exchange of rows, and the weights are only those of this rank's experts; else None."""
        self.up = Product(spec.experts, hidden, widths_of(spec.ffn, kind, fused))
        self.act = Gated(kind)
        self.down = Product(spec.experts, spec.ffn, (hidden,))
        self.unpermute = Unpermute()
        self.shared = Shared(hidden, spec.shared, kind, fused) if spec.shared else None
        self.merge = Merge(hidden, spec.shared_gate) if spec.shared else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights, tokens, ends = self.router(rows)
        given = self.permute(rows, tokens)
        if self.exchange is None:
            results = self._products(given, ends)
        else:
            own, ends, way = self.exchange.there(given, ends)
            results = self.exchange.back(self._products(own, ends), way)
        out: Tensor = self.unpermute(rows, results, weights, tokens)
        if self.shared is not None and self.merge is not None:
            out = self.merge(rows, out, self.shared(rows))
        return out.view_as(x)

    def _products(self, rows: Tensor, ends: Tensor) -> Tensor:
        results: Tensor
        (results,) = self.down(self.act(self.up(rows, ends)), ends)
        return results


def widths_of(inner: int, kind: str, fused: bool) -> tuple[int, ...]:
    """Output columns of each linear before the activation: one, two for a gated activation, or both in one if `fused`."""
    if kind not in GATES:
        return (inner,)
    return (2 * inner,) if fused else (inner, inner)
