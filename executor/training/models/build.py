"""Builds the torch model of a spec from blocks, and computes its loss.

Blocks are those of the simulator (`embed`, `L0` ..., `head`) and direct children of the model: the units of FSDP, pipelines and
recomputation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.training.models import decoder, encdec, encoder, latent, sight, stacks, tiles, unet
from executor.training.models.adapters import adapt
from executor.training.models.parts import Core, write_norms_out
from sim.framework.framework import Framework
from sim.model.language.decoder import kind_of
from sim.model.specs.decoder import Decoder
from sim.model.specs.pictures import ConvNext, EfficientNet, UNet
from sim.model.specs.spec import Cnn, EncDec, Encoder, Mlp, ModelSpec, Vit
from sim.model.specs.vlm import VisionLanguage

Output = Tensor | tuple[Tensor, ...]
Blocks = Iterable[tuple[str, nn.Module]]


class Model(nn.Sequential):
    """All blocks in order. A call returns the output; `loss_of` computes the loss."""

    def __init__(self, spec: ModelSpec, habits: Framework, seq: int, tp: int = 1) -> None:
        super().__init__(OrderedDict((name.replace(".", "__"), block) for name, block in blocks_of(spec, habits, seq, tp)))
        self.spec, self.seq = spec, seq
        if getattr(spec, "tied", False) and hasattr(self.head, "logits"):
            self.head.logits.weight = self.embed.tokens.weight  # type: ignore[union-attr]
        if isinstance(spec, EncDec):  # encoder and decoder always share one table, even if the head has its own
            self.target.tokens.weight = self.embed.tokens.weight  # type: ignore[union-attr]
        if isinstance(spec, (Decoder, Encoder, EncDec, Vit, VisionLanguage)):
            self.apply(_small)


class Masked(Model):
    """BERT on masked words: the input also has the positions of the words to predict, which the head needs."""

    def forward(self, given: Tensor) -> Output:
        """`given`: (batch, seq + predictions), ids and then positions."""
        *body, head = self.children()
        x = given[:, : self.seq]
        for block in body:
            x = block(x)
        output: Output = head(x, given[:, self.seq :])
        return output


class Translated(Model):
    """An encoder-decoder: the input has the source's ids and then the target's, for the decoder."""

    def forward(self, given: Tensor) -> Tensor:
        """`given`: (batch, source and target tokens)."""
        return encdec.run(dict(self.named_children()), given, self.seq)


class Sighted(Model):
    """A vision-language model: the input has pictures, for its tower, and then ids."""

    def forward(self, given: Tensor) -> Tensor:
        """`given`: (batch, pixels and tokens) as int32 (`sight.packed`)."""
        assert isinstance(self.spec, VisionLanguage)
        return sight.run(self.spec, dict(self.named_children()), given, self.seq)


class Levels(Model):
    """A U-Net: each level of the way up also reads the map of the same level from the way down."""

    def forward(self, x: Tensor) -> Tensor:
        """`x`: (batch, channels, height, width)."""
        assert isinstance(self.spec, UNet)
        return unet.run(list(self.children()), self.spec.levels, x)


def _small(module: nn.Module) -> None:
    """Initialises embeddings with a standard deviation of 0.02, as in GPT-2 and BERT: with torch's 1, tied logits would be far too
    large."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def pack(model: Model, document: int) -> None:
    """Keeps attention inside documents of `document` tokens (0: one document). Rotary positions continue over the whole sequence, which
    does not change the distance between two tokens of a document."""
    for module in model.modules():
        if isinstance(module, Core):
            module.document = document


def model_for(spec: ModelSpec, habits: Framework, seq: int, tp: int = 1) -> Model:
    """The torch model of a spec, with its adapters, and with the framework's way to write it. `tp`: shards of fused gate-and-up weights."""
    model = _kind_of(spec)(spec, habits, seq, tp)
    if not habits.elementwise.fused_norm:
        write_norms_out(model)
    if isinstance(spec, Decoder) and spec.lora is not None:
        adapt(model, spec.lora)
    return model


