"""wav2vec 2.0 (Baevski et al. 2020), operator by operator as transformers' modeling_wav2vec2.py runs it with fused attention.

Recordings are cut to one length: no mask leaves padding out. Training learns to tell the quantised sound behind masked frames from that of others.
"""

from __future__ import annotations

from msgspec.structs import replace

from sim.framework.framework import Framework
from sim.model.check import data_parallel_only
from sim.model.language.encoder import layer_parts
from sim.model.layers.activation import activation
from sim.model.layers.elementwise import elementwise
from sim.model.layers.ends import loss
from sim.model.layers.linear import linear
from sim.model.layers.norm import norm
from sim.model.parts import Block, Part, Shape
from sim.model.pictures.maps import group_norm, line_convolution
from sim.model.pictures.vision import Map
from sim.model.share import Share, share_of
from sim.model.specs.speech import Wav2Vec
from sim.model.speech.contrast import contrast
from sim.work import Work

Blocks = tuple[tuple[str, Block], ...]
_KERNELS, _STRIDES = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
_CHANNELS = 512
"""Of the convolutions."""
_POSITIONS = (128, 16)
"""Kernel and groups of the convolution that tells positions."""


def blocks_of(spec: Wav2Vec, shape: Shape, framework: Framework, attention: str) -> Blocks:
    """embed (convolutions, positions), L0 ..., head. Raises `Refused` for tp, cp or ep."""
    data_parallel_only(spec.name or "wav2vec2", "a model of speech", shape)
    share = share_of(replace(shape, seq=spec.frames), framework, attention)
    fused, drops = framework.linears.fused_projections, spec.dropout > 0
    parts = layer_parts(share, spec.hidden, spec.heads, spec.ffn or 4 * spec.hidden, drops, pre_norm=spec.stable, fused=fused, mask=False)
    kept = share.rows * spec.hidden * share.es
    layer = Block(kind="layer", parts=tuple(parts), saved_input=kept)
    head = Block(kind="head", parts=tuple(_head(spec, share)), saved_input=kept)
    first = Block(kind="embed", parts=(*_features(spec, share), *_places(spec, share)))
    return (("embed", first), *((f"L{i}", layer) for i in range(spec.layers)), ("head", head))


def _features(spec: Wav2Vec, share: Share) -> list[Part]:
    """Seven convolutions with GELU: a group norm after the first, or (stable) a norm over the channels after each, between two transposes."""
    found: list[Part] = []
    length, c_in = spec.samples, 1
    for index, (kernel, stride) in enumerate(zip(_KERNELS, _STRIDES, strict=True)):
        name = f"conv{index}"
        found.append(line_convolution(share, name, length, c_in, _CHANNELS, kernel, stride, bias=spec.stable, first=not index))
        length, c_in = (length - kernel) // stride + 1, _CHANNELS
        rows = share.micro * length
        if spec.stable:
            turn: Work = elementwise("permute", share, rows * _CHANNELS, share.e, share.e)
            turned = Part(name=f"{name}.turn", forward=(turn, turn), backward=(turn, turn), cls="elementwise", modules=0)
            found += [turned, norm(share, f"{name}.norm", rows, _CHANNELS, "layernorm", after_residual=False, es=share.e)]
        elif not index:
            found.append(group_norm(share, f"{name}.norm", Map(_CHANNELS, 1, length), _CHANNELS))
        found.append(activation(share, f"{name}.act", rows, _CHANNELS, "gelu"))
    return found


def _places(spec: Wav2Vec, share: Share) -> list[Part]:
    """Frames brought to the layers' width, masked ones replaced by a learned vector, and a wide convolution added that tells their places."""
    h, rows, e = spec.hidden, share.rows, share.e
    fill: Work = elementwise("scale", share, rows * h, e, e)
    add: Work = elementwise("add", share, rows * h, 2 * e, share.es)
    kernel, groups = _POSITIONS
    found = [
        norm(share, "features.norm", rows, _CHANNELS, "layernorm", after_residual=False, es=e),
        linear(share, "features.project", _CHANNELS, h, bias=True, low=False, stream=True),
        Part(name="features.mask", forward=(fill,), backward=(fill,), cls="elementwise", tensors=(h,), modules=0),
        line_convolution(share, "positions", share.shape.seq, h, h, kernel, 1, groups=groups, padding=-1, bias=True),
        activation(share, "positions.act", rows, h, "gelu"),
        Part(name="positions.add", forward=(add,), backward=(add,), cls="elementwise", modules=0),
    ]
    return found if spec.stable else [*found, norm(share, "embed.norm", rows, h, "layernorm", after_residual=False)]


def _head(spec: Wav2Vec, share: Share) -> list[Part]:
    """Characters of each frame (CTC), or (unsaid) frames against their own and others' quantised sounds."""
    h = spec.hidden
    last = [norm(share, "head.norm", share.rows, h, "layernorm")] if spec.stable else []
    if spec.characters:
        return [
            *last,
            linear(share, "head.characters", h, spec.characters, bias=True, low=False, stream=True),
            loss(share, spec.characters),
        ]
    return [*last, *contrast(spec, share, _CHANNELS)]
