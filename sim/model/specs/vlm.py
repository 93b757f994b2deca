"""What a vision-language model is: a tower that sees, a projector, and the decoder that reads both. Sizes are counts of elements."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from sim.model.check import check_heads
from sim.model.specs.decoder import Decoder, Moe
from sim.model.specs.fields import Activation, Count, Layers, Natural, Spec
from sim.model.specs.lora import Lora
from topologies.errors import BadInput, Refused


class Tower(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A vision transformer without a head (CLIP, SigLIP, InternViT, Pixtral's and Qwen's)."""

    layers: Layers
    hidden: Count
    heads: Count
    ffn: Count
    activation: Activation = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    bias: bool = True
    """Linear layers have biases."""
    attention_bias: bool | None = None
    """Those of attention have; None = `bias`."""
    fused_qkv: bool | None = None
    """q, k, v are one linear; None = as the framework does."""
    image: Count = 448
    """Pixels of a side: pictures of all sizes count by a square of their mean number of pixels."""
    patch: Count = 14
    frames: Count = 1
    """Pictures that one patch spans (Qwen's towers take two frames of a video at once, and a picture twice)."""
    patch_bias: bool = False
    class_token: bool = False
    position: Literal["learned", "rope"] = "learned"
    grid: Natural = 0
    """Rows of a side of a learned table from which positions of a picture's patches are interpolated, beside rotary ones (Qwen3-VL: 48); 0 = not."""
    first_norm: bool = False
    """A norm before the first layer (CLIP, Pixtral)."""
    last_norm: Literal["", "patches", "class"] = ""
    """After the last layer: of all patches (SigLIP), or of the class token alone, for what no decoder reads (CLIP)."""
    layer_scale: bool = False
    """What attention and MLP make is scaled by learned columns (InternViT)."""
    window: Natural = 0
    """Patches of one window that attend to each other; 0 = all of a picture."""
    full_every: Natural = 0
    """Every n-th layer attends to the whole picture all the same (Qwen2.5-VL: 8)."""
    tiles: Count = 1
    """Pictures of one size that make one, whose patches all attend to each other (Llama 3.2 Vision: 4)."""
    ratios: Natural = 0
    """Ways to lay the tiles: each has rows of its own in tables of their places, which come with tiles > 1."""
    gated_layers: Natural = 0
    """Last layers that are a second stage, with a norm and the tiles' places before it: each mixer is scaled by one learned number."""
    unread: Natural = 0
    """Last layers that run for nothing: the decoder reads what the one before them makes (LLaVA: 1)."""

    def windowed(self, layer: int) -> bool:
        """Does this layer attend inside windows?"""
        return self.window > 0 and not (self.full_every and layer % self.full_every == self.full_every - 1)

    @property
    def patches(self) -> int:
        """Of one tile."""
        return (self.image // self.patch) ** 2

    @property
    def made(self) -> int:
        """Tokens of one picture, the class token of each tile among them."""
        return self.tiles * (self.patches + self.class_token)

    @property
    def tokens(self) -> int:
        """... with those that fill up each of several tiles to a multiple of eight, as transformers' MllamaVisionModel does."""
        return self.made if self.tiles == 1 else self.tiles * -(-self.made // self.tiles // 8) * 8


class Projector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Patches to what the decoder reads in place of words: fewer, and as wide."""

    merge: Count = 1
    """The columns of a square of so many patches a side are joined (pixel shuffle, Qwen's merger)."""
    pool: Count = 1
    """... or averaged (Gemma 3)."""
    norm: Literal["", "layernorm", "rmsnorm"] = ""
    joined_norm: bool = False
    """The norm is over joined patches (InternVL), not over each (Qwen)."""
    layers: Literal[1, 2] = 2
    """Linears; two have GELU between."""
    inner: Natural = 0
    """Width between them; 0 = the decoder's."""
    bias: bool = True
    beside: tuple[Natural, ...] = ()
    """Layers of the tower, counted from 0, whose columns are put beside those of the last (Llama 3.2 Vision)."""
    deepstack: tuple[Natural, ...] = ()
    """Layers of the tower, counted from 0, that the decoder reads too: each by a projector of its own, whose norm is over joined patches, added to what
    the decoder's first layers make, one each (Meng et al. 2024, arXiv 2406.04334; Qwen3-VL)."""


class VisionLanguage(Spec, tag="vlm", frozen=True, kw_only=True):
    """Pictures through a vision tower and a projector into a decoder, beside words (LLaVA, Liu et al. 2023; Qwen2-VL, InternVL, Gemma 3)."""

    tower: Tower
    projector: Projector = Projector()
    decoder: Decoder
    images: Count = 1
    """Pictures (or tiles of them) in each sequence, whose tokens the plan's seq_len counts."""
    frozen: tuple[Literal["tower", "projector", "decoder"], ...] = ()
    """What is not trained."""

    def __post_init__(self) -> None:
        name, tower = self.name or "vlm", self.tower
        check_heads(f"{name}: tower", tower.hidden, tower.heads)
        side = self.projector.merge * self.projector.pool
        if tower.image % (tower.patch * side):
            raise BadInput(
                f"{name}: tower.image = {tower.image} is no multiple of {tower.patch * side}: patches of {tower.patch} pixels, of which the "
                f"projector makes one of {side} x {side}"
            )
        if tower.unread >= tower.layers:
            raise BadInput(f"{name}: tower.unread = {tower.unread} leaves none of {tower.layers} layers")
        self._check_tiles(name)
        self._check_read(name)
        if len(set(self.frozen)) == 3:
            raise BadInput(f"{name}: frozen names all parts: nothing is trained. Leave one out")
        if "projector" in self.frozen and "tower" not in self.frozen:
            raise Refused(f"{name}: a frozen projector behind a trained tower is not supported. Freeze the tower too, or train both")

    def _check_tiles(self, name: str) -> None:
        tower = self.tower
        if (tower.tiles > 1) != (tower.ratios > 0) or (tower.tiles > 1 and not (tower.class_token and tower.position == "learned")):
            raise Refused(f'{name}: tower.tiles is supported with tower.ratios, class_token = true and position = "learned" alone')
        if tower.gated_layers and (tower.tiles == 1 or tower.gated_layers >= tower.layers):
            raise BadInput(
                f"{name}: tower.gated_layers = {tower.gated_layers} are the last of {tower.layers} layers of a tower with tiles > 1"
            )
        if self.crossed != (tower.tiles > 1):
            raise Refused(f"{name}: tower.tiles > 1 and decoder.mixers with X, layers that read pictures, are supported only together")

    def _check_read(self, name: str) -> None:
        tower, last = self.tower, self.tower.layers - self.tower.unread - 1
        for field in ("beside", "deepstack"):
            read = getattr(self.projector, field)
            if list(read) != sorted(set(read)) or any(layer > last for layer in read):
                raise BadInput(
                    f"{name}: projector.{field} = {list(read)} must name layers of the tower, 0 to {last}, each once and in order"
                )
        deep, side = len(self.projector.deepstack), self.projector.merge * self.projector.pool
        if deep > self.decoder.layers:
            raise BadInput(f"{name}: projector.deepstack names {deep} layers, for which the decoder's {self.decoder.layers} are too few")
        if deep and tower.frames == 1:
            raise Refused(
                f"{name}: projector.deepstack is supported only for towers that order patches square by square, as Qwen's do. Set tower.frames = 2"
            )
        if (self.projector.beside or self.crossed) and (side > 1 or self.projector.norm or tower.unread or not self.crossed):
            raise Refused(
                f"{name}: projector.beside is supported for layers that read pictures (X in decoder.mixers), without merge, pool, norm and unread"
            )

    @property
    def tokens(self) -> int:
        """That the decoder reads of one picture: in place of words, or (`crossed`) beside them."""
        return self.tower.made if self.crossed else self.tower.patches // (self.projector.merge * self.projector.pool) ** 2

    @property
    def crossed(self) -> bool:
        """Has the decoder layers that read pictures, which then stand for one word each?"""
        return "X" in self.decoder.mixers

    def input_bytes(self, seq: int) -> int:
        """int64 ids and labels, and fp32 pictures."""
        return 16 * seq + 12 * self.images * self.tower.tiles * self.tower.frames * self.tower.image**2

    # What planning and memory ask of any model of layers.

    @property
    def layers(self) -> int:
        return self.tower.layers + self.decoder.layers

    @property
    def heads(self) -> int:
        """What tensor parallelism must divide."""
        return math.gcd(self.tower.heads, self.decoder.heads)

    @property
    def moe(self) -> Moe | None:
        return self.decoder.moe

    @property
    def tied(self) -> bool:
        return self.decoder.tied

    @property
    def mtp(self) -> int:
        return self.decoder.mtp

    @property
    def window(self) -> int:
        return self.decoder.window

    @property
    def position(self) -> str:
        return self.decoder.position

    @property
    def positions(self) -> int:
        return self.decoder.positions

    @property
    def lora(self) -> Lora | None:
        return self.decoder.lora
