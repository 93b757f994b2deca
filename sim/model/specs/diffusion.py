"""What networks of diffusion models are: transformers (DiT, FLUX.1; Wan) and U-Nets (Stable Diffusion) on the latents of pictures or videos. Sizes are counts of elements."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from sim.model.check import check_heads
from sim.model.specs.fields import Count, Fraction, Layers, Natural, Spec
from sim.model.specs.lora import DiffusionLora, Lora, check_adapters
from sim.model.specs.pictures import Depths, Pictures, Widths
from topologies.errors import BadInput

_FRAMES = 4
"""Frames of a video to one of its latents, after the first (Wan-VAE)."""


class Latents(Pictures, frozen=True, kw_only=True):
    """What they share: they learn the noise in a picture's latents, which come ready from the input (as texts' embeddings do)."""

    channels: Count = 4
    """Of the latents."""
    image: Count = 512
    """Pixels of the picture's side."""
    reduction: Count = 8
    """Pixels to a side of one latent (the autoencoder's)."""

    @property
    def side(self) -> int:
        """Latents of a side."""
        return self.image // self.reduction

    def check_side(self, step: int, why: str) -> None:
        """Raises `BadInput` where the latents do not divide."""
        if self.image % (self.reduction * step):
            raise BadInput(f"{self.name or 'latents'}: image = {self.image} {why}. Use a multiple of {self.reduction * step}")


