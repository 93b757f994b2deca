"""Random training examples (input, target) for a model. Example i is the same on every rank and in every run."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from executor.training.models.sight import packed
from sim.model.specs.decoder import Decoder
from sim.model.specs.pictures import Pictures, UNet
from sim.model.specs.spec import Cnn, EncDec, Encoder, Mlp, ModelSpec, Vit
from sim.model.specs.vlm import VisionLanguage
from topologies.errors import Refused

Pair = tuple[Tensor, Tensor]
_CIFAR = 32


def example_of(spec: ModelSpec, seq: int, index: int) -> Pair:
    """(input, target), without a batch dimension: token ids and the next ids; ids with the positions of masked words, and these words; a
    picture and its class; two vectors.

    Raises `Refused` for a model that stock training does not know.
    """
    g = torch.Generator().manual_seed(1000 + index)
    if isinstance(spec, Mlp):
        return _vectors(spec, g)
    if isinstance(spec, Decoder):
        ids = torch.randint(0, spec.vocab, (seq + 1,), generator=g)
        return ids[:-1], ids[1:]
    if isinstance(spec, VisionLanguage):
        pixels = torch.randn(spec.images * spec.tower.tiles * spec.tower.frames * 3 * spec.tower.image**2, generator=g)
        ids = torch.randint(0, spec.decoder.vocab, (seq + 1,), generator=g)
        return packed(pixels, ids[:-1]), ids[1:]
    if isinstance(spec, Encoder):
        return _sentences(spec, seq, g)
    if isinstance(spec, EncDec):
        source = torch.randint(0, spec.vocab, (seq,), generator=g)
        words = torch.randint(0, spec.vocab, ((spec.target or seq) + 1,), generator=g)
        return torch.cat((source, words[:-1])), words[1:]
    if isinstance(spec, UNet):
        return _picture(spec.channels, spec.side, spec.classes, g, (spec.side, spec.side))
    if isinstance(spec, Vit):
        return _picture(3, spec.image, spec.classes, g)
    if isinstance(spec, Cnn):
        small = spec.arch == "cifar"
        return _picture(3, spec.image or (_CIFAR if small else 224), spec.classes or (10 if small else 1000), g)
    if isinstance(spec, Pictures):
        return _picture(spec.channels, spec.side, spec.classes, g)
    raise Refused(f"there are no examples for a model of family {type(spec).__name__.lower()}")


def _vectors(spec: Mlp, g: Generator) -> Pair:
    x = torch.randn(spec.widths[0], generator=g)
    if spec.loss == "cross_entropy":
        return x, torch.randint(0, spec.widths[-1], (), generator=g)
    return x, torch.randn(spec.widths[-1], generator=g)


def _sentences(spec: Encoder, seq: int, g: Generator) -> Pair:
    ids = torch.randint(0, spec.vocab, (seq,), generator=g)
    if spec.head == "squad":  # the first and the last token of the answer
        return ids, torch.randint(0, seq, (2,), generator=g).sort().values
    places = torch.randperm(seq, generator=g)[: spec.picked(seq)].sort().values
    words = torch.randint(0, spec.vocab, (len(places),), generator=g)
    following = torch.randint(0, 2, (1,), generator=g) if spec.head == "pretraining" else words[:0]
    return torch.cat((ids, places)), torch.cat((words, following))


def _picture(channels: int, side: int, classes: int, g: Generator, places: tuple[int, ...] = ()) -> Pair:
    """A square picture and its class, or a class for each of its `places` (the shape of the target)."""
    return torch.randn(channels, side, side, generator=g), torch.randint(0, classes, places, generator=g)
