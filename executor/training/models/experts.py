"""Routed experts: router, rows sorted by expert, grouped products, their weighted sum, and the experts that all tokens share.

Written as torchtitan's models/moe/moe.py: weights of all experts are one tensor, rows go through torch.nn.functional.grouped_mm (in 16 bits one
kernel on a GPU; on a CPU a loop over experts in C++). Routing is balanced, as predictions assume it: the router computes its choice, which
is then replaced by the experts in turn (torchtitan's debug.moe_force_load_balance, Megatron-Core's moe_router_force_load_balancing). Left alone,
freshly drawn routers send the fullest of four experts 1.4 to 2.0 times its share (the plan `experts` of `executor.validation.here_plans`).
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
"""Of each sorted row: its weight (rows x 1, fp32) and its token; of each expert: where its rows end (int32)."""


class Router(nn.Module):
    """Scores, their softmax, top-k, and the order of rows by expert. With a correction, which joins the choice alone, a sigmoid (DeepSeek-V3,
    technical report, section 2.1.2): models that have the one have the other."""

    def __init__(self, hidden: int, spec: Moe) -> None:
        super().__init__()
        self.experts, self.top_k = spec.experts, spec.top_k
        self.scores = nn.Linear(hidden, spec.experts, bias=spec.router_bias)
        self.correction = Correction(spec.experts) if spec.correction else None

    def forward(self, rows: Tensor) -> Routed:
        """(tokens, hidden)."""
        scores = self.scores(rows)
        shares = scores.softmax(-1, dtype=torch.float32) if self.correction is None else scores.float().sigmoid()
        ranked = shares if self.correction is None else self.correction(shares)
        chosen = balanced(ranked.topk(self.top_k, sorted=False)[1], self.experts)
        weights = shares.gather(1, chosen)
        if self.top_k > 1:  # a single one would be 1 whatever the router says
            weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        rows_each = torch.histc(chosen.flatten().float(), self.experts, 0, self.experts)  # bincount would make the host wait
        ends = rows_each.cumsum(0, dtype=torch.int32)
        return weights.flatten()[order, None], order // self.top_k, ends


class Correction(nn.Module):
    """A number for each expert, without a gradient, added to the scores that choose."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts), requires_grad=False)

    def forward(self, shares: Tensor) -> Tensor:
        return shares + self.weight


def balanced(chosen: Tensor, experts: int) -> Tensor:
    """(tokens, top_k) as `chosen`, with the experts in turn: each gets as many rows as any other, or one more."""
    return torch.arange(chosen.numel(), device=chosen.device).remainder_(experts).view(chosen.shape)


class Product(nn.Module):
    """One or several grouped products on the same rows, as one part."""

    def __init__(self, experts: int, k: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.each = nn.ParameterList([nn.Parameter(torch.empty(experts, n, k)) for n in widths])
        for weight in self.each:
            nn.init.uniform_(weight, -(k**-0.5), k**-0.5)  # as nn.Linear's of each expert

    def forward(self, rows: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
        """(rows, k), sorted by expert."""
        return tuple(F.grouped_mm(rows, weight.transpose(1, 2), offs=ends) for weight in self.each)


class Permute(nn.Module):
    """Each token once for each of its experts, sorted by expert."""

    def forward(self, rows: Tensor, tokens: Tensor) -> Tensor:
        return rows.index_select(0, tokens)


class Unpermute(nn.Module):
    """The weighted sum of each token's results, weighted in fp32. index_add would keep what it adds for backward, which does not read it (torch 2.13)."""

    def forward(self, rows: Tensor, results: Tensor, weights: Tensor, tokens: Tensor) -> Tensor:
        return torch.zeros_like(rows).scatter_add(0, tokens[:, None].expand_as(results), (results.float() * weights).to(rows.dtype))


class Gated(Activation):
    """The activation on what `Linear` or `Product` give: one result, the halves of one, or two."""

    def forward(self, parts: tuple[Tensor, ...]) -> Tensor:  # type: ignore[override]
        if self.kind in GATES and len(parts) == 1:
            parts = parts[0].chunk(2, -1)
        return super().forward(*parts)


class Shared(nn.Module):
    """The experts that every token passes through, as one MLP."""

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
    """The shared experts' result beside the routed ones', through a gate of one column where there is one (Qwen2-MoE)."""

    def __init__(self, hidden: int, gated: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, 1, bias=False) if gated else None

    def forward(self, rows: Tensor, routed: Tensor, shared: Tensor) -> Tensor:
        return routed + (shared if self.gate is None else torch.sigmoid(self.gate(rows)) * shared)


class Experts(nn.Module):
    """What stands in place of the MLP: (batch, tokens, hidden) to the same."""

    def __init__(self, hidden: int, spec: Moe, kind: str, fused: bool) -> None:
        super().__init__()
        self.router, self.permute = Router(hidden, spec), Permute()
        self.exchange: Exchange | None = None
        """Of expert parallelism; the weights are then those of this rank's experts."""
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
    """Columns of each weight before the activation."""
    if kind not in GATES:
        return (inner,)
    return (2 * inner,) if fused else (inner, inner)
