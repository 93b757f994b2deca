"""Models of the described families, written in plain PyTorch: what a capture of them says must be what the description says."""

# mypy: disable-error-code="no-any-return,no-untyped-call"
from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


def heads_of(x: torch.Tensor, count: int) -> torch.Tensor:
    """(batch, tokens, width) -> (batch, heads, tokens, size)."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


class RmsNorm(nn.Module):
    def __init__(self, h: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(h))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x cos + rotate_half(x) sin, as Llama's code writes it."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class LlamaLayer(nn.Module):
    def __init__(self, h: int, heads: int, kv: int, ffn: int) -> None:
        super().__init__()
        self.heads, self.kv = heads, kv
        self.norm1, self.norm2 = RmsNorm(h), RmsNorm(h)
        width = h // heads * kv
        self.q, self.k, self.v, self.proj = (nn.Linear(h, n, bias=False) for n in (h, width, width, h))
        self.gate, self.up, self.down = nn.Linear(h, ffn, bias=False), nn.Linear(h, ffn, bias=False), nn.Linear(ffn, h, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = heads_of(self.q(y), self.heads), heads_of(self.k(y), self.kv), heads_of(self.v(y), self.kv)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        x = x + self.proj(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv)))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, h: int = 128, heads: int = 4, kv: int = 4, ffn: int = 352, n: int = 2, v: int = 1000) -> None:
        super().__init__()
        self.embed, self.width = nn.Embedding(v, h), h // heads
        self.layers = nn.ModuleList(LlamaLayer(h, heads, kv, ffn) for _ in range(n))
        self.norm, self.head = RmsNorm(h), nn.Linear(h, v, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        angles = torch.outer(torch.arange(ids.shape[1], dtype=x.dtype), torch.ones(self.width, dtype=x.dtype))
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


class VitLayer(nn.Module):
    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(h), nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.norm2, self.up, self.act, self.down = nn.LayerNorm(h), nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(y, self.heads) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.proj(joined(F.scaled_dot_product_attention(q, k, v)))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, h: int = 96, heads: int = 4, n: int = 2, image: int = 64, patch: int = 16, classes: int = 10) -> None:
        super().__init__()
        tokens = (image // patch) ** 2 + 1
        self.patches = nn.Conv2d(3, h, patch, patch)
        self.cls, self.positions = nn.Parameter(torch.zeros(1, 1, h)), nn.Parameter(torch.zeros(1, tokens, h))
        self.layers = nn.ModuleList(VitLayer(h, heads) for _ in range(n))
        self.norm, self.head = nn.LayerNorm(h), nn.Linear(h, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        scores = self.head(self.norm(x)[:, 0])
        return F.cross_entropy(scores, torch.zeros(x.shape[0], dtype=torch.int64))


class BertLayer(nn.Module):
    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj, self.norm1 = nn.Linear(h, 3 * h), nn.Linear(h, h), nn.LayerNorm(h)
        self.up, self.act, self.down, self.norm2 = nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h), nn.LayerNorm(h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(y, self.heads) for y in self.qkv(x).chunk(3, -1))
        x = self.norm1(x + self.proj(joined(F.scaled_dot_product_attention(q, k, v))))
        return self.norm2(x + self.down(self.act(self.up(x))))


class Bert(nn.Module):
    """With its pretraining heads: 15 % of the words, and the next sentence."""

    def __init__(self, h: int = 128, heads: int = 4, n: int = 2, v: int = 1000, positions: int = 64) -> None:
        super().__init__()
        self.words, self.positions, self.types = nn.Embedding(v, h), nn.Embedding(positions, h), nn.Embedding(2, h)
        self.norm, self.layers = nn.LayerNorm(h), nn.ModuleList(BertLayer(h, heads) for _ in range(n))
        self.pooler, self.next = nn.Linear(h, h), nn.Linear(h, 2)
        self.transform, self.act, self.head_norm = nn.Linear(h, h), nn.GELU(), nn.LayerNorm(h)
        self.head = nn.Linear(h, v)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        b, t = ids.shape
        x = self.norm(self.words(ids) + self.positions(torch.arange(t).expand(b, t)) + self.types(torch.zeros_like(ids)))
        for layer in self.layers:
            x = layer(x)
        rows = b * -(-15 * t // 100)
        masked = x.flatten(0, 1).index_select(0, torch.zeros(rows, dtype=torch.int64))
        words = self.head(self.head_norm(self.act(self.transform(masked))))
        pair = self.next(torch.tanh(self.pooler(x[:, 0])))
        return F.cross_entropy(words, torch.zeros(rows, dtype=torch.int64)) + pair.sum()


class T5Attention(nn.Module):
    """No scaling of the scores; the first layer of a stack owns the relative positions that all its layers add."""

    def __init__(self, h: int, heads: int, buckets: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(h, h, bias=False) for _ in range(4))
        if buckets:
            self.table = nn.Embedding(buckets, heads)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        q, k, v = heads_of(self.q(x), self.heads), heads_of(self.k(keys), self.heads), heads_of(self.v(keys), self.heads)
        scores = q @ k.transpose(2, 3)
        if bias is None and hasattr(self, "table"):
            bias = self.table(torch.zeros(x.shape[1], keys.shape[1], dtype=torch.int64)).permute(2, 0, 1)[None]
        if bias is not None:
            scores = scores + bias
        return self.o(joined(scores.softmax(-1) @ v)), bias


class T5Layer(nn.Module):
    def __init__(self, h: int, heads: int, ffn: int, buckets: int, decodes: bool) -> None:
        super().__init__()
        self.norm1, self.attn = RmsNorm(h), T5Attention(h, heads, buckets)
        if decodes:
            self.norm2, self.cross = RmsNorm(h), T5Attention(h, heads, 0)
        self.norm3, self.up, self.down = RmsNorm(h), nn.Linear(h, ffn, bias=False), nn.Linear(ffn, h, bias=False)

    def forward(self, x: torch.Tensor, source: torch.Tensor | None, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        y = self.norm1(x)
        y, bias = self.attn(y, y, bias)
        x = x + y
        if source is not None:
            x = x + self.cross(self.norm2(x), source, x.new_zeros(1, 1, 1, source.shape[1]))[0]
        return x + self.down(F.relu(self.up(self.norm3(x)))), bias


class T5(nn.Module):
    def __init__(self, h: int = 128, heads: int = 4, ffn: int = 512, n: int = 2, v: int = 1000) -> None:
        super().__init__()
        self.words = nn.Embedding(v, h)
        self.encoder = nn.ModuleList(T5Layer(h, heads, ffn, 0 if i else 32, False) for i in range(n))
        self.decoder = nn.ModuleList(T5Layer(h, heads, ffn, 0 if i else 32, True) for i in range(n))
        self.middle, self.last, self.head = RmsNorm(h), RmsNorm(h), nn.Linear(h, v, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, bias = self.words(ids), None
        for layer in self.encoder:
            x, bias = layer(x, None, bias)
        source, x, bias = self.middle(x), self.words(ids), None
        for layer in self.decoder:
            x, bias = layer(x, source, bias)
        return F.cross_entropy(self.head(self.last(x)).flatten(0, 1), ids.flatten())


class Bottleneck(nn.Module):
    """ResNet v1.5: the stride on the 3 x 3."""

    def __init__(self, into: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, 4 * planes, 1, bias=False), nn.BatchNorm2d(4 * planes)
        self.aside = None
        if stride > 1 or into != 4 * planes:
            self.aside = nn.Sequential(nn.Conv2d(into, 4 * planes, 1, stride, bias=False), nn.BatchNorm2d(4 * planes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.aside is None else self.aside(x)
        return F.relu(y, inplace=True)


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.pool = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)
        blocks, into = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for index in range(count):
                blocks.append(Bottleneck(into, 64 << stage, 2 if stage and not index else 1))
                into = 256 << stage
        self.layers, self.mean, self.fc = nn.ModuleList(blocks), nn.AdaptiveAvgPool2d(1), nn.Linear(2048, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.fc(self.mean(x).flatten(1)), torch.zeros(x.shape[0], dtype=torch.int64))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return F.mse_loss(y, torch.zeros_like(y))


class Recurrent(nn.Module):
    """Two LSTM layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x.transpose(0, 1))[0].sum()


class NewGelu(nn.Module):
    """gelu by its tanh approximation, one operator after the other (transformers' NewGELUActivation)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
