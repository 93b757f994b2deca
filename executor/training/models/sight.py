"""Vision-language models: the blocks of a vision tower, one of the projector and the token embedding, then those of a decoder.

A sample is one int32 tensor: the bits of its pictures, then its token ids. As int32 nothing on the way casts it (`packed`, `unpacked`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from executor.training.models import decoder
from executor.training.models.deepstack import Deepstack, Merger
from executor.training.models.parts import GATES, Activation, Core, Linear, Rotary, Scale, make_norm
from executor.training.models.tiles import Columns, Middle, beginning
from sim.framework.framework import Framework
from sim.model.specs.vlm import Tower, VisionLanguage

Blocks = Iterable[tuple[str, nn.Module]]


def blocks(spec: VisionLanguage, habits: Framework, seq: int) -> Blocks:
    """Name and module of each block before the decoder's layers; parameters of frozen parts need no gradient."""
    tower = spec.tower
    yield "patches", _frozen(Stem(tower), "tower" in spec.frozen)
    for at in range(tower.layers):
        gated = at >= tower.layers - tower.gated_layers
        yield f"V{at}", _frozen(Layer(tower, habits, tower.window if tower.windowed(at) else 0, gated), "tower" in spec.frozen)
        if at in spec.projector.deepstack:
            yield f"merger{at}", _frozen(Merger(spec), "projector" in spec.frozen)
        if tower.gated_layers and at == tower.layers - tower.gated_layers - 1:
            yield "middle", _frozen(Middle(tower), "tower" in spec.frozen)
    yield "embed", Bridge(spec, habits, seq)


def deepened(spec: VisionLanguage, rest: Blocks) -> Blocks:
    """The decoder's blocks after its embedding (`rest`); each of the first ones is followed by a block that adds features of pictures
    (`Deepstack`)."""
    for at, (name, block) in enumerate(rest):
        yield name, _frozen(block, "decoder" in spec.frozen)
        if at < len(spec.projector.deepstack):
            yield f"deepstack{at}", Deepstack(spec)


def packed(pictures: Tensor, ids: Tensor) -> Tensor:
    """One sample's fp32 pictures (bit by bit) and its ids as one int32 tensor."""
    return torch.cat((pictures.flatten().view(torch.int32), ids.int()))


def unpacked(given: Tensor, seq: int) -> tuple[Tensor, Tensor]:
    """The reverse of `packed` for a batch: (batch, pixels) in fp32, and (batch, seq) of ids."""
    return given[:, :-seq].contiguous().view(torch.float32), given[:, -seq:].long()


def run(spec: VisionLanguage, of: dict[str, nn.Module], given: Tensor, seq: int) -> Tensor:
    """Runs all blocks (`of`: by name) on a batch of packed samples. Returns the logits."""
    pixels, ids = unpacked(given, seq)
    tower = spec.tower
    shape = (tower.patches, -1) if tower.frames > 1 else (3, tower.image, tower.image)
    found = of["patches"](pixels.view(len(given) * spec.images * tower.tiles, *shape).to(next(of["head"].parameters()).dtype))
    x, *mask = found if isinstance(found, tuple) else (found,)
    seen = x
    deep: list[Tensor] = []
    beside: list[Tensor] = []
    for at in range(tower.layers):
        x = of[f"V{at}"](x, *mask)
        if at in spec.projector.deepstack:
            deep.append(of[f"merger{at}"](x))
        if at in spec.projector.beside:
            beside.append(x)
        if "middle" in of and at == tower.layers - tower.gated_layers - 1:
            x = of["middle"](x)
        seen = seen if at >= tower.layers - tower.unread else x
    if spec.crossed:
        x, pictures = of["embed"](seen, ids, beside)
    else:
        x = of["embed"](seen, ids)
    names = list(of)
    crossed = {f"L{at}" for at, letter in enumerate(spec.decoder.mixers) if letter == "X"}
    for name in names[names.index("embed") + 1 :]:
        more = [deep.pop(0)] if name.startswith("deepstack") else [pictures] if name in crossed else []
        x = of[name](x, *more)
    out: Tensor = x
    return out


def _frozen(block: nn.Module, still: bool) -> nn.Module:
    return block.requires_grad_(not still)


