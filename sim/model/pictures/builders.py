"""Models of pictures by their spec: which is built by which file."""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.parts import Shape
from sim.model.pictures import convnext, efficientnet, unet
from sim.model.pictures.vision import Blocks
from sim.model.share import share_of
from sim.model.specs.pictures import ConvNext, EfficientNet, Pictures, UNet
from topologies.errors import Refused


def blocks_of(spec: Pictures, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """stem, one block per residual block (or level), head. Raises `Refused` for tp, cp or ep."""
    data_parallel_only(spec.name or "pictures", "a convolutional network", shape, chain=spec.chain)
    share = share_of(replace(shape, seq=1), framework)
    share = replace(share, es=share.e)  # under autocast convolutions and batch norms stay 16-bit
    if isinstance(spec, EfficientNet):
        return efficientnet.blocks(spec, share)
    if isinstance(spec, ConvNext):
        return convnext.blocks(spec, share)
    if isinstance(spec, UNet):
        return unet.blocks(spec, share)
    raise Refused(f"{spec.name}: a model of family {type(spec).__name__} is not supported")