def _kind_of(spec: ModelSpec) -> type[Model]:
    if isinstance(spec, Encoder) and spec.head in ("pretraining", "masked"):
        return Masked
    if isinstance(spec, EncDec):
        return Translated
    if isinstance(spec, VisionLanguage):
        return Sighted
    if isinstance(spec, UNet):
        return Levels
    return Model


def blocks_of(spec: ModelSpec, habits: Framework, seq: int, tp: int) -> Blocks:
    """Name and module of each block."""
    if isinstance(spec, Decoder):
        yield "embed", decoder.Embed(spec, habits, seq)
        for i in range(spec.layers):
            holds, windowed = kind_of(spec, i)
            made = tiles.Crossed if spec.mixers[i : i + 1] == "X" else latent.Latent if spec.mla else decoder.Layer
            yield f"L{i}", made(spec, habits, seq, tp, holds.startswith("moe"), windowed or not spec.full_unrotated)
        yield "head", decoder.Head(spec)
    elif isinstance(spec, (Encoder, Vit)):
        yield from _encoder(spec, habits)
    elif isinstance(spec, Cnn) and spec.arch in ("vgg", "alexnet", "cifar"):
        yield from getattr(stacks, spec.arch)(spec)
    elif isinstance(spec, EncDec):
        yield from encdec.blocks(spec, habits, seq)
    elif isinstance(spec, VisionLanguage):
        yield from sight.blocks(spec, habits, seq)
        yield from sight.deepened(spec, (pair for pair in blocks_of(spec.decoder, habits, seq, tp) if pair[0] != "embed"))
    else:
        files: dict[type, str] = {Mlp: "mlp", Cnn: "residual", EfficientNet: "efficientnet", ConvNext: "convnext", UNet: "unet"}
        yield from import_module(f"executor.training.models.{files[type(spec)]}").blocks(spec)


def _encoder(spec: Encoder | Vit, habits: Framework) -> Blocks:
    bert = isinstance(spec, Encoder)
    yield "embed", (encoder.Embed(spec) if isinstance(spec, Encoder) else encoder.VitEmbed(spec))
    fused = habits.linears.fused_projections if bert else True
    for i in range(spec.layers):
        yield f"L{i}", encoder.Layer(spec, habits, fused=fused, pre_norm=not bert, mask=bert)
    if isinstance(spec, Vit):
        yield "head", encoder.VitHead(spec)
    else:
        yield "head", (encoder.SpanHead(spec) if spec.head == "squad" else encoder.MaskedHead(spec))


def loss_of(spec: ModelSpec, output: Output, target: Tensor) -> Tensor:
    """The loss of a micro-batch: the mean over all its tokens (or samples)."""
    if isinstance(output, tuple):  # masked words, then the next sentence
        words, following = output[0], output[1:]
        places = words.shape[1]
        total = _cross_entropy(words, target[:, :places])
        return total + _cross_entropy(following[0], target[:, places]) if following else total
    if isinstance(spec, Mlp) and spec.loss == "mse":
        return F.mse_loss(output, target)
    if isinstance(spec, Encoder):  # SQuAD: the scores of all tokens are the classes of the answer's begin and of its end
        return _cross_entropy(output.transpose(1, 2), target)
    if isinstance(spec, UNet):  # a class for each pixel
        return F.cross_entropy(output.float(), target)
    return _cross_entropy(output, target)


def _cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]).float(), target.reshape(-1))


def images(spec: ModelSpec) -> bool:
    """True for models of feature maps, whose kernels on tensor cores need channels last."""
    return isinstance(spec, (Cnn, EfficientNet, ConvNext, UNet))


def reads_ids(spec: ModelSpec) -> bool:
    """True if the model's inputs are integers: token ids, or the bits of pictures and token ids."""
    return isinstance(spec, (Decoder, Encoder, EncDec, VisionLanguage))


def memory_format(spec: ModelSpec, habits: Framework, kind: str) -> torch.memory_format:
    """The memory format of weights and maps, the same as in predictions (`sim.model.pictures.vision.turned`). `kind`: cuda | cpu."""
    last = (
        habits.maps.channels_last
        or (habits.precision.param_dtype != "fp32" and not habits.maps.planar)
        or (habits.precision.autocast and not habits.maps.planar)
    )
    return torch.channels_last if kind == "cuda" and images(spec) and last else torch.preserve_format