class Patches(nn.Module):
    """Patches as tokens, after the class token if there is one: a convolution with stride = kernel = patch or, for pixels that are sorted
    by patch already, a linear."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        h, side = tower.hidden, tower.patch
        flat = tower.frames > 1
        self.turns = not flat
        width = 3 * tower.frames * side**2
        self.conv = nn.Linear(width, h, bias=tower.patch_bias) if flat else nn.Conv2d(3, h, side, side, bias=tower.patch_bias)
        self.first, self.tiles = Token(h) if tower.class_token and tower.tiles == 1 else None, tower.tiles

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        y = y.flatten(2).transpose(1, 2) if self.turns else y
        y = y.reshape(len(y) // self.tiles, -1, y.shape[-1])
        return y if self.first is None else torch.cat((self.first.token.expand(len(y), 1, -1), y), 1)


class Token(nn.Module):
    """The class token, in a separate module so that the convolution's parameters come first: a module lists its own parameters before those
    of its children."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(hidden))


class Positions(nn.Module):
    """A table added to each picture's tokens."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(tower.tokens, tower.hidden) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class Interpolated(nn.Module):
    """Adds learned positions: a table of `grid` x `grid` rows, interpolated to the patches of each picture (transformers'
    Qwen3VLVisionModel)."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        side, self.grid = int(tower.patches**0.5), tower.grid
        self.table = nn.Embedding(tower.grid**2, tower.hidden)
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        places = torch.linspace(0, self.grid - 1, self.side, device=x.device)
        low = places.long()
        part, high = places - low, (low + 1).clamp(max=self.grid - 1)
        ends, shares = torch.stack((low, high)), torch.stack((1 - part, part))
        index = (ends[:, None, :, None] * self.grid + ends[None, :, None, :]).flatten(2).flatten(0, 1).T.repeat(len(x), 1)
        weights = (shares[:, None, :, None] * shares[None, :, None, :]).flatten(2).flatten(0, 1).T.repeat(len(x), 1)
        found: Tensor = (self.table(index) * weights[:, :, None]).sum(1)
        return x + found.to(x.dtype).view(x.shape)


class Reordered(nn.Module):
    """Reorders tokens by their indices, as for windows; any order takes as long, here the reverse."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.arange(x.shape[1] - 1, -1, -1, device=x.device)]


class Stem(nn.Sequential):
    """The tower's beginning: patches, learned positions, sorting into windows, the first norm, each if the tower has it."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.patches = Patches(tower)
        if tower.tiles > 1:
            for name, module in beginning(tower).items():
                self.add_module(name, module)
            return
        if tower.position == "learned" or tower.grid:
            self.positions = Interpolated(tower) if tower.grid else Positions(tower)
        if tower.window:
            self.windows = Reordered()
        if tower.first_norm:
            self.first_norm = make_norm(tower.norm, tower.hidden)


