"""Networks of diffusion models in plain PyTorch, written from the papers: DiT and Stable Diffusion's U-Net.

Each takes latents alone (time, class and text are made inside, as numbers without gradients) and returns the squared error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.modules import heads_of, joined


def _noised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    share = torch.full((x.shape[0], 1, 1, 1), 0.5, device=x.device)
    noise = torch.zeros_like(x)
    return share * x + (1 - share) * noise, noise


def _sines(waves: int, x: torch.Tensor) -> torch.Tensor:
    rates = torch.exp(-math.log(1e4) * torch.arange(waves // 2, device=x.device) / (waves // 2))
    angles = torch.zeros(x.shape[0], 1, device=x.device) * rates
    return torch.cat([angles.cos(), angles.sin()], -1)


def _two(k: int, n: int) -> nn.Module:
    return nn.Sequential(nn.Linear(k, n), nn.SiLU(), nn.Linear(n, n))


class DitLayer(nn.Module):
    """Shifts, scales and gates from the condition."""

    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.heads, self.act, self.ada = heads, nn.SiLU(), nn.Linear(h, 6 * h)
        self.norm1, self.norm2 = (nn.LayerNorm(h, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.gelu, self.down = nn.Linear(h, 4 * h), nn.GELU(approximate="tanh"), nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        one, two, three, four, five, six = self.ada(self.act(c)).unsqueeze(1).chunk(6, -1)
        q, k, v = (heads_of(y, self.heads) for y in self.qkv(self.norm1(x) * (1 + two) + one).chunk(3, -1))
        x = x + three * self.proj(joined(F.scaled_dot_product_attention(q, k, v)))
        return x + six * self.down(self.gelu(self.up(self.norm2(x) * (1 + five) + four)))


class Dit(nn.Module):
    """Latents of `side` to the noise in them."""

    def __init__(self, n: int = 28, h: int = 1152, heads: int = 16, side: int = 32, patch: int = 2) -> None:
        super().__init__()
        self.patch, self.side = patch, side
        self.patches, self.time, self.labels = nn.Conv2d(4, h, patch, patch), _two(256, h), nn.Embedding(1001, h)
        self.positions = nn.Parameter(torch.zeros(1, (side // patch) ** 2, h), requires_grad=False)
        self.layers = nn.ModuleList(DitLayer(h, heads) for _ in range(n))
        self.act, self.ada, self.norm, self.out = (
            nn.SiLU(),
            nn.Linear(h, 2 * h),
            nn.LayerNorm(h, elementwise_affine=False),
            nn.Linear(h, 8 * patch**2),
        )

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        x, noise = _noised(latents)
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        labels = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        c = self.time(_sines(256, x)) + self.labels(labels)
        for layer in self.layers:
            x = layer(x, c)
        shift, scale = self.ada(self.act(c)).unsqueeze(1).chunk(2, -1)
        y = self.out(self.norm(x) * (1 + scale) + shift)
        side, p = self.side // self.patch, self.patch
        y = y.view(-1, side, side, p, p, 8).permute(0, 5, 1, 3, 2, 4).reshape(-1, 8, self.side, self.side)
        return F.mse_loss(y[:, :4], noise)


class Residual(nn.Module):
    """Norm, swish, convolution, twice, with the time in between."""

    def __init__(self, into: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1, self.time = nn.GroupNorm(32, into), nn.Conv2d(into, out, 3, 1, 1), nn.Linear(time, out)
        self.norm2, self.conv2 = nn.GroupNorm(32, out), nn.Conv2d(out, out, 3, 1, 1)
        self.shortcut = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return (self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))) / 1.0


class Attention(nn.Module):
    """To its own tokens, or to a text's."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads, self.q, self.out = heads, nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(context, width, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        q, k, v = heads_of(self.q(x), self.heads), heads_of(self.k(keys), self.heads), heads_of(self.v(keys), self.heads)
        return self.out(joined(F.scaled_dot_product_attention(q, k, v))) / 1.0  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, width, heads), Attention(width, context, heads)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = self.own(y, y) + x
        x = self.cross(self.norm2(x), text) + x
        y, gate = self.up(self.norm3(x)).chunk(2, -1)
        return self.down(y * F.gelu(gate)) + x  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """On the places of a map."""

    def __init__(self, width: int, context: int, heads: int, layers: int, by_linear: bool) -> None:
        super().__init__()
        self.norm, self.by_linear = nn.GroupNorm(32, width), by_linear
        self.into, self.out = (nn.Linear(width, width) if by_linear else nn.Conv2d(width, width, 1) for _ in range(2))
        self.layers = nn.ModuleList(Layer(width, context, heads) for _ in range(layers))

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        y = self.norm(x)
        y = y if self.by_linear else self.into(y)
        y = y.permute(0, 2, 3, 1).reshape(b, h * w, c)
        y = self.into(y) if self.by_linear else y
        for layer in self.layers:
            y = layer(y, text)
        y = self.out(y) if self.by_linear else y
        y = y.reshape(b, h, w, c).permute(0, 3, 1, 2).contiguous()
        return (y if self.by_linear else self.out(y)) + x  # type: ignore[no-any-return]


