"""Vision-language models in plain PyTorch with transformers' order of operators: CLIP's tower with LLaVA's projector, Qwen2.5-VL's tower with its
merger, Qwen3-VL's with its four, SigLIP's with Gemma 3's; all read by the same small
Llama. And Llama 3.2 Vision's of two stages, which layers of their own read."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.modules import Llama, RmsNorm, heads_of, joined, rotated


class QuickGelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


class Layer(nn.Module):
    """CLIP's and SigLIP's: three linears, a plain MLP."""

    def __init__(self, h: int, heads: int, ffn: int, act: nn.Module) -> None:
        super().__init__()
        self.heads, self.act = heads, act
        self.q, self.k, self.v, self.proj = (nn.Linear(h, h) for _ in range(4))
        self.norm1, self.norm2, self.up, self.down = nn.LayerNorm(h), nn.LayerNorm(h), nn.Linear(h, ffn), nn.Linear(ffn, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (heads_of(one(y), self.heads) for one in (self.q, self.k, self.v))
        x = x + self.proj(joined(F.scaled_dot_product_attention(q, k, v)))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Clip(nn.Module):
    """Pictures of 28 pixels, patches of 7; the last layer runs for nothing, and the class token's norm too."""

    def __init__(self, h: int = 96, heads: int = 4, ffn: int = 384, n: int = 3) -> None:
        super().__init__()
        self.conv, self.token = nn.Conv2d(3, h, 7, 7, bias=False), nn.Parameter(torch.zeros(h))
        self.positions, self.first, self.last = nn.Embedding(17, h), nn.LayerNorm(h), nn.LayerNorm(h)
        self.layers = nn.ModuleList(Layer(h, heads, ffn, QuickGelu()) for _ in range(n))

    @torch.no_grad()
    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.conv(pictures).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], 1, -1), x), 1) + self.positions(torch.arange(17, device=x.device).expand(1, -1))
        x = self.first(x)
        for layer in self.layers[:-1]:
            x = layer(x)
        self.last(self.layers[-1](x)[:, 0])
        return x[:, 1:].contiguous()


