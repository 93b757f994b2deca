"""What a pair of towers is that learns which picture belongs to which text: CLIP, SigLIP. Sizes are counts of elements."""

from __future__ import annotations

from typing import ClassVar, Literal

from sim.model.check import check_heads
from sim.model.specs.fields import Activation, Count, Layers, Natural, Spec
from sim.model.specs.vlm import Tower
from topologies.errors import BadInput


class Clip(Spec, tag="clip", frozen=True, kw_only=True):
    """A vision transformer and a text transformer whose features of a whole batch are compared (Radford et al. 2021; OpenCLIP, Cherti et al. 2022;
    SigLIP, Zhai et al. 2023)."""

    unit: ClassVar[str] = "pairs"
    chain: ClassVar[bool] = False
    layers: Layers
    """Of the vision tower, as are hidden, heads and ffn."""
    hidden: Count
    heads: Count
    ffn: Natural = 0
    """0 = 4 x hidden."""
    image: Count = 224
    """Pixels of a side; those that make no whole patch are left out (SigLIP: 384 of patches of 14)."""
    patch: Count
    text_layers: Layers
    text_hidden: Count
    text_heads: Count
    text_ffn: Natural = 0
    """0 = 4 x text_hidden."""
    vocab: Count = 49408
    text: Count = 77
    """Tokens of a text."""
    width: Count
    """Of the features that are compared."""
    activation: Activation = "gelu"
    """OpenAI's own: quick_gelu."""
    loss: Literal["softmax", "sigmoid"] = "softmax"
    """sigmoid: SigLIP, whose towers differ too: no class token, but a learned query that attends to all patches; texts' tokens all see each other, and
    the last one stands for the text."""

    def __post_init__(self) -> None:
        name = self.name or "clip"
        check_heads(name, self.hidden, self.heads)
        check_heads(f"{name}: text", self.text_hidden, self.text_heads)
        if self.image < self.patch:
            raise BadInput(f"{name}: image = {self.image} holds no patch of {self.patch} x {self.patch} pixels. Use {self.patch} or more")

    @property
    def sigmoid(self) -> bool:
        """Is it SigLIP?"""
        return self.loss == "sigmoid"

    @property
    def axis(self) -> str:
        """Of the mesh, along which features travel."""
        return "dp_ring" if self.sigmoid else "dp"

    @property
    def tower(self) -> Tower:
        """The vision tower, as those of vision-language models are described."""
        return Tower(
            layers=self.layers, hidden=self.hidden, heads=self.heads, ffn=self.ffn or 4 * self.hidden, image=self.image, patch=self.patch,
            class_token=not self.sigmoid, first_norm=not self.sigmoid, patch_bias=self.sigmoid,
        )  # fmt: skip

    def input_bytes(self, seq: int) -> int:
        """The fp32 picture and int64 ids."""
        return 12 * self.image**2 + 8 * self.text
