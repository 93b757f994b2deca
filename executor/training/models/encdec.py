"""Encoder-decoders: T5 (Raffel et al. 2019) and the Transformer of 2017 (Vaswani et al.)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.training.models.parts import GATES, Activation, Dropout, Linear, make_norm
from sim.framework.framework import Framework
from sim.model.specs.spec import EncDec

_FARTHEST = 128
"""Distance in tokens from which all distances share a bucket (T5's relative_attention_max_distance)."""


class Relative(nn.Module):
    """Relative position bias: a learned number for each head and bucket of distances, as (1, heads, queries, keys)."""

    def __init__(self, buckets: int, heads: int, length: int, causal: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        places = torch.arange(length)
        self.register_buffer("buckets", _bucket(places[None] - places[:, None], buckets, causal), persistent=False)

    def forward(self) -> Tensor:
        out: Tensor = self.table(self.buckets)
        return out.permute(2, 0, 1)[None]


def _bucket(apart: Tensor, buckets: int, causal: bool) -> Tensor:
    """The bucket of each distance. Each direction has half of the buckets, unless `causal`; half of those are one token wide, the others
    grow logarithmically."""
    side = torch.zeros_like(apart)
    if not causal:
        buckets //= 2
        side = (apart > 0) * buckets
        apart = apart.abs()
    else:
        apart = (-apart).clamp(min=0)
    exact = buckets // 2
    far = torch.log(apart.clamp(min=1) / exact) / math.log(_FARTHEST / exact) * (buckets - exact)
    return side + torch.where(apart < exact, apart, (exact + far.long()).clamp(max=buckets - 1))


class Attention(nn.Module):
    """softmax(Q K^T + bias) V by heads; T5 does not scale the scores."""

    def __init__(self, spec: EncDec, habits: Framework, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.math = spec.heads, causal, habits.attention.of(spec.biased_scores) == "math"
        self.scale = 1.0 if spec.relative else (spec.head_dim or spec.hidden // spec.heads) ** -0.5
        self.rate = spec.dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """All are (batch, tokens, heads x d), and so is the result. `bias`, if any, is added to the scores."""
        q, k, v = (x.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for x in (q, k, v))
        drops = self.rate if self.training else 0.0
        mask = None if bias is None else bias.to(q.dtype)
        if self.causal and (mask is not None or self.math):
            future = torch.full((q.shape[2], k.shape[2]), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
            mask = future if mask is None else mask + future
        if self.math:
            scores = q @ k.transpose(-1, -2)
            scores = scores if self.scale == 1.0 else scores * self.scale
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            out = (F.dropout(weights, drops) if drops else weights).to(v.dtype) @ v
        else:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=drops, is_causal=self.causal and mask is None, scale=self.scale
            )
        return out.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """Attention, in the decoder also cross-attention to the encoder's result, and MLP; each with a residual and a norm before or after
    it."""

    def __init__(self, spec: EncDec, habits: Framework, *, decodes: bool, first: bool, length: int) -> None:
        super().__init__()
        inner = spec.heads * (spec.head_dim or spec.hidden // spec.heads)
        fused, bias, h = habits.linears.fused_projections, spec.bias, spec.hidden
        self.pre_norm, self.decodes, self.drop = spec.pre_norm, decodes, Dropout(spec.dropout)
        self._norm(spec, "attn", first=True)
        self.attn__positions = Relative(spec.relative, spec.heads, length, decodes) if spec.relative and first else None
        self.attn__qkv = Linear(h, (3 * inner,) if fused else (inner,) * 3, bias)
        self.attn__core = Attention(spec, habits, decodes)
        self.attn__proj = nn.Linear(inner, h, bias=bias)
        self._norm(spec, "attn", first=False)
        if decodes:
            self._norm(spec, "cross", first=True)
            self.cross__q = nn.Linear(h, inner, bias=bias)
            self.cross__kv = Linear(h, (2 * inner,) if fused else (inner,) * 2, bias)
            self.cross__core = Attention(spec, habits, False)
            self.cross__proj = nn.Linear(inner, h, bias=bias)
            self._norm(spec, "cross", first=False)
        self._norm(spec, "mlp", first=True)
        gated = spec.activation in GATES
        self.mlp__up = Linear(h, ((2 * spec.ffn,) if fused else (spec.ffn,) * 2) if gated else (spec.ffn,), bias)
        self.mlp__act, self.mlp__down = Activation(spec.activation), nn.Linear(spec.ffn, h, bias=bias)
        self.gated = gated
        self._norm(spec, "mlp", first=False)

    def _norm(self, spec: EncDec, name: str, *, first: bool) -> None:
        """Registers a norm in the order in which it runs: before its mixer, or after it."""
        if first == spec.pre_norm:
            self.add_module(f"{name}__norm", make_norm(spec.norm, spec.hidden))

    def forward(self, x: Tensor, bias: Tensor | None = None, result: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """`bias`: made by the first layer of the stack; `result`: the encoder's, for cross-attention. Returns the activations and the
        bias."""
        y = self._before("attn", x)
        if self.attn__positions is not None:
            bias = self.attn__positions()
        q, k, v = _apart(self.attn__qkv(y), 3)
        x = self._after("attn", x, self.attn__proj(self.attn__core(q, k, v, bias)))
        if self.decodes:
            assert result is not None
            q = self.cross__q(self._before("cross", x))
            k, v = _apart(self.cross__kv(result), 2)
            x = self._after("cross", x, self.cross__proj(self.cross__core(q, k, v, None)))
        parts = self.mlp__up(self._before("mlp", x))
        return self._after("mlp", x, self.mlp__down(self.mlp__act(*(_apart(parts, 2) if self.gated else parts)))), bias

    def _before(self, name: str, x: Tensor) -> Tensor:
        return self.get_submodule(f"{name}__norm")(x) if self.pre_norm else x

    def _after(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.drop(y)
        return x if self.pre_norm else self.get_submodule(f"{name}__norm")(x)


def _apart(parts: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
    """`count` results: those of `count` linears, or the chunks of one fused linear."""
    return parts[0].chunk(count, -1) if len(parts) == 1 else parts


class Embed(nn.Module):
    """Token embedding, plus sinusoids if positions are not relative. The decoder's (`target`) shares the encoder's table, and holds the
    encoder's last norm."""

    def __init__(self, spec: EncDec, length: int, *, target: bool = False) -> None:
        super().__init__()
        self.scale = math.sqrt(spec.hidden)
        if target and spec.pre_norm:
            self.norm = make_norm(spec.norm, spec.hidden)
        self.tokens = nn.Embedding(spec.vocab, spec.hidden)
        self.drop = Dropout(spec.dropout)
        self.register_buffer("waves", None if spec.relative else _waves(length, spec.hidden), persistent=False)

    def forward(self, ids: Tensor, result: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The embedded tokens, and the encoder's `result` after its last norm."""
        if result is not None and hasattr(self, "norm"):
            result = self.norm(result)
        x = self.tokens(ids)
        if isinstance(self.waves, Tensor):
            x = x * self.scale + self.waves[: ids.shape[1]].to(x.dtype)
        return self.drop(x), result


def _waves(length: int, hidden: int) -> Tensor:
    """Sines and cosines of Vaswani et al. 2017, section 3.5."""
    angles = torch.outer(torch.arange(length).float(), 10000.0 ** (-torch.arange(0, hidden, 2).float() / hidden))
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :hidden]


class Head(nn.Module):
    """Last norm and the logits."""

    def __init__(self, spec: EncDec) -> None:
        super().__init__()
        if spec.pre_norm:
            self.norm = make_norm(spec.norm, spec.hidden)
        self.logits = nn.Linear(spec.hidden, spec.vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.logits(self.norm(x) if hasattr(self, "norm") else x)
        return y


def blocks(spec: EncDec, habits: Framework, seq: int) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of each block: embed, L0 ... (encoder), target, D0 ... (decoder), head."""
    target = spec.target or seq
    yield "embed", Embed(spec, seq)
    for i in range(spec.layers):
        yield f"L{i}", Layer(spec, habits, decodes=False, first=not i, length=seq)
    yield "target", Embed(spec, target, target=True)
    for i in range(spec.layers):
        yield f"D{i}", Layer(spec, habits, decodes=True, first=not i, length=target)
    yield "head", Head(spec)


def run(children: dict[str, nn.Module], ids: Tensor, seq: int) -> Tensor:
    """Runs all blocks. `ids`: (batch, source and target tokens); returns the target's logits."""
    bias, result = None, None
    x, _ = children["embed"](ids[:, :seq])
    for name, block in children.items():
        if name[0] == "L":
            x, bias = block(x, bias)
        elif name == "target":
            (x, result), bias = block(ids[:, seq:], x), None
        elif name[0] == "D":
            x, bias = block(x, bias, result)
    out: Tensor = children["head"](x)
    return out