class Step(nn.Module):
    """A residual block and the transformer after it."""

    def __init__(self, into: int, out: int, time: int, context: int, heads: int, layers: int, by_linear: bool) -> None:
        super().__init__()
        self.block = Residual(into, out, time)
        self.tokens = Transformer(out, context, heads, layers, by_linear) if layers else None

    def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x = self.block(x, time)
        return x if self.tokens is None else self.tokens(x, text)


class UNet(nn.Module):
    """Stable Diffusion 1.5's sizes, unless said otherwise."""

    def __init__(
        self,
        widths: Sequence[int] = (320, 640, 1280, 1280),
        depths: Sequence[int] = (1, 1, 1, 0),
        heads: Sequence[int] = (8, 8, 8, 8),
        middle: int = 1,
        context: int = 768,
        by_linear: bool = False,
        added: int = 0,
        text: int = 77,
    ) -> None:
        super().__init__()
        time, rest = 4 * widths[0], (context, heads[-1], middle, by_linear)
        self.context, self.text, self.waves, self.extra = context, text, widths[0], added
        self.time, self.added = _two(widths[0], time), _two(added, time) if added else None
        self.conv, self.down, self.up = nn.Conv2d(4, widths[0], 3, 1, 1), nn.ModuleList(), nn.ModuleList()
        skips, x = [widths[0]], widths[0]
        for level, width in enumerate(widths):
            for _ in range(2):
                self.down.append(Step(x, width, time, context, heads[level], depths[level], by_linear))
                x = width
                skips.append(x)
            if level < len(widths) - 1:
                self.down.append(nn.Conv2d(x, x, 3, 2, 1))
                skips.append(x)
        self.middle = nn.ModuleList((Step(x, x, time, *rest), Residual(x, x, time)))
        for level in reversed(range(len(widths))):
            for _ in range(3):
                self.up.append(Step(x + skips.pop(), widths[level], time, context, heads[level], depths[level], by_linear))
                x = widths[level]
            if level:
                self.up.append(nn.Sequential(nn.UpsamplingNearest2d(scale_factor=2), nn.Conv2d(x, x, 3, 1, 1)))
        self.norm, self.out = nn.GroupNorm(32, x), nn.Conv2d(x, 4, 3, 1, 1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        x, noise = _noised(latents)
        text = torch.zeros(x.shape[0], self.text, self.context, dtype=x.dtype, device=x.device)
        time = self.time(_sines(self.waves, x))
        if self.added is not None:
            time = time + self.added(torch.zeros(x.shape[0], self.extra, dtype=x.dtype, device=x.device))
        x = self.conv(x)
        maps = [x]
        for layer in self.down:
            x = layer(x, time, text) if isinstance(layer, Step) else layer(x)
            maps.append(x)
        x = self.middle[1](self.middle[0](x, time, text), time)
        for layer in self.up:
            x = layer(torch.cat((x, maps.pop()), 1), time, text) if isinstance(layer, Step) else layer(x)
        return F.mse_loss(self.out(F.silu(self.norm(x))), noise)
