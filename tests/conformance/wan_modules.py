"""Wan 2.1's video transformer in plain PyTorch, written from the published model's description: latents to the squared error of the flow.

Takes latents alone; text and time are made inside, as numbers without gradients. Patches come as rows: a convolution whose kernel is its stride.
Norms, shifts, scales and gates are fp32 between casts, angles too.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.diffusion_modules import _sines, _two


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs of columns of (batch, tokens, heads, size), turned and laid into a new tensor."""
    one, two = x.unflatten(-1, (-1, 2)).unbind(-1)
    out = torch.empty_like(x)
    out[..., 0::2] = one * cos - two * sin
    out[..., 1::2] = one * sin + two * cos
    return out


class Attention(nn.Module):
    """To its own tokens, or to a text's; queries and keys normed over all heads."""

    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(h, h) for _ in range(4))
        self.norm_q, self.norm_k = nn.RMSNorm(h, eps=1e-6), nn.RMSNorm(h, eps=1e-6)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor] | None = None) -> torch.Tensor:
        q, k, v = (y.unflatten(2, (self.heads, -1)) for y in (self.norm_q(self.q(x)), self.norm_k(self.k(keys)), self.v(keys)))
        q, k = (_turned(q, *turn), _turned(k, *turn)) if turn is not None else (q, k)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(y.transpose(1, 2).flatten(2, 3))  # type: ignore[no-any-return]


class Norm(nn.LayerNorm):
    """In fp32, which its result stays."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = (None, None) if self.weight is None else (self.weight.float(), self.bias.float())
        return F.layer_norm(x.float(), self.normalized_shape, *own)


class Layer(nn.Module):
    def __init__(self, h: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = Norm(h, elementwise_affine=False), Norm(h), Norm(h, elementwise_affine=False)
        self.own, self.cross = Attention(h, heads), Attention(h, heads)
        self.up, self.gelu, self.down = nn.Linear(h, ffn), nn.GELU(approximate="tanh"), nn.Linear(ffn, h)
        self.table = nn.Parameter(torch.zeros(1, 6, h))

    def forward(self, x: torch.Tensor, text: torch.Tensor, time: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        one, two, three, four, five, six = (self.table + time.float()).chunk(6, 1)
        y = (self.norm1(x) * (1 + two) + one).type_as(x)
        x = (x.float() + self.own(y, y, turn) * three).type_as(x)
        x = x + self.cross(self.norm2(x).type_as(x), text)
        y = (self.norm3(x) * (1 + five) + four).type_as(x)
        return (x.float() + self.down(self.gelu(self.up(y))).float() * six).type_as(x)


class Wan(nn.Module):
    """Latents of (batch, channels, frames, rows, columns) and their noise to the squared error of the flow from one to the other."""

    def __init__(
        self, layers: int = 30, h: int = 1536, heads: int = 12, ffn: int = 8960, channels: int = 16, text: int = 512, context: int = 4096
    ) -> None:
        super().__init__()
        self.size, self.words, self.context = h // heads, text, context
        self.patches, self.time = nn.Linear(4 * channels, h), _two(256, h)
        self.project = nn.Sequential(nn.SiLU(), nn.Linear(h, 6 * h))
        self.text = nn.Sequential(nn.Linear(context, h), nn.GELU(approximate="tanh"), nn.Linear(h, h))
        self.layers = nn.ModuleList(Layer(h, heads, ffn) for _ in range(layers))
        self.norm, self.out, self.table = Norm(h, elementwise_affine=False), nn.Linear(h, 4 * channels), nn.Parameter(torch.zeros(1, 2, h))

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        noise = torch.zeros_like(latents)
        share = torch.full((latents.shape[0], 1, 1, 1, 1), 0.5, dtype=latents.dtype, device=latents.device)
        mixed = share * latents + (1 - share) * noise
        b, channels, frames, rows, columns = latents.shape
        packed = mixed.view(b, channels, frames, rows // 2, 2, columns // 2, 2).permute(0, 2, 3, 5, 1, 4, 6).reshape(b, -1, 4 * channels)
        x = self.patches(packed).transpose(1, 2).contiguous().transpose(1, 2)
        c = self.time(_sines(256, x).type_as(x))
        time = self.project(c).unflatten(1, (6, -1))
        words = self.text(torch.zeros(b, self.words, self.context, dtype=x.dtype, device=x.device))
        turn = torch.ones(1, x.shape[1], 1, self.size // 2, device=latents.device)
        for layer in self.layers:
            x = layer(x, words, time, (turn, turn))
        shift, scale = (self.table + c.float().unsqueeze(1)).chunk(2, 1)
        out = self.out((self.norm(x) * (1 + scale) + shift).type_as(x))
        out = out.view(b, frames, rows // 2, columns // 2, channels, 2, 2).permute(0, 4, 1, 2, 5, 3, 6).reshape(latents.shape)
        return F.mse_loss(out.float(), noise.float() - latents.float())
