"""The models of `sim.model` as real torch modules: the same parts, the same parameters in the same order.

Blocks are those of the simulator (`embed`, `L0` ..., `head`), and each part is one submodule, so that a profile of the
real model can be read by part. A block maps activations to activations: the unit of FSDP, pipelines and recomputation.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.training.modules import GATES, Activation, Core, Linear, Rotary, make_norm
from sim.framework import Framework
from sim.model.specs.decoder import Decoder
from sim.model.specs.spec import Mlp, ModelSpec

PARTS = {
    "tokens": "embed.tokens",
    "qkv": "attn.qkv",
    "core": "attn.core",
    "proj": "attn.proj",
    "up": "mlp.up",
    "act": "mlp.act",
    "down": "mlp.down",
    "logits": "head.logits",
    "norm": "head.norm",
    "loss": "head.loss",
}
"""Submodule -> part's name in `sim.model`, where they differ."""


class Layer(nn.Module):
    """One decoder layer: norm1, attention, residual, norm2, MLP, residual.

    A fused qkv holds the rows of one key-value group together (its queries, key, value), and a fused gate-and-up those of
    one tensor-parallel shard, so that splitting the rows over `tp` ranks gives each rank whole heads and whole pairs.
    """

    def __init__(self, spec: Decoder, habits: Framework, seq: int, tp: int) -> None:
        super().__init__()
        h, d = spec.hidden, spec.head
        self.heads, self.kv, self.d, self.shards = spec.heads, spec.kv, d, tp
        self.fused = habits.fused_projections if spec.fused_qkv is None else spec.fused_qkv
        q, k = spec.heads * d, spec.kv * d
        qkv_bias = spec.bias if spec.qkv_bias is None else spec.qkv_bias
        self.norm1 = make_norm(spec)
        self.qkv = Linear(h, (q + 2 * k,) if self.fused else (q, k, k), qkv_bias)
        self.rope = Rotary(d, seq) if spec.position == "rope" else None
        self.core = Core(habits.attention == "math")
        self.proj = nn.Linear(q, h, bias=spec.bias if spec.proj_bias is None else spec.proj_bias)
        self.norm2 = make_norm(spec)
        self.gate = GATES.get(spec.activation)
        inner = spec.inner
        widths = ((2 * inner,) if self.fused else (inner, inner)) if self.gate else (inner,)
        self.up = Linear(h, widths, spec.bias)
        if self.gate and self.fused and tp > 1:
            _by_shard(self.up, tp)
        self.act = Activation(spec.activation)
        self.down = nn.Linear(inner, h, bias=spec.bias)
        drops = habits.dropout if spec.dropout is None else spec.dropout > 0
        self.drop = nn.Dropout(spec.dropout or 0.1) if drops else None

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = self.qkv(x)
        batch, seq = x.shape[0], parts[0].shape[1]
        if self.fused:
            ratio = self.heads // self.kv
            rows = parts[0].view(batch, seq, -1, ratio + 2, self.d)
            q, k, v = (part.flatten(2, 3) for part in rows.split((ratio, 1, 1), dim=3))
        else:
            q, k, v = (part.view(batch, seq, -1, self.d) for part in parts)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _inner(self, x: Tensor) -> Tensor:
        parts: tuple[Tensor, ...] = self.up(x)
        if self.gate and self.fused:
            whole = parts[0]
            local = max(1, whole.shape[-1] * self.shards // (2 * self.down_width))
            pair = whole.view(*whole.shape[:-1], local, 2, -1)
            parts = tuple(part.flatten(-2) for part in pair.unbind(-2))
        out: Tensor = self.act(*parts)
        return out

    @property
    def down_width(self) -> int:
        """Columns of the whole, unsplit inner layer."""
        return self.down.in_features

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._heads(self.norm1(x))
        if self.rope is not None:
            q, k = self.rope(q, k)
        a: Tensor = self.proj(self.core(q, k, v))
        x = x + (self.drop(a) if self.drop else a)
        b: Tensor = self.down(self._inner(self.norm2(x)))
        return x + (self.drop(b) if self.drop else b)


def _by_shard(up: Linear, tp: int) -> None:
    """Rows (gate, up) of the whole become (gate, up) of each shard: the same function, whatever the split."""
    with torch.no_grad():
        for tensor in up.parameters():
            tensor.copy_(tensor.view(2, tp, -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape))


class Embed(nn.Module):
    """Token rows, plus learned positions."""

    def __init__(self, spec: Decoder, seq: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab, spec.hidden)
        self.positions = nn.Embedding(max(spec.positions, seq), spec.hidden) if spec.position == "learned" else None

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return x


class Head(nn.Module):
    """Last norm and the logits."""

    def __init__(self, spec: Decoder) -> None:
        super().__init__()
        self.norm = make_norm(spec)
        self.logits = nn.Linear(spec.hidden, spec.vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.logits(self.norm(x))
        return y


class Dense(nn.Module):
    """One linear of an MLP with its activation."""

    def __init__(self, k: int, n: int, bias: bool, act: str) -> None:
        super().__init__()
        self.linear = nn.Linear(k, n, bias=bias)
        self.act = Activation(act) if act else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return self.act(y) if self.act is not None else y


def loss_of(spec: ModelSpec, output: Tensor, target: Tensor) -> Tensor:
    """The mean over all tokens (samples) of this micro-batch."""
    if isinstance(spec, Mlp) and spec.loss == "mse":
        return F.mse_loss(output, target)
    width = output.shape[-1]
    return F.cross_entropy(output.reshape(-1, width).float(), target.reshape(-1))


class Model(nn.Sequential):
    """All blocks in order; calling it gives the output, `loss_of` the loss."""

    def __init__(self, spec: ModelSpec, habits: Framework, seq: int, tp: int = 1) -> None:
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        if isinstance(spec, Mlp):
            last = len(spec.widths) - 2
            for i, (k, n) in enumerate(pairwise(spec.widths)):
                blocks[f"L{i}"] = Dense(k, n, spec.bias, spec.activation if i < last else "")
        else:
            assert isinstance(spec, Decoder)
            blocks["embed"] = Embed(spec, seq)
            for i in range(spec.layers):
                blocks[f"L{i}"] = Layer(spec, habits, seq, tp)
            blocks["head"] = Head(spec)
        super().__init__(blocks)
        self.spec = spec
        if getattr(spec, "tied", False):
            self.head.logits.weight = self.embed.tokens.weight  # type: ignore[union-attr]


def part_name(path: str) -> str:
    """`L3.qkv.each.0` -> `L3.attn.qkv`; `embed.tokens` and `head.norm` as they are."""
    names = path.split(".")
    if len(names) < 2 or names[0] in ("embed", "head"):
        return ".".join(names[:2])
    return f"{names[0]}.{PARTS.get(names[1], names[1])}"