class Siglip(nn.Module):
    """Pictures of 56 pixels, patches of 7: 64 of them."""

    def __init__(self, h: int = 96, heads: int = 4, ffn: int = 384, n: int = 2) -> None:
        super().__init__()
        self.conv, self.positions, self.last = nn.Conv2d(3, h, 7, 7), nn.Embedding(64, h), nn.LayerNorm(h)
        self.layers = nn.ModuleList(Layer(h, heads, ffn, nn.GELU("tanh")) for _ in range(n))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.conv(pictures).flatten(2).transpose(1, 2) + self.positions(torch.arange(64, device=pictures.device).expand(1, -1))
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class QwenLayer(nn.Module):
    def __init__(self, h: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, RmsNorm(h), RmsNorm(h)
        self.qkv, self.proj, self.gate, self.up, self.down = (nn.Linear(*s) for s in ((h, 3 * h), (h, h), (h, ffn), (h, ffn), (ffn, h)))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, window: int) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = (heads_of(y, self.heads) for y in self.qkv(self.norm1(x).view(b * n // window, window, -1)).chunk(3, -1))
        q, k = rotated(q, cos[:window], sin[:window]), rotated(k, cos[:window], sin[:window])
        x = x + self.proj(joined(F.scaled_dot_product_attention(q, k, v)).view(b, n, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Qwen(nn.Module):
    """Patches of 7 pixels in two frames, flat; windows of 16 patches of 64, whole pictures in every second layer."""

    def __init__(self, h: int = 96, heads: int = 4, ffn: int = 256, n: int = 2) -> None:
        super().__init__()
        self.patch, self.width = nn.Linear(3 * 2 * 49, h, bias=False), h // heads
        self.layers = nn.ModuleList(QwenLayer(h, heads, ffn) for _ in range(n))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        n = pictures.shape[1]
        order = torch.arange(n - 1, -1, -1, device=pictures.device)
        x = self.patch(pictures)[:, order]
        angles = torch.outer(torch.arange(n, dtype=x.dtype, device=x.device), torch.ones(self.width, dtype=x.dtype, device=x.device))
        cos, sin = angles.cos(), angles.sin()
        for at, layer in enumerate(self.layers):
            x = layer(x, cos, sin, n if at % 2 else 16)
        return x


class Qwen3Layer(Layer):
    def __init__(self, h: int, heads: int, ffn: int) -> None:
        super().__init__(h, heads, ffn, nn.GELU("tanh"))
        del self.q, self.k, self.v
        self.qkv = nn.Linear(h, 3 * h)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        q, k, v = (heads_of(y, self.heads) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.proj(joined(F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v)))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Qwen3(nn.Module):
    """Patches of 7 pixels in two frames, flat, with positions from a table; what the first two of three layers make goes through mergers."""

    def __init__(self, h: int = 96, heads: int = 4, ffn: int = 384, n: int = 3, out: int = 128) -> None:
        super().__init__()
        self.patch, self.width, self.table = nn.Linear(3 * 2 * 49, h), h // heads, nn.Embedding(36, h)
        self.layers = nn.ModuleList(Qwen3Layer(h, heads, ffn) for _ in range(n))
        self.mergers = nn.ModuleList(DeepMerger(h, out) for _ in range(n - 1))

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        b, n = pictures.shape[:2]
        index = torch.arange(b * n * 4, device=pictures.device).view(-1, 4) % 36
        weights = torch.full(index.shape, 0.25, device=pictures.device)
        x = self.patch(pictures)
        x = x + (self.table(index) * weights[:, :, None]).sum(1).view(x.shape)
        angles = torch.outer(torch.arange(n, dtype=x.dtype, device=x.device), torch.ones(self.width, dtype=x.dtype, device=x.device))
        cos, sin = angles.cos(), angles.sin()
        deep = []
        for at, layer in enumerate(self.layers):
            x = layer(x, cos, sin)
            if at < len(self.mergers):
                deep.append(self.mergers[at](x))
        return x, deep


class DeepMerger(nn.Module):
    """Of four patches each, whose norm comes after."""

    def __init__(self, h: int, out: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4 * h), nn.Linear(4 * h, 4 * h), nn.Linear(4 * h, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(self.norm(x.view(x.shape[0], -1, self.up.in_features)))))


class LastMerger(DeepMerger):
    """... and before."""

    def __init__(self, h: int, out: int) -> None:
        super().__init__(h, out)
        self.norm = nn.LayerNorm(h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(self.norm(x).view(x.shape[0], -1, self.up.in_features))))


class TileLayer(nn.Module):
    """Without biases around attention, under a mask; `gated`: mixers scaled by a number each."""

    def __init__(self, h: int, heads: int, ffn: int, gated: bool) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.proj = (nn.Linear(h, h, bias=False) for _ in range(4))
        self.norm1, self.norm2, self.up, self.down = nn.LayerNorm(h), nn.LayerNorm(h), nn.Linear(h, ffn), nn.Linear(ffn, h)
        self.gates = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(2)]) if gated else None

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (heads_of(one(y), self.heads) for one in (self.q, self.k, self.v))
        y = self.proj(joined(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))
        x = x + (y if self.gates is None else self.gates[0].tanh() * y)
        y = self.down(F.gelu(self.up(self.norm2(x))))
        return x + (y if self.gates is None else self.gates[1].tanh() * y)


class Tile(nn.Module):
    """What a tile's place adds (MllamaPrecomputedAspectRatioEmbedding)."""

    def __init__(self, h: int, tiles: int, ratios: int) -> None:
        super().__init__()
        self.gate, self.table, self.tiles = nn.Parameter(torch.zeros(1)), nn.Embedding(ratios + 1, tiles * h), tiles

    def forward(self, x: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
        return x + self.table(ratio).reshape(-1, self.tiles, 1, x.shape[-1]) * self.gate.tanh()


class Tiled(nn.Module):
    """Two tiles of 28 pixels, patches of 7; two layers, a norm, one gated layer; the first layer's columns are read, too."""

    def __init__(self, h: int = 96, heads: int = 4, ffn: int = 384, tiles: int = 2, ratios: int = 3) -> None:
        super().__init__()
        self.conv, self.tiles = nn.Conv2d(3, h, 7, 7, bias=False), tiles
        self.first, self.token = Tile(h, tiles, ratios), nn.Parameter(torch.zeros(h))
        self.gate, self.places = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(17, h))
        self.tile_places = nn.Embedding(ratios + 1, tiles * 17 * h)
        self.before, self.middle, self.last = nn.LayerNorm(h), nn.LayerNorm(h), Tile(h, tiles, ratios)
        self.layers = nn.ModuleList(TileLayer(h, heads, ffn, gated) for gated in (False, False, True))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        b, t = pictures.shape[0], self.tiles
        ratio = torch.zeros(b, 1, dtype=torch.int64, device=pictures.device)
        x = self.conv(pictures.flatten(0, 1)).flatten(2).transpose(1, 2)
        x = self.first(x.reshape(b, t, 16, -1), ratio).reshape(b * t, 16, -1)
        x = torch.cat((self.token.expand(b * t, 1, -1), x), 1).reshape(b, t, 17, -1)
        x = x + (1 - self.gate.tanh()) * self.places
        x = x + self.gate.tanh() * self.tile_places(ratio).reshape(b, t, 17, -1)
        x = F.pad(self.before(x), (0, 0, 0, 7))
        hidden = torch.ones(b, t * 24, 1, device=x.device)
        mask = (hidden * hidden.transpose(-1, -2) * -1e9).unsqueeze(1)  # theirs is a product, of columns by rows
        x = x.view(b, t * 24, -1)
        x = first = self.layers[0](x, mask)
        x = self.middle(self.layers[1](x, mask))
        x = self.last(x.reshape(b, t, 24, -1), ratio).reshape(b, t * 24, -1)
        x = self.layers[2](x, mask).reshape(b, t, 24, -1)[:, :, :-7]
        beside = torch.stack([first], -1).reshape(b, t, 24, -1)[:, :, :-7]
        return torch.cat([x, beside], -1)


class Crossed(nn.Module):
    """A layer whose words read pictures (MllamaCrossAttentionDecoderLayer)."""

    def __init__(self, h: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2, self.q_norm, self.k_norm = (
            heads,
            RmsNorm(h),
            RmsNorm(h),
            RmsNorm(h // heads),
            RmsNorm(h // heads),
        )
        self.q, self.k, self.v, self.proj = (nn.Linear(h, h, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(h, ffn, bias=False), nn.Linear(h, ffn, bias=False), nn.Linear(ffn, h, bias=False)
        self.gates = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(2)])

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            self.q_norm(heads_of(self.q(self.norm1(x)), self.heads)),
            self.k_norm(heads_of(self.k(seen), self.heads)),
            heads_of(self.v(seen), self.heads),
        )
        x = x + self.gates[0].tanh() * self.proj(joined(F.scaled_dot_product_attention(q, k, v)))
        y = self.norm2(x)
        y = torch.ones(x.shape[0], x.shape[1], 1, device=x.device) * self.down(F.silu(self.gate(y)) * self.up(y))
        return x + self.gates[1].tanh() * y


class Reading(Llama):
    """Three layers, of which the second reads pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.tower, self.down = nn.Embedding(1008, 128), Tiled(), nn.Linear(192, 128)
        self.crossed = Crossed(128, 4, 352)

    def forward(self, pictures: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        seen = self.down(self.tower(pictures)).reshape(pictures.shape[0], -1, 128)
        x = self.embed(ids)
        angles = torch.outer(
            torch.arange(ids.shape[1], dtype=x.dtype, device=x.device), torch.ones(self.width, dtype=x.dtype, device=x.device)
        )
        cos, sin = angles.cos(), angles.sin()
        x = self.layers[1](self.crossed(self.layers[0](x, cos, sin), seen), cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


class Mlp(nn.Module):
    """LLaVA's projector."""

    def __init__(self, h: int, out: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(h, out), nn.Linear(out, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Merger(nn.Module):
    """Qwen's: four patches each, whose norm comes before."""

    def __init__(self, h: int, out: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = RmsNorm(h), nn.Linear(4 * h, 4 * h), nn.Linear(4 * h, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = torch.arange(x.shape[1] // 4 - 1, -1, -1, device=x.device)
        return self.down(F.gelu(self.up(self.norm(x).view(x.shape[0], -1, 4 * x.shape[2]))))[:, order]


class Averaged(nn.Module):
    """Gemma 3's: 4 x 4 patches each, a norm, one linear."""

    def __init__(self, h: int, out: int) -> None:
        super().__init__()
        self.norm, self.down = RmsNorm(h), nn.Linear(h, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = int(x.shape[1] ** 0.5)
        maps = F.avg_pool2d(x.transpose(1, 2).unflatten(2, (side, side)), 4)
        return self.down(self.norm(maps.flatten(2).transpose(1, 2)))


class Joined(Llama):
    """The tower's pictures take the first places of each sequence."""

    def __init__(self, tower: nn.Module, projector: nn.Module, frozen: bool = False) -> None:
        super().__init__()
        self.tower, self.projector = tower.requires_grad_(not frozen), projector

    def forward(self, pictures: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        seen = self.tower(pictures)
        seen, deep = seen if isinstance(seen, tuple) else (seen, [])
        seen = self.projector(seen)
        x = self.embed(ids)
        places = (torch.arange(ids.shape[1], device=ids.device) < seen.shape[1])[None, :, None].expand_as(x)
        x = x.masked_scatter(places, seen)
        angles = torch.outer(
            torch.arange(ids.shape[1], dtype=x.dtype, device=x.device), torch.ones(self.width, dtype=x.dtype, device=x.device)
        )
        cos, sin = angles.cos(), angles.sin()
        for at, layer in enumerate(self.layers):
            x = layer(x, cos, sin)
            x = stacked(x, deep[at]) if at < len(deep) else x
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


def stacked(x: torch.Tensor, deep: torch.Tensor) -> torch.Tensor:
    """Rows of a copy, taken by their numbers (fake tensors count no mask), summed and put back."""
    n = deep.shape[1]
    rows = (torch.arange(x.shape[0] * n, device=x.device) // n) * x.shape[1] + torch.arange(x.shape[0] * n, device=x.device) % n
    y = x.flatten(0, 1).clone()
    y[rows] = y[rows] + deep.flatten(0, 1)
    return y.view(x.shape)
