"""Causal transformers: GPT, Llama, NeoX, Falcon, OLMo 2, Gemma ... A layer maps activations to activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from executor.training.models.experts import Experts
from executor.training.models.parts import GATES, Activation, Cap, Core, Dropout, Linear, Rotary, make_norm
from sim.framework.framework import Framework
from sim.model.specs.decoder import Decoder

RATE = 0.1
"""Rate of dropout if the framework has dropout and the model states no rate."""


def rate_of(spec: Decoder, habits: Framework) -> float:
    """Share of values that dropout zeroes."""
    if spec.dropout is None:
        return RATE if habits.elementwise.dropout else 0.0
    return spec.dropout


class Layer(nn.Module):
    """One decoder layer: norm1, attention, residual, norm2, MLP, residual; norms before a branch, after it or both; or both branches in
    parallel.

    A fused qkv has the rows of each key-value group together (its queries, key, value), and a fused gate-and-up has those of each
    tensor-parallel shard together, so that splitting the rows over `tp` ranks gives each rank whole heads and whole pairs.
    """

    def __init__(self, spec: Decoder, habits: Framework, seq: int, tp: int, routed: bool, rotated: bool) -> None:
        super().__init__()
        self.parallel, self.two_norms, self.rotated = spec.parallel_block, spec.two_norms, rotated
        rate = rate_of(spec, habits)
        self.fused = habits.linears.fused_projections if spec.fused_qkv is None else spec.fused_qkv
        self.norm1 = _norm(spec) if spec.pre_norms else nn.Identity()
        self._attention(spec, habits, seq, rate if spec.attention_dropout is None else spec.attention_dropout)
        self.post1 = _norm(spec) if spec.post_norms else None
        own = spec.pre_norms and (not spec.parallel_block or spec.two_norms)
        self.norm2 = _norm(spec) if own else nn.Identity()
        self.moe: Experts | None = None
        if routed:
            assert spec.moe is not None
            self.moe = Experts(spec.hidden, spec.moe, spec.activation, self.fused)
        else:
            self._mlp(spec, tp)
        self.post2 = _norm(spec) if spec.post_norms else None
        self.drop = nn.Dropout(rate) if rate else None
        self.scaled = "mixers" in spec.scaled

    def _attention(self, spec: Decoder, habits: Framework, seq: int, rate: float) -> None:
        h, d = spec.hidden, spec.head
        self.heads, self.kv, self.d = spec.heads, spec.kv, d
        q, k = spec.heads * d, spec.kv * d
        self.qkv = Linear(h, (q + 2 * k,) if self.fused else (q, k, k), spec.bias if spec.qkv_bias is None else spec.qkv_bias)
        self.whole = spec.qk_norm_whole
        widths = ((q, k) if spec.qk_norm_whole else (d, d)) if spec.qk_norm else ()
        self.q_norm: nn.Module | None
        self.k_norm: nn.Module | None
        self.q_norm, self.k_norm = (make_norm("rmsnorm", width, weight=spec.qk_norm_weight) for width in widths) if widths else (None, None)
        self.rope = Rotary(spec.rotated, seq) if spec.position == "rope" and self.rotated else None
        self.core = Core(habits.attention.of(spec.biased_scores) == "math", dropout=rate, capped=spec.capped_scores)
        self.proj = nn.Linear(q, h, bias=spec.bias if spec.proj_bias is None else spec.proj_bias)

    def _mlp(self, spec: Decoder, tp: int) -> None:
        self.gate, self.shards, inner = GATES.get(spec.activation), tp, spec.inner
        widths = ((2 * inner,) if self.fused else (inner, inner)) if self.gate else (inner,)
        self.up = Linear(spec.hidden, widths, spec.bias)
        if self.gate and self.fused and tp > 1:
            _by_shard(self.up, tp)
        self.act = Activation(spec.activation)
        self.down = nn.Linear(inner, spec.hidden, bias=spec.bias)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = self.qkv(x)
        batch, seq = x.shape[0], parts[0].shape[1]
        if self.fused:
            ratio = self.heads // self.kv
            rows = parts[0].view(batch, seq, -1, ratio + 2, self.d)
            q, k, v = (part.flatten(2, 3) for part in rows.split((ratio, 1, 1), dim=3))
        else:
            q, k, v = (part.view(batch, seq, -1, self.d) for part in parts)
        if self.q_norm is not None and self.k_norm is not None:
            if self.whole:
                q, k = (norm(x.flatten(2)).view(x.shape) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
            else:
                q, k = self.q_norm(q), self.k_norm(k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _inner(self, x: Tensor) -> Tensor:
        parts: tuple[Tensor, ...] = self.up(x)
        if self.gate and self.fused:
            whole = parts[0]
            local = max(1, whole.shape[-1] * self.shards // (2 * self.down.in_features))
            pair = whole.view(*whole.shape[:-1], local, 2, -1)
            parts = tuple(part.flatten(-2) for part in pair.unbind(-2))
        out: Tensor = self.act(*parts)
        return out

    def _turned(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values with their positions: (batch, heads, seq, columns) each."""
        q, k, v = self._heads(x)
        if self.rope is not None:
            q, k = self.rope(q, k)
        return q, k, v

    def _attended(self, x: Tensor) -> Tensor:
        a: Tensor = self.proj(self.core(*self._turned(x)))
        a = _times(a if self.post1 is None else self.post1(a), self.scaled)
        return self.drop(a) if self.drop else a

    def _fed(self, x: Tensor) -> Tensor:
        b: Tensor = self.down(self._inner(x)) if self.moe is None else self.moe(x)
        b = _times(b if self.post2 is None else self.post2(b), self.scaled)
        return self.drop(b) if self.drop else b

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        if self.parallel:
            return x + self._attended(y) + self._fed(self.norm2(x) if self.two_norms else y)
        x = x + self._attended(y)
        return x + self._fed(self.norm2(x))


