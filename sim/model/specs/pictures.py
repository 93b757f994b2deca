"""What models of pictures are beside the older networks of `spec.Cnn`: EfficientNet, ConvNeXt, U-Net. Sizes are counts of elements."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from sim.model.specs.fields import Count, Fraction, Natural, Spec
from topologies.errors import BadInput

Factor = Annotated[float, msgspec.Meta(gt=0.0, le=16.0)]
Widths = Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=16)]

Depths = Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1, max_length=16)]


class Pictures(Spec, frozen=True, kw_only=True):
    """What models of square pictures share."""

    unit: ClassVar[str] = "images"
    chain: ClassVar[bool] = True
    """Each block reads the one before it alone."""
    classes: Count = 1000
    channels: Count = 3

    @property
    def side(self) -> int:
        """Pixels of the picture's side."""
        return 224

    def input_bytes(self, seq: int) -> int:
        """The fp32 picture (the label is 8 bytes more)."""
        return 4 * self.channels * self.side**2


class EfficientNet(Pictures, tag="efficientnet", frozen=True, kw_only=True):
    """Inverted bottlenecks with depthwise convolutions, squeeze-and-excitation and swish (Tan & Le 2019; v2: Tan & Le 2021)."""

    variant: Literal["v1", "v2-s", "v2-m", "v2-l"] = "v1"
    width: Factor = 1.0
    """v1: channels over those of B0, rounded to eights (B7: 2.0)."""
    depth: Factor = 1.0
    """v1: layers over those of B0, rounded up (B7: 3.1)."""
    image: Natural = 0
    """Pixels of a side; 0 = 224 (v1), 300 (v2-s), 384 (v2-m, v2-l)."""
    dropout: Fraction = 0.2
    drop_path: Fraction = 0.2
    """Whole blocks dropped for a sample (Huang et al. 2016); 0 = none."""

    @property
    def side(self) -> int:
        """Pixels of the picture's side."""
        return self.image or {"v1": 224, "v2-s": 300}.get(self.variant, 384)


class ConvNext(Pictures, tag="convnext", frozen=True, kw_only=True):
    """Depthwise convolutions of 7 x 7, layer norms and an MLP on each place (Liu et al. 2022)."""

    depths: Widths = (3, 3, 9, 3)
    """Blocks of each stage."""
    widths: Widths = (96, 192, 384, 768)
    image: Count = 224
    drop_path: Fraction = 0.1

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.widths):
            raise BadInput(
                f"{self.name or 'convnext'}: depths = {self.depths} and widths = {self.widths} differ in length; give one of each a stage"
            )
        least = 4 << (len(self.widths) - 1)
        if self.image < least:
            raise BadInput(
                f"{self.name or 'convnext'}: image = {self.image} is nothing after {least} pixels become one. Use {least} or more"
            )

    @property
    def side(self) -> int:
        """Pixels of the picture's side."""
        return self.image


class UNet(Pictures, tag="unet", frozen=True, kw_only=True):
    """Segmentation: down by pooling, up by transposed convolutions, each level joined with its own on the way down (Ronneberger et al. 2015)."""

    chain: ClassVar[bool] = False
    classes: Count = 2
    width: Count = 64
    """Channels of the first level; each further one has twice as many."""
    levels: Annotated[int, msgspec.Meta(ge=1, le=8)] = 4
    """Times that the picture is halved."""
    image: Count = 512

    def __post_init__(self) -> None:
        least = 2**self.levels
        if self.image % least:
            raise BadInput(f"{self.name or 'unet'}: image = {self.image} cannot be halved {self.levels} times. Use a multiple of {least}")

    @property
    def side(self) -> int:
        """Pixels of the picture's side."""
        return self.image

    def input_bytes(self, seq: int) -> int:
        """The fp32 picture and the class of each pixel."""
        return (4 * self.channels + 8) * self.image**2
