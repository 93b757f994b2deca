"""Parts of models as torch modules: linears, rotary positions, the core of attention, activations, norms.

Each module is one part of `sim.model`, so that a profile of the real model can be read part by part.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GATES: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "relu2": lambda x: F.relu(x).square(),
}


class Linear(nn.Module):
    """One or several linears with the same input, as one part. Returns a tuple of their outputs."""

    def __init__(self, k: int, widths: tuple[int, ...], bias: bool) -> None:
        super().__init__()
        self.each = nn.ModuleList([nn.Linear(k, n, bias=bias) for n in widths])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(linear(x) for linear in self.each)


class Rotary(nn.Module):
    """Rotary positions as in transformers: x cos + rotate_half(x) sin, on the first `d` columns of each head."""

    def __init__(self, d: int, positions: int) -> None:
        super().__init__()
        self.d = d
        angles = torch.outer(torch.arange(positions).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin(), persistent=False)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Both are (batch, heads, seq, head size), before and after."""
        assert isinstance(self.cos, Tensor) and isinstance(self.sin, Tensor)
        cos, sin = self.cos[: q.shape[2]].to(q.dtype), self.sin[: q.shape[2]].to(q.dtype)
        if self.d == q.shape[-1]:
            return self._turn(q, cos, sin), self._turn(k, cos, sin)
        return self._some(q, cos, sin), self._some(k, cos, sin)

    def _some(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.cat((self._turn(x[..., : self.d], cos, sin), x[..., self.d :]), -1)

    @staticmethod
    def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def capped(x: Tensor, most: float) -> Tensor:
    """Gemma 2's soft cap: about x where x is small, never beyond `most`."""
    return torch.tanh(x / most) * most


class Cap(nn.Module):
    """`capped` as a module."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        return capped(x, self.most)


class Core(nn.Module):
    """softmax(Q K^T) V, fused or (`math`) as separate operators. Sequences are not padded, so without `causal` no mask is needed; but with
    `math` and `mask` (BERT) one of zeros is added, and with `math` scores may be `capped`."""

    def __init__(self, math: bool, causal: bool = True, mask: bool = False, dropout: float = 0.0, capped: bool = False) -> None:
        super().__init__()
        self.math, self.causal, self.mask, self.dropout, self.capped = math, causal, mask, dropout, capped
        self.document = 0
        """Tokens of each document of a packed sequence: attention stays inside each. 0: the whole sequence is one document."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """All are (batch, heads, seq, d); `k` and `v` may have fewer heads. Returns (batch, seq, heads x d). `mask`, if any, is added to
        the scores."""
        drops, batch = self.dropout if self.training else 0.0, q.shape[0]
        if self.math:
            groups = q.shape[1] // k.shape[1]
            k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            if self.capped:
                scores = capped(scores, 50.0)
            if mask is not None:
                scores = scores + mask
            elif self.causal or self.mask:
                hidden = torch.full(scores.shape[-2:], float("-inf") if self.causal else 0.0, device=q.device, dtype=scores.dtype)
                scores = scores + (hidden.triu(1) if self.causal else hidden)
            weights = torch.softmax(scores, -1)
            out = (F.dropout(weights, drops) if drops else weights).to(v.dtype) @ v
        else:
            q, k, v = (self._apart(x) for x in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, mask, drops, self.causal, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).reshape(batch, -1, out.shape[1] * out.shape[-1])

    def _apart(self, x: Tensor) -> Tensor:
        """Documents as sequences: (batch x documents, heads, document, d). It is a view without a copy, as the heads of a token are
        adjacent in memory."""
        return x.reshape(*x.shape[:2], -1, self.document, x.shape[-1]).transpose(1, 2).flatten(0, 1) if self.document else x


class Activation(nn.Module):
    """act(x), or with `up` act(x) times up (gated)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, up: Tensor | None = None) -> Tensor:
        out: Tensor = PLAIN[self.kind](x) if up is None else GATES[self.kind](x) * up
        return out


def make_norm(kind: str, width: int, bias: bool = True, weight: bool = True) -> nn.Module:
    """RMSNorm or LayerNorm over `width`."""
    if kind == "rmsnorm":
        return nn.RMSNorm(width, eps=1e-5, elementwise_affine=weight)
    return nn.LayerNorm(width, elementwise_affine=weight, bias=bias)


class WrittenOut(nn.Module):
    """RMSNorm as in transformers (LlamaRMSNorm): in fp32, by separate operators."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        assert norm.eps is not None
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        out = wide.to(x.dtype)
        return out if self.weight is None else self.weight * out


def write_norms_out(model: nn.Module) -> None:
    """Replaces each RMSNorm of the model by `WrittenOut`."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.RMSNorm):
                setattr(module, name, WrittenOut(child))


class Dropout(nn.Dropout):
    """Dropout that launches nothing if its rate is 0."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.p else x


class Scale(nn.Module):
    """A learned factor for each column, or one factor for all columns if `hidden` is 1."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((hidden,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor
