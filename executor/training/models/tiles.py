"""Pictures of several tiles (transformers' MllamaVisionModel), and decoder layers with cross-attention to them
(MllamaCrossAttentionDecoderLayer)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from executor.training.models import decoder
from executor.training.models.parts import Core, Linear, Scale, make_norm
from sim.framework.framework import Framework
from sim.model.specs.decoder import Decoder
from sim.model.specs.vlm import Tower


class Tile(nn.Module):
    """Adds a row of a table for each tile's place, scaled by one learned number. All pictures have the first aspect ratio."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.gate, self.tiles = nn.Parameter(torch.full((1,), 0.1)), tower.tiles
        self.table = nn.Embedding(tower.ratios + 1, tower.tiles * tower.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """`x`: (pictures, tokens of all tiles, width)."""
        rows = self.table(torch.ones(len(x), dtype=torch.int64, device=x.device)).view(len(x), self.tiles, 1, -1)
        out: Tensor = x.view(len(x), self.tiles, -1, x.shape[-1]) + rows * self.gate.tanh()
        return out.view(x.shape)


class Marked(nn.Module):
    """Puts a class token before the tokens of each tile."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.token, self.tiles = nn.Parameter(torch.zeros(tower.hidden)), tower.tiles

    def forward(self, x: Tensor) -> Tensor:
        tiles = x.view(len(x) * self.tiles, -1, x.shape[-1])
        return torch.cat((self.token.expand(len(tiles), 1, -1), tiles), 1).view(len(x), -1, x.shape[-1])


class Places(nn.Module):
    """Adds learned positions: those of patches in their tile, times 1 - g, and those of patches and tiles in the picture, times g; g is the
    tanh of a learned number."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        made, self.tiles = tower.made // tower.tiles, tower.tiles
        self.gate, self.grid = nn.Parameter(torch.full((1,), 0.1)), nn.Parameter(torch.randn(made, tower.hidden) * tower.hidden**-0.5)
        self.table = nn.Embedding(tower.ratios + 1, tower.made * tower.hidden)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(torch.ones(len(x), dtype=torch.int64, device=x.device)).view(x.shape)
        common = x.view(len(x), self.tiles, -1, x.shape[-1]) + (1 - self.gate.tanh()) * self.grid
        out: Tensor = common.view(x.shape) + self.gate.tanh() * rows
        return out


class Fill(nn.Module):
    """Pads the tokens of each tile to a multiple of eight, and makes transformers' mask, which hides padding tokens from each other."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tiles, self.made, self.filled = tower.tiles, tower.made // tower.tiles, tower.tokens // tower.tiles

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        more = self.filled - self.made
        filled = F.pad(x.view(len(x), self.tiles, self.made, -1), (0, 0, 0, more))
        hidden = torch.ones(len(x), self.tiles, self.filled, 1, device=x.device, dtype=x.dtype)
        hidden[:, :, : self.made] = 0
        hidden = hidden.view(len(x), -1, 1)
        mask = hidden * hidden.transpose(1, 2) * torch.finfo(x.dtype).min  # transformers also multiplies a column by a row
        return filled.view(len(x), -1, x.shape[-1]), mask[:, None]


def beginning(tower: Tower) -> dict[str, nn.Module]:
    """Name -> module of what runs after the patches."""
    first_norm = make_norm(tower.norm, tower.hidden)
    return {
        "first_tiles": Tile(tower),
        "class_token": Marked(tower),
        "positions": Places(tower),
        "first_norm": first_norm,
        "fill": Fill(tower),
    }


class Middle(nn.Sequential):
    """What runs before the tower's second stage."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.middle_norm = make_norm(tower.norm, tower.hidden)
        self.last_tiles = Tile(tower)


class Columns(nn.Module):
    """Concatenates the outputs of earlier layers to the columns of the last one's, without padding tokens."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tiles, self.made = tower.tiles, tower.made // tower.tiles

    def forward(self, x: Tensor, beside: list[Tensor]) -> Tensor:
        parts = [x, torch.stack(beside, -1)] if beside else [x]
        cut = [part.reshape(len(x), self.tiles, x.shape[1] // self.tiles, -1)[:, :, : self.made] for part in parts]
        return torch.cat(cut, -1).flatten(1, 2)


class Crossed(decoder.Layer):
    """A decoder layer in which words attend to pictures; the results of attention and MLP are each scaled by one learned number."""

    def __init__(self, spec: Decoder, habits: Framework, seq: int, tp: int, routed: bool, rotated: bool) -> None:
        super().__init__(spec, habits, seq, tp, routed, rotated)
        self.scale2 = Scale(1)

    def _attention(self, spec: Decoder, habits: Framework, seq: int, rate: float) -> None:
        h, d = spec.hidden, spec.head
        self.heads, self.kv_heads = spec.heads, spec.kv
        q, k = spec.heads * d, spec.kv * d
        self.q, self.q_norm = nn.Linear(h, q, bias=False), make_norm("rmsnorm", d)
        self.kv_proj = Linear(h, (2 * k,) if self.fused else (k, k), False)
        self.k_norm = make_norm("rmsnorm", d)
        self.core = Core(habits.attention.implementation == "math", causal=False)
        self.proj, self.scale1 = nn.Linear(q, h, bias=False), Scale(1)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:  # type: ignore[override]
        """`x`: words (batch, seq, hidden); `seen`: pictures (batch, tokens, hidden)."""
        q = self.q(self.norm1(x)).view(*x.shape[:2], self.heads, -1)
        parts = self.kv_proj(seen)
        whole = parts[0].chunk(2, -1) if len(parts) == 1 else parts
        k, v = (part.view(*seen.shape[:2], self.kv_heads, -1) for part in whole)
        assert self.q_norm is not None and self.k_norm is not None
        q, k, v = (part.transpose(1, 2) for part in (self.q_norm(q), self.k_norm(k), v))
        x = x + self.scale1(self.proj(self.core(q, k, v)))
        read = torch.ones(*x.shape[:2], 1, device=x.device, dtype=x.dtype)  # 0 for words that see no picture
        out: Tensor = x + self.scale2(read * self._fed(self.norm2(x)))
        return out