class Layer(nn.Module):
    """Pre-norm layer of the tower: attention (within windows if `window` > 0) and MLP, each with a residual. `gated`: each branch is scaled
    by one learned number."""

    def __init__(self, tower: Tower, habits: Framework, window: int, gated: bool) -> None:
        super().__init__()
        h, ffn, biased = tower.hidden, tower.ffn, tower.bias if tower.attention_bias is None else tower.attention_bias
        self.window, self.heads = window, tower.heads
        fused = habits.linears.fused_projections if tower.fused_qkv is None else tower.fused_qkv
        self.norm1 = make_norm(tower.norm, h)
        self.qkv = Linear(h, (3 * h,) if fused else (h, h, h), biased)
        self.rope = Rotary(h // tower.heads, tower.tokens) if tower.position == "rope" else None
        self.core = Core(habits.attention.implementation == "math", causal=False)
        self.proj = nn.Linear(h, h, bias=biased)
        self.scale1 = Scale(1 if gated else h) if tower.layer_scale or gated else None
        self.norm2 = make_norm(tower.norm, h)
        joined = habits.linears.fused_projections and not habits.linears.gate_apart
        self.up = Linear(h, ((2 * ffn,) if joined else (ffn, ffn)) if tower.activation in GATES else (ffn,), tower.bias)
        self.halves = joined and tower.activation in GATES
        self.act, self.down = Activation(tower.activation), nn.Linear(ffn, h, bias=tower.bias)
        self.scale2 = Scale(1 if gated else h) if tower.layer_scale or gated else None

    def _attended(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows = x.view(-1, self.window, x.shape[-1]) if self.window else x
        parts: tuple[Tensor, ...] = self.qkv(rows)
        whole = parts[0].chunk(3, -1) if len(parts) == 1 else parts
        q, k, v = (part.view(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in whole)
        if self.rope is not None:
            q, k = self.rope(q, k)
        out: Tensor = self.proj(self.core(q, k, v, mask)).view(x.shape)
        return out if self.scale1 is None else self.scale1(out)

    def _fed(self, x: Tensor) -> Tensor:
        parts: tuple[Tensor, ...] = self.up(x)
        out: Tensor = self.down(self.act(*(parts[0].chunk(2, -1) if self.halves else parts)))
        return out if self.scale2 is None else self.scale2(out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self._attended(self.norm1(x), mask)
        return x + self._fed(self.norm2(x))


class Bridge(decoder.Embed):
    """The tower's last norm, the projector, and the token embedding, in which pictures replace the first tokens (unless decoder layers read
    pictures by cross-attention)."""

    def __init__(self, spec: VisionLanguage, habits: Framework, seq: int) -> None:
        super().__init__(spec.decoder, habits, seq)
        words = dict(self.named_children())
        tower, p = spec.tower, spec.projector
        self.tower, self.projector, self.images, self.per_picture = tower, p, spec.images, spec.tokens
        still = "tower" in spec.frozen
        self.last_norm = _frozen(make_norm(tower.norm, tower.hidden), still or tower.last_norm == "class") if tower.last_norm else None
        wide = tower.hidden * p.merge**2 * (1 + len(p.beside))
        inner, out = p.inner or spec.decoder.hidden, spec.decoder.hidden
        made = {
            "projector__norm": make_norm(p.norm, wide if p.joined_norm else tower.hidden) if p.norm else None,
            "projector__pool": nn.AvgPool2d(p.pool) if p.pool > 1 else None,
            "projector__up": nn.Linear(wide, inner, bias=p.bias) if p.layers == 2 else None,
            "projector__act": Activation("gelu") if p.layers == 2 else None,
            "projector__down": nn.Linear(inner if p.layers == 2 else wide, out, bias=p.bias),
            "projector__windows": Reordered() if tower.window else None,
        }
        self.columns = Columns(tower) if spec.crossed else None
        for name, module in made.items():
            if module is not None:
                self.add_module(name, _frozen(module, "projector" in spec.frozen))
        for name, module in words.items():  # after the projector, as in transformers' models
            del self._modules[name]
            self.add_module(name, _frozen(module, "decoder" in spec.frozen))

    def _part(self, name: str, x: Tensor) -> Tensor:
        module = getattr(self, f"projector__{name}", None)
        out: Tensor = x if module is None else module(x)
        return out

    def _projected(self, x: Tensor) -> Tensor:
        """(pictures, tokens of the tower, its width) -> (pictures, tokens, width of the decoder)."""
        x = self._fewer(x)
        for name in ("up", "act", "down", "windows"):
            x = self._part(name, x)
        return x

    def _fewer(self, x: Tensor) -> Tensor:
        """Averages or joins neighbouring patches, and applies the projector's norm."""
        side = int(self.tower.patches**0.5)
        if self.projector.pool > 1:
            maps = self._part("pool", x.transpose(1, 2).reshape(len(x), -1, side, side))
            return self._part("norm", maps.flatten(2).transpose(1, 2))
        if self.projector.joined_norm:
            return self._part("norm", self._merged(x, side))
        return self._part("norm", x).reshape(len(x), self.per_picture, -1)

    def _merged(self, x: Tensor, side: int) -> Tensor:
        """Concatenates the columns of the patches of each square of `merge` x `merge`, first along one side, then along the other
        (transformers' pixel_shuffle)."""
        n = self.projector.merge
        y = x.view(len(x), side, side // n, -1).permute(0, 2, 1, 3).contiguous()
        return y.view(len(x), side // n, side // n, -1).permute(0, 2, 1, 3).reshape(len(x), self.per_picture, -1)

    def forward(self, seen: Tensor, ids: Tensor, beside: list[Tensor] | None = None) -> Tensor | tuple[Tensor, Tensor]:  # type: ignore[override]
        """Embedded tokens with pictures among them; for models with cross-attention (tokens, pictures). `seen`: the tower's output,
        `beside`: outputs of earlier layers."""
        if self.columns is not None:
            pictures = self.columns(seen, beside or [])
            for name in ("up", "act", "down"):
                pictures = self._part(name, pictures)
            return super().forward(ids), pictures.reshape(len(ids), -1, pictures.shape[-1])
        if self.last_norm is not None and self.tower.last_norm == "patches":
            seen = self.last_norm(seen)
        if self.tower.class_token:
            seen = seen[:, 1:]
        words = super().forward(ids)
        places = torch.arange(ids.shape[1], device=ids.device) < self.images * self.per_picture
        return words.masked_scatter(places[None, :, None].expand_as(words), self._projected(seen).to(words.dtype))
