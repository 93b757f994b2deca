"""Parts of a decoder layer as torch modules: linears, rotary positions, the attention's core, activations, norms.

Each is one part of `sim.model`, so that a profile of the real model can be read by part.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sim.model.specs.decoder import Decoder

GATES: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "relu2": lambda x: F.relu(x).square(),
}


class Linear(nn.Module):
    """One or several linears on the same input, as one part."""

    def __init__(self, k: int, widths: tuple[int, ...], bias: bool) -> None:
        super().__init__()
        self.each = nn.ModuleList([nn.Linear(k, n, bias=bias) for n in widths])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(linear(x) for linear in self.each)


class Rotary(nn.Module):
    """Rotary positions as transformers writes them: x cos + rotate_half(x) sin."""

    def __init__(self, d: int, positions: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(positions).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin(), persistent=False)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, heads, seq, d) each."""
        assert isinstance(self.cos, Tensor) and isinstance(self.sin, Tensor)
        cos, sin = self.cos[: q.shape[2]].to(q.dtype), self.sin[: q.shape[2]].to(q.dtype)
        return self._turn(q, cos, sin), self._turn(k, cos, sin)

    @staticmethod
    def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Core(nn.Module):
    """softmax(Q K^T) V, fused or written out."""

    def __init__(self, math: bool) -> None:
        super().__init__()
        self.math = math

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(batch, heads, seq, d), fewer key-value heads allowed; returns (batch, seq, heads x d)."""
        if self.math:
            groups = q.shape[1] // k.shape[1]
            k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            mask = torch.full(scores.shape[-2:], float("-inf"), device=q.device, dtype=q.dtype).triu(1)
            out = torch.softmax(scores + mask, -1) @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).flatten(2)


class Activation(nn.Module):
    """act(x), or act(gate) x up."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, up: Tensor | None = None) -> Tensor:
        out: Tensor = PLAIN[self.kind](x) if up is None else GATES[self.kind](x) * up
        return out


def make_norm(spec: Decoder) -> nn.Module:
    """RMSNorm or LayerNorm of the hidden width."""
    return nn.RMSNorm(spec.hidden, eps=1e-5) if spec.norm == "rmsnorm" else nn.LayerNorm(spec.hidden, bias=spec.norm_bias)