def _times(x: Tensor, scaled: bool) -> Tensor:
    """If `scaled`, runs the kernel of a multiplication by a fixed number; its value does not matter."""
    return x * 1.0 if scaled else x


def _norm(spec: Decoder) -> nn.Module:
    return make_norm(spec.norm, spec.hidden, spec.norm_bias, spec.norm_weight)


def _by_shard(up: Linear, tp: int) -> None:
    """Reorders the rows (gate, up) of the whole into (gate, up) of each shard, so that the layer computes the same for every `tp`."""
    with torch.no_grad():
        for tensor in up.parameters():
            tensor.copy_(tensor.view(2, tp, -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape))


class Embed(nn.Module):
    """Token embedding, plus learned positions, dropout and a norm, each if the model has it."""

    def __init__(self, spec: Decoder, habits: Framework, seq: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab + spec.further_rows, spec.hidden)
        self.positions = nn.Embedding(max(spec.positions, seq), spec.hidden) if spec.position == "learned" else None
        self.drop = Dropout(rate_of(spec, habits))
        self.norm = _norm(spec) if spec.embed_norm else None
        self.scaled = "embedding" in spec.scaled

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        x = _times(self.drop(x), self.scaled)
        return x if self.norm is None else self.norm(x)


class Head(nn.Module):
    """The last norm and the logits."""

    def __init__(self, spec: Decoder) -> None:
        super().__init__()
        self.norm = _norm(spec)
        self.logits = nn.Linear(spec.hidden, spec.vocab, bias=spec.head_bias)
        self.cap = Cap(30.0) if spec.capped_logits else None
        self.scaled = "head" in spec.scaled, "logits" in spec.scaled

    def forward(self, x: Tensor) -> Tensor:
        read, made = self.scaled
        y = _times(self.logits(_times(self.norm(x), read)), made)
        return y if self.cap is None else self.cap(y)
