"""CLIP and SigLIP as open_clip builds them, in plain PyTorch: pictures to the loss over the batch; texts are made inside, as ids."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.modules import heads_of, joined


class Layer(nn.Module):
    """ResidualAttentionBlock, with PyTorch's own attention."""

    def __init__(self, h: int, heads: int, ffn: int, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(h), nn.MultiheadAttention(h, heads, batch_first=True), nn.LayerNorm(h)
        self.up, self.gelu, self.down = nn.Linear(h, ffn), nn.GELU(), nn.Linear(ffn, h)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=self.mask)[0]
        return x + self.down(self.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class Pictures(nn.Module):
    def __init__(self, image: int, patch: int, layers: int, h: int, heads: int, ffn: int, width: int) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, h, patch, patch, bias=False), nn.LayerNorm(h)
        self.token, self.places = nn.Parameter(torch.zeros(h)), nn.Parameter(torch.zeros((image // patch) ** 2 + 1, h))
        self.layers = nn.ModuleList(Layer(h, heads, ffn, None) for _ in range(layers))
        self.last, self.project = nn.LayerNorm(h), nn.Linear(h, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = self.first(torch.cat([self.token.expand(x.shape[0], 1, -1), x], 1) + self.places)
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.project(self.last(x)[:, 0]), dim=-1)


class Texts(nn.Module):
    def __init__(self, vocab: int, tokens: int, layers: int, h: int, heads: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, h), nn.Parameter(torch.zeros(tokens, h))
        mask = torch.full((tokens, tokens), float("-inf")).triu_(1)
        self.layers = nn.ModuleList(Layer(h, heads, 4 * h, mask) for _ in range(layers))
        self.last, self.project = nn.LayerNorm(h), nn.Linear(h, width, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = layer(x)
        x = self.last(x)
        return F.normalize(self.project(x[torch.arange(x.shape[0], device=x.device), ids.argmax(-1)]), dim=-1)


class Clip(nn.Module):
    def __init__(
        self, image: int = 224, patch: int = 32, layers: int = 12, h: int = 768, heads: int = 12, ffn: int = 3072, text_layers: int = 12,
        text_h: int = 512, text_heads: int = 8, width: int = 512, vocab: int = 49408, tokens: int = 77,
    ) -> None:  # fmt: skip
        super().__init__()
        self.vocab, self.tokens = vocab, tokens
        self.embed = Pictures(image, patch, layers, h, heads, ffn, width)
        self.texts = Texts(vocab, tokens, text_layers, text_h, text_heads, width)
        self.scale = nn.Parameter(torch.ones([]))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        ids = torch.zeros(pictures.shape[0], self.tokens, dtype=torch.int64, device=pictures.device)
        one, two, scale = self.embed(pictures), self.texts(ids), self.scale.exp()
        labels = torch.arange(one.shape[0], device=one.device)
        return (F.cross_entropy(scale * one @ two.T, labels) + F.cross_entropy(scale * two @ one.T, labels)) / 2


class OwnLayer(nn.Module):
    """timm's: queries, keys and values of one product."""

    def __init__(self, h: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.proj = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.gelu, self.down = nn.Linear(h, ffn), nn.GELU(), nn.Linear(ffn, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads_of(y, self.heads) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.proj(joined(F.scaled_dot_product_attention(q, k, v)))
        return x + self.down(self.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class Pooled(nn.Module):
    """Pictures by a learned query (timm's AttentionPoolLatent)."""

    def __init__(self, image: int, patch: int, layers: int, h: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads, self.patches, self.places = heads, nn.Conv2d(3, h, patch, patch), nn.Parameter(torch.zeros((image // patch) ** 2, h))
        self.layers = nn.ModuleList(OwnLayer(h, heads, ffn) for _ in range(layers))
        self.last, self.norm, self.query = nn.LayerNorm(h), nn.LayerNorm(h), nn.Parameter(torch.zeros(1, 1, h))
        self.q, self.kv, self.proj = nn.Linear(h, h), nn.Linear(h, 2 * h), nn.Linear(h, h)
        self.up, self.gelu, self.down = nn.Linear(h, ffn), nn.GELU(), nn.Linear(ffn, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        x = self.last(x)
        q = heads_of(self.q(self.query.expand(x.shape[0], 1, -1)), self.heads)
        k, v = (heads_of(y, self.heads) for y in self.kv(x).chunk(2, -1))
        y = self.proj(joined(F.scaled_dot_product_attention(q, k, v)))
        return F.normalize((y + self.down(self.gelu(self.up(self.norm(y)))))[:, 0], dim=-1)


class LastToken(nn.Module):
    """Texts whose tokens all see each other, and of which the last stands for all."""

    def __init__(self, vocab: int, tokens: int, layers: int, h: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, h), nn.Parameter(torch.zeros(tokens, h))
        self.layers = nn.ModuleList(Layer(h, heads, ffn, None) for _ in range(layers))
        self.last, self.project = nn.LayerNorm(h), nn.Linear(h, h)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.project(self.last(x)[:, -1]), dim=-1)


class SigLip(nn.Module):
    def __init__(
        self,
        image: int = 224,
        patch: int = 16,
        layers: int = 12,
        h: int = 768,
        heads: int = 12,
        ffn: int = 3072,
        vocab: int = 32000,
        tokens: int = 64,
    ) -> None:
        super().__init__()
        self.vocab, self.tokens = vocab, tokens
        self.embed = Pooled(image, patch, layers, h, heads, ffn)
        self.texts = LastToken(vocab, tokens, layers, h, heads, ffn)
        self.scale, self.bias = nn.Parameter(torch.ones([])), nn.Parameter(torch.ones([]))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        ids = torch.zeros(pictures.shape[0], self.tokens, dtype=torch.int64, device=pictures.device)
        one, two = self.embed(pictures), self.texts(ids)
        logits = self.scale.exp() * one @ two.T
        logits += self.bias
        labels = 2 * torch.eye(one.shape[0], device=one.device) - torch.ones_like(logits)
        return -F.logsigmoid(labels * logits).sum() / one.shape[0]
