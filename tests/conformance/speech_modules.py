"""Whisper in plain PyTorch, written from the paper (Radford et al. 2022, section 2.2) with transformers' order of operators: spectra to the loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Queries scaled before the products; keys without biases."""

    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.heads, self.q, self.k, self.v, self.out = heads, nn.Linear(h, h), nn.Linear(h, h, bias=False), nn.Linear(h, h), nn.Linear(h, h)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, causal: bool = False) -> torch.Tensor:
        def split(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2).contiguous()

        q = split(self.q(x) * (x.shape[-1] // self.heads) ** -0.5)
        y = F.scaled_dot_product_attention(q, split(self.k(keys)), split(self.v(keys)), is_causal=causal, scale=1.0)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Of the encoder, or (`reads`) of the decoder."""

    def __init__(self, h: int, heads: int, reads: bool) -> None:
        super().__init__()
        self.norm1, self.own, self.reads = nn.LayerNorm(h), Attention(h, heads), reads
        if reads:
            self.norm2, self.cross = nn.LayerNorm(h), Attention(h, heads)
        self.norm3, self.up, self.down = nn.LayerNorm(h), nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor, sound: torch.Tensor | None = None) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.own(y, y, self.reads)
        if sound is not None:
            x = x + self.cross(self.norm2(x), sound)
        return x + self.down(F.gelu(self.up(self.norm3(x))))  # type: ignore[no-any-return]


class Whisper(nn.Module):
    """Its tiny size, unless said otherwise."""

    def __init__(
        self,
        n: int = 4,
        h: int = 384,
        heads: int = 6,
        mels: int = 80,
        frames: int = 3000,
        text: int = 448,
        vocab: int = 51865,
        readers: int = 0,
    ) -> None:
        super().__init__()
        self.text, self.conv1, self.conv2 = text, nn.Conv1d(mels, h, 3, padding=1), nn.Conv1d(h, h, 3, 2, 1)
        self.heard = nn.Parameter(torch.zeros(frames // 2, h), requires_grad=False)
        self.encoder, self.middle = nn.ModuleList(Layer(h, heads, False) for _ in range(n)), nn.LayerNorm(h)
        self.words, self.said = nn.Embedding(vocab, h), nn.Embedding(text, h)
        self.decoder, self.last = nn.ModuleList(Layer(h, heads, True) for _ in range(readers or n)), nn.LayerNorm(h)
        self.head = nn.Linear(h, vocab, bias=False)
        self.head.weight = self.words.weight

    def forward(self, spectra: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(spectra)))).permute(0, 2, 1) + self.heard
        for layer in self.encoder:
            x = layer(x)
        sound, b, t = self.middle(x), spectra.shape[0], self.text
        ids = torch.zeros(b, t, dtype=torch.int64, device=spectra.device)
        y = self.words(ids) + self.said(torch.arange(t, device=spectra.device).expand(b, t))
        for layer in self.decoder:
            y = layer(y, sound)
        return F.cross_entropy(self.head(self.last(y)).flatten(0, 1), ids.flatten())


class Wav2VecHead(nn.Module):
    """What transformers' Wav2Vec2ForPreTraining does with the frames' features and the layers' result."""

    def __init__(self, channels: int, h: int, codes: int, groups: int, width: int) -> None:
        super().__init__()
        self.codes = nn.Linear(channels, codes * groups)
        self.vectors = nn.Parameter(torch.zeros(1, codes * groups, width // groups))
        self.quantised = nn.Linear(width, width)
        self.frames = nn.Linear(h, width)
        self.groups, self.width = groups, width

    def _chosen(self, features: torch.Tensor, masked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each codebook one vector, by a hard choice whose gradient is the soft one's; how evenly the masked frames choose."""
        batch, frames, _ = features.shape
        scores = self.codes(features).view(batch * frames * self.groups, -1)
        hard = F.gumbel_softmax(scores.float(), tau=2.0, hard=True).type_as(scores)
        soft = torch.softmax(scores.view(batch * frames, self.groups, -1).float(), dim=-1)
        seen = torch.where(masked.flatten()[:, None, None].expand(soft.shape), soft, torch.zeros_like(soft))
        mean = seen.sum(dim=0) / masked.sum()
        even = torch.exp(-torch.sum(mean * torch.log(mean + 1e-7), dim=-1)).sum()
        spread = hard.view(batch * frames, -1).unsqueeze(-1) * self.vectors
        return spread.view(batch * frames, self.groups, -1, self.width // self.groups).sum(-2).view(batch, frames, -1), even

    def forward(self, features: torch.Tensor, x: torch.Tensor, others: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        frames = self.frames(x)
        chosen, even = self._chosen(features, masked)
        quantised = self.quantised(chosen)
        batch, length, width = quantised.shape
        negatives = quantised.view(-1, width)[others.view(-1)].view(batch, length, -1, width).permute(2, 0, 1, 3)
        every = torch.cat([quantised[None], negatives], dim=0)
        scores = torch.cosine_similarity(frames.float(), every.float(), dim=-1).type_as(every) / 0.1
        same = (quantised == negatives).all(-1)
        scores = torch.cat([scores[:1], scores[1:].masked_fill(same, float("-inf"))])
        scores = scores.transpose(0, 2).reshape(-1, scores.size(0))
        target = ((1 - masked.long()) * -100).transpose(0, 1).flatten()
        return F.cross_entropy(scores.float(), target, reduction="sum") + (1 - even / 640) * 0.1 * masked.sum()
