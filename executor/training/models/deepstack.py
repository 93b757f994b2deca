"""DeepStack: outputs of a vision tower's inner layers that a decoder reads too: `Merger` projects them, `Deepstack` adds them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from executor.training.models.parts import Activation, make_norm
from sim.model.specs.vlm import VisionLanguage


class Merger(nn.Module):
    """Projects the output of an inner layer of the tower to the decoder's width."""

    def __init__(self, spec: VisionLanguage) -> None:
        super().__init__()
        p, self.per_picture = spec.projector, spec.tokens
        wide, out = spec.tower.hidden * p.merge**2, spec.decoder.hidden
        inner = p.inner or out
        self.norm = make_norm(p.norm, wide) if p.norm else nn.Identity()
        self.up = nn.Linear(wide, inner, bias=p.bias) if p.layers == 2 else nn.Identity()
        self.act = Activation("gelu") if p.layers == 2 else nn.Identity()
        self.down = nn.Linear(inner if p.layers == 2 else wide, out, bias=p.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.act(self.up(self.norm(x.view(len(x), self.per_picture, -1)))))
        return out


class Deepstack(nn.Module):
    """A block with one part, which adds a merger's output to the rows of pictures in the decoder's activations."""

    def __init__(self, spec: VisionLanguage) -> None:
        super().__init__()
        self.add = Added(spec.images * spec.tokens)

    def forward(self, x: Tensor, deep: Tensor) -> Tensor:
        out: Tensor = self.add(x, deep)
        return out


class Added(nn.Module):
    """Adds `deep` to the first `rows` tokens of each sequence, in a copy; they are selected by a mask."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: Tensor, deep: Tensor) -> Tensor:
        mask = (torch.arange(x.shape[1], device=x.device) < self.rows).expand(x.shape[:2])
        x = x.clone()
        x[mask, :] = x[mask, :] + deep.flatten(0, 1).to(x.dtype)
        return x