class Patched(Latents, frozen=True, kw_only=True):
    """A transformer on square patches of latents."""

    hidden: Count
    heads: Count
    ffn: Natural = 0
    """0 = 4 x hidden."""
    patch: Count = 2

    def __post_init__(self) -> None:
        check_heads(self.name or str(self.__struct_config__.tag), self.hidden, self.heads)
        self.check_side(self.patch, f"does not make whole patches of {self.patch} x {self.patch} latents")

    @property
    def tokens(self) -> int:
        """Patches of a picture."""
        return (self.side // self.patch) ** 2


class Dit(Patched, tag="dit", frozen=True, kw_only=True):
    """A transformer whose norms are shifted, scaled and gated by time and class (Peebles & Xie 2022, adaLN-Zero)."""

    layers: Layers
    image: Count = 256
    learn_sigma: bool = True
    """Also the noise's variance: twice as many numbers out."""
    label_dropout: Fraction = 0.1
    """Classes left out, for guidance without a classifier: one more row of the table where it is not 0."""

    def input_bytes(self, seq: int) -> int:
        """fp32 latents and the class."""
        return 4 * self.channels * self.side**2 + 8


class Flux(Patched, tag="flux", frozen=True, kw_only=True):
    """Picture and text attend to each other as one sequence: in layers with weights of their own for either, then in layers with one set for both
    (FLUX.1, black-forest-labs/flux, model.py; the first kind is Esser et al. 2024's MM-DiT).

    Queries, keys and values are one linear, as there, and have one adapter; in layers with one set so does what makes them and the MLP's inner
    values (`qkv`), and what takes attention's result and these (`down`). Diffusers' modules have three (four), each with its own.
    """

    adapters: ClassVar[type[Lora]] = DiffusionLora
    double: Layers
    """Layers with weights for picture and text apart."""
    single: Annotated[int, msgspec.Meta(ge=0, le=10**4)]
    """Layers after them, whose attention and MLP run beside each other."""
    hidden: Count = 3072
    heads: Count = 24
    channels: Count = 16
    image: Count = 1024
    text: Count = 512
    """Tokens of the text's embedding."""
    context: Count = 4096
    """Width of it (T5-XXL's)."""
    pooled: Count = 768
    """Numbers of the whole text (CLIP's), which steer all layers with the time."""
    guidance: bool = False
    """One more number steers them: how closely to follow the text (FLUX.1-dev, distilled)."""
    lora: DiffusionLora | None = None

    def __post_init__(self) -> None:
        Patched.__post_init__(self)
        check_adapters(self.name or "flux", self.lora, self.hidden)

    def input_bytes(self, seq: int) -> int:
        """fp32 latents and the text's embeddings."""
        return 4 * (self.channels * self.side**2 + self.text * self.context + self.pooled)


class Wan(Spec, tag="wan", frozen=True, kw_only=True):
    """A transformer on all patches of a video's latents at once, which attend to each other and to a text (Wan 2.1, arXiv 2503.20314, section 4.2)."""

    unit: ClassVar[str] = "videos"
    layers: Layers
    hidden: Count
    heads: Count
    ffn: Count
    channels: Count = 16
    """Of the latents."""
    patch: Count = 2
    """Latents of a side of a patch, of one frame of latents."""
    frames: Count = 81
    """Of the video: the first and so many fours."""
    height: Count = 480
    width: Count = 832
    reduction: Count = 8
    """Pixels to a side of one latent (the autoencoder's)."""
    text: Count = 512
    """Tokens of the text's embedding."""
    context: Count = 4096
    """Width of it (umT5-XXL's)."""

    def __post_init__(self) -> None:
        name, step = self.name or "wan", self.reduction * self.patch
        check_heads(name, self.hidden, self.heads)
        for field in ("height", "width"):
            if getattr(self, field) % step:
                raise BadInput(f"{name}: {field} = {getattr(self, field)} does not make whole patches. Use a multiple of {step}")
        if self.frames % _FRAMES != 1:
            near = (self.frames - 1) // _FRAMES * _FRAMES + 1
            raise BadInput(
                f"{name}: frames = {self.frames} must be one more than a multiple of {_FRAMES}. Use frames = {near} or {near + _FRAMES}"
            )

    @property
    def tokens(self) -> int:
        """Patches of a video."""
        step = self.reduction * self.patch
        return (self.frames // _FRAMES + 1) * (self.height // step) * (self.width // step)

    def input_bytes(self, seq: int) -> int:
        """fp32 latents and the text's embedding."""
        return 4 * (self.channels * self.tokens * self.patch**2 + self.text * self.context)


class DiffusionUNet(Latents, tag="diffusion-unet", frozen=True, kw_only=True):
    """Residual blocks with group norms, and transformers that attend to a text, on four or fewer levels (Rombach et al. 2021, Podell et al. 2023)."""

    chain: ClassVar[bool] = False
    adapters: ClassVar[type[Lora]] = DiffusionLora
    widths: Widths = (320, 640, 1280, 1280)
    """Channels of each level."""
    blocks: Count = 2
    """Residual blocks of a level on the way down; one more on the way up."""
    transformers: Depths = (1, 1, 1, 0)
    """Layers of the transformer after each residual block of a level; 0 = none."""
    middle: Natural = 1
    """Layers of the transformer between both ways."""
    heads: Widths = (8, 8, 8, 8)
    """Of the transformers of each level; the last also of the middle's."""
    context: Count = 768
    """Width of the text's embedding."""
    text: Count = 77
    """Tokens of it."""
    linear_projection: bool = False
    """Into and out of a transformer by linears, not by 1 x 1 convolutions."""
    added: Natural = 0
    """Numbers that say more of the picture (SDXL: pooled text, sizes and crops), embedded and added to the time; 0 = none."""
    lora: DiffusionLora | None = None

    def __post_init__(self) -> None:
        name, levels = self.name or "diffusion-unet", len(self.widths)
        for field in ("transformers", "heads"):
            if len(getattr(self, field)) != levels:
                raise BadInput(f"{name}: {field} = {getattr(self, field)} must have a number for each of the {levels} levels of widths")
        for width, heads in zip(self.widths, self.heads, strict=True):
            if width % 32:
                raise BadInput(f"{name}: widths = {self.widths} must be multiples of the 32 groups of the norms")
            check_heads(name, width, heads)
        check_adapters(name, self.lora, min(self.widths))
        self.check_side(1 << (levels - 1), f"cannot be halved {levels - 1} times")

    def input_bytes(self, seq: int) -> int:
        """fp32 latents, the text's embedding, and what is added."""
        return 4 * (self.channels * self.side**2 + self.text * self.context + self.added)
