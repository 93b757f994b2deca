"""FLUX.1's transformer in plain PyTorch, written from the published model's description: latents to the squared error of the flow.

Takes latents alone; text, time and guidance are made inside, as numbers without gradients.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.diffusion_modules import _sines, _two
from tests.conformance.modules import joined


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Pairs of columns of (batch, heads, tokens, size), each times a 2 x 2 rotation."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 1, 2)
    turned = angles[..., 0] * pairs[..., 0] + angles[..., 1] * pairs[..., 1]
    return turned.reshape(x.shape).type_as(x)


class Steer(nn.Module):
    """Shifts, scales and gates from what steers all layers."""

    def __init__(self, h: int, count: int) -> None:
        super().__init__()
        self.count, self.act, self.lin = count, nn.SiLU(), nn.Linear(h, count * h)

    def forward(self, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.lin(self.act(c)).unsqueeze(1).chunk(self.count, -1)  # type: ignore[no-any-return]


class Queries(nn.Module):
    """Heads of queries, keys and values of one product; the first two normed."""

    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.heads, self.q, self.k = heads, nn.RMSNorm(h // heads, eps=1e-6), nn.RMSNorm(h // heads, eps=1e-6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = x.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.q(q), self.k(k), v


class Stream(nn.Module):
    """Weights of the picture, or of the text, in a layer that keeps them apart."""

    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.steer, self.qkv, self.heads, self.proj = Steer(h, 6), nn.Linear(h, 3 * h), Queries(h, heads), nn.Linear(h, h)
        self.norm1, self.norm2 = (nn.LayerNorm(h, elementwise_affine=False) for _ in range(2))
        self.up, self.gelu, self.down = nn.Linear(h, 4 * h), nn.GELU(approximate="tanh"), nn.Linear(4 * h, h)


class Double(nn.Module):
    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.picture, self.text = Stream(h, heads), Stream(h, heads)

    def forward(
        self, picture: torch.Tensor, text: torch.Tensor, c: torch.Tensor, angles: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        both = ((self.text, text), (self.picture, picture))
        steered = [of.steer(c) for of, _ in both]
        found = [of.heads(of.qkv((1 + s[1]) * of.norm1(x) + s[0])) for (of, x), s in zip(both, steered, strict=True)]
        q, k, v = (torch.cat(pair, 2) for pair in zip(*found, strict=True))
        y = joined(F.scaled_dot_product_attention(_turned(q, angles), _turned(k, angles), v))
        parts, out = (y[:, : text.shape[1]], y[:, text.shape[1] :]), []
        for (of, x), s, part in zip(both, steered, parts, strict=True):
            x = x + s[2] * of.proj(part)
            out.append(x + s[5] * of.down(of.gelu(of.up((1 + s[4]) * of.norm2(x) + s[3]))))
        return out[1], out[0]


class Single(nn.Module):
    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.h, self.steer, self.norm, self.heads = h, Steer(h, 3), nn.LayerNorm(h, elementwise_affine=False), Queries(h, heads)
        self.up, self.gelu, self.down = nn.Linear(h, 7 * h), nn.GELU(approximate="tanh"), nn.Linear(5 * h, h)

    def forward(self, x: torch.Tensor, c: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.steer(c)
        qkv, inner = self.up((1 + scale) * self.norm(x) + shift).split([3 * self.h, 4 * self.h], -1)
        q, k, v = self.heads(qkv)
        y = joined(F.scaled_dot_product_attention(_turned(q, angles), _turned(k, angles), v))
        return x + gate * self.down(torch.cat([y, self.gelu(inner)], -1))  # type: ignore[no-any-return]


class Flux(nn.Module):
    """Latents of 16 channels and their noise to the squared error of the flow from one to the other."""

    def __init__(self, double: int = 19, single: int = 38, h: int = 3072, heads: int = 24, guidance: bool = True, text: int = 512, context: int = 4096, pooled: int = 768) -> None:  # fmt: skip
        super().__init__()
        self.size, self.words, self.context, self.pool = h // heads, text, context, pooled
        self.picture, self.time, self.vector, self.text = nn.Linear(64, h), _two(256, h), _two(pooled, h), nn.Linear(context, h)
        self.guidance = _two(256, h) if guidance else None
        self.doubles = nn.ModuleList(Double(h, heads) for _ in range(double))
        self.singles = nn.ModuleList(Single(h, heads) for _ in range(single))
        self.steer, self.norm, self.out = Steer(h, 2), nn.LayerNorm(h, elementwise_affine=False), nn.Linear(h, 64)

    def _angles(self, tokens: int, like: torch.Tensor) -> torch.Tensor:
        """2 x 2 rotations of each pair of columns: (batch, 1, tokens, pairs, 2, 2)."""
        turn = torch.ones(like.shape[0], tokens, 1, device=like.device) * torch.ones(self.size // 2, device=like.device)
        return torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).unflatten(-1, (2, 2)).unsqueeze(1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        share = torch.full((latents.shape[0], 1, 1, 1), 0.5, device=latents.device)
        noise = torch.zeros_like(latents)
        mixed = share * latents + (1 - share) * noise
        b, channels, side, _ = latents.shape
        packed = mixed.view(b, channels, side // 2, 2, side // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, 4 * channels)
        x, words = self.picture(packed), self.text(torch.zeros(b, self.words, self.context, device=latents.device))
        c = self.time(_sines(256, x))
        c = c + self.guidance(_sines(256, x)) if self.guidance is not None else c
        c = c + self.vector(torch.zeros(b, self.pool, device=latents.device))
        angles = self._angles(self.words + x.shape[1], x)
        for double in self.doubles:
            x, words = double(x, words, c, angles)
        y = torch.cat([words, x], 1)
        for single in self.singles:
            y = single(y, c, angles)
        shift, scale = self.steer(c)
        out = self.out((1 + scale) * self.norm(y[:, self.words :]) + shift)
        out = out.view(b, side // 2, side // 2, channels, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(latents.shape)
        return F.mse_loss(out, noise - latents)
