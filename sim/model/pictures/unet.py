"""U-Net for segmentation (Ronneberger et al. 2015) with padded convolutions and batch norms, as milesial/Pytorch-UNet builds it
(unet/unet_parts.py, transposed convolutions): cross-entropy of each pixel."""

from __future__ import annotations

from sim.model.layers.ends import loss
from sim.model.parts import Block, Part
from sim.model.pictures.maps import beside, up_convolution
from sim.model.pictures.vision import Blocks, Map, block, convolution, normalised, pool
from sim.model.share import Share
from sim.model.specs.pictures import UNet


def blocks(spec: UNet, share: Share) -> Blocks:
    """stem (the first level), D1 ... down, U1 ... up, head."""
    image = Map(spec.channels, spec.image, spec.image)
    parts, x = _double(share, image, spec.width, first=True)
    found: list[tuple[str, Block]] = [("stem", block(share, "embed", parts, image))]
    skips = [x]
    for level in range(1, spec.levels + 1):
        pooled, y = pool(share, "pool", x, 2, 2)
        parts, y = _double(share, y, spec.width << level)
        found.append((f"D{level}", block(share, "layer", [pooled, *parts], x)))
        x = y
        skips.append(x)
    for level in range(1, spec.levels + 1):
        skip = skips[-1 - level]
        up, y = up_convolution(share, "up", x, skip.channels)
        cat, y = beside(share, "cat", y, skip)
        parts, y = _double(share, y, skip.channels)
        found.append((f"U{level}", block(share, "layer", [up, cat, *parts], x)))
        x = y
    out, y = convolution(share, "out", x, spec.classes, 1, bias=True)
    return (*found, ("head", block(share, "head", [out, loss(share, spec.classes, rows=share.micro * y.h * y.w)], x)))


def _double(share: Share, x: Map, out: int, *, first: bool = False) -> tuple[list[Part], Map]:
    """Twice a 3 x 3 convolution, batch norm and ReLU."""
    one, y = convolution(share, "conv1", x, out, 3, first=first)
    two, z = convolution(share, "conv2", y, out, 3)
    return [one, normalised(share, "bn1", y), two, normalised(share, "bn2", z)], z
