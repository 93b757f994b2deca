"""A spec as one torch model of blocks, and its loss.

Blocks are those of the simulator (`embed`, `L0` ..., `head`), direct children of the model: the unit of FSDP, pipelines and recomputation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.training.models import decoder, encdec, encoder, latent, sight, stacks, tiles, unet
from executor.training.models.experts import Experts, Shared
from executor.training.models.parts import Core
from sim.framework.framework import Framework
from sim.model.language.decoder import kind_of
from sim.model.specs.decoder import Decoder
from sim.model.specs.pictures import ConvNext, EfficientNet, UNet
from sim.model.specs.spec import Cnn, EncDec, Encoder, Mlp, ModelSpec, Vit
from sim.model.specs.vlm import VisionLanguage

Output = Tensor | tuple[Tensor, ...]
Blocks = Iterable[tuple[str, nn.Module]]

PARTS = {
    "tokens": "embed.tokens",
    "qkv": "attn.qkv",
    "q": "attn.q",
    "kv_proj": "attn.kv",
    "q_down": "attn.q_down",
    "q_norm": "attn.q_norm",
    "q_up": "attn.q_up",
    "k_norm": "attn.k_norm",
    "kv_down": "attn.kv_down",
    "kv_norm": "attn.kv_norm",
    "kv_up": "attn.kv_up",
    "rope": "attn.rope",
    "join": "attn.join",
    "core": "attn.core",
    "proj": "attn.proj",
    "post1": "attn.post_norm",
    "post2": "mlp.post_norm",
    "up": "mlp.up",
    "act": "mlp.act",
    "down": "mlp.down",
    "scale1": "attn.scale",
    "scale2": "mlp.scale",
    "logits": "head.logits",
    "cap": "head.cap",
    "norm": "head.norm",
    "loss": "head.loss",
}
"""Submodule of a transformer's layer -> part's name in `sim.model`, where they differ."""


_ENDS = {"embed", "stem", "target", "patches", "middle", "head"}
"""Blocks that are no layers."""


def ends_of(names: Iterable[str]) -> set[str]:
    """Of the names of a model's blocks those that are no layers: its beginning and its head. Plain stacks begin with a stage."""
    given = set(names)
    between = {name for name in given if name.startswith(("merger", "deepstack"))}
    return given & _ENDS | between | (given & {"S0"} if not given & {"embed", "stem"} else set())


class Model(nn.Sequential):
    """All blocks in order; calling it gives the output, `loss_of` the loss."""

    def __init__(self, spec: ModelSpec, habits: Framework, seq: int, tp: int = 1) -> None:
        super().__init__(OrderedDict((name.replace(".", "__"), block) for name, block in blocks_of(spec, habits, seq, tp)))
        self.spec, self.seq = spec, seq
        if getattr(spec, "tied", False) and hasattr(self.head, "logits"):
            self.head.logits.weight = self.embed.tokens.weight  # type: ignore[union-attr]
        if isinstance(spec, EncDec):  # both embeddings are one table, whatever the head has
            self.target.tokens.weight = self.embed.tokens.weight  # type: ignore[union-attr]
        if isinstance(spec, (Decoder, Encoder, EncDec, Vit, VisionLanguage)):
            self.apply(_small)


class Masked(Model):
    """BERT on masked words: with the ids come the places of those that it is to guess, for the head."""

    def forward(self, given: Tensor) -> Output:
        """(batch, seq + predictions)."""
        *body, head = self.children()
        x = given[:, : self.seq]
        for block in body:
            x = block(x)
        output: Output = head(x, given[:, self.seq :])
        return output


class Translated(Model):
    """An encoder-decoder: with the source's ids come the target's, for the decoder."""

    def forward(self, given: Tensor) -> Tensor:
        """(batch, source and target tokens)."""
        return encdec.run(dict(self.named_children()), given, self.seq)


class Sighted(Model):
    """A vision-language model: with the ids come the pictures, for its tower."""

    def forward(self, given: Tensor) -> Tensor:
        """(batch, pixels and tokens) as int32."""
        assert isinstance(self.spec, VisionLanguage)
        return sight.run(self.spec, dict(self.named_children()), given, self.seq)


class Levels(Model):
    """A U-Net: each level up reads its own on the way down, too."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width)."""
        assert isinstance(self.spec, UNet)
        return unet.run(list(self.children()), self.spec.levels, x)


def _small(module: nn.Module) -> None:
    """Tables are drawn with a standard deviation of 0.02, as GPT-2 and BERT are: with 1, tied logits begin far too large."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def pack(model: Model, document: int) -> None:
    """Attention stays inside documents of so many tokens. Rotary positions count on through the sequence: what two tokens of a document
    are apart is the same."""
    for module in model.modules():
        if isinstance(module, Core):
            module.document = document


def model_for(spec: ModelSpec, habits: Framework, seq: int, tp: int = 1) -> Model:
    """The torch model of a spec."""
    if isinstance(spec, Encoder) and spec.head in ("pretraining", "masked"):
        return Masked(spec, habits, seq)
    if isinstance(spec, EncDec):
        return Translated(spec, habits, seq)
    if isinstance(spec, VisionLanguage):
        return Sighted(spec, habits, seq)
    if isinstance(spec, UNet):
        return Levels(spec, habits, seq)
    return Model(spec, habits, seq, tp)


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
    """The mean over all tokens (samples) of this micro-batch."""
    if isinstance(output, tuple):  # masked words, then the next sentence
        words, following = output[0], output[1:]
        places = words.shape[1]
        total = _cross_entropy(words, target[:, :places])
        return total + _cross_entropy(following[0], target[:, places]) if following else total
    if isinstance(spec, Mlp) and spec.loss == "mse":
        return F.mse_loss(output, target)
    if isinstance(spec, Encoder):  # of each token: does the answer begin, does it end here?
        return _cross_entropy(output.transpose(1, 2), target)
    if isinstance(spec, UNet):  # of each pixel
        return F.cross_entropy(output.float(), target)
    return _cross_entropy(output, target)


def _cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]).float(), target.reshape(-1))


def parts_of(block: nn.Module, within: str = "") -> Iterator[tuple[str, nn.Module]]:
    """A block's parts by their path in it: its submodules; of experts theirs, with `moe.` before them."""
    for name, child in block.named_children():
        if isinstance(child, (Experts, Shared)):
            yield from parts_of(child, f"{within}{name}.")
        else:
            yield f"{within}{name}", child


def part_name(path: str) -> str:
    """`L3.qkv.each.0` -> `L3.attn.qkv`; `S0__1.conv1` -> `S0.1.conv1`; `embed.tokens`, `head.norm` and `L3.moe.shared.up` as they are."""
    names = [name.replace("__", ".") for name in path.split(".")]
    if names[1:2] == ["moe"]:
        return ".".join(names)
    if len(names) < 2 or names[0] in _ENDS:
        return ".".join(names[:2])
    return f"{names[0]}.{PARTS.get(names[1], names[1]) if names[0][0] in 'LV' else names[1]}"


def images(spec: ModelSpec) -> bool:
    """Is it a model of maps, whose kernels on tensor cores take channels side by side?"""
    return isinstance(spec, (Cnn, EfficientNet, ConvNext, UNet))


def reads_ids(spec: ModelSpec) -> bool:
    """Inputs are numbers of tokens, with pictures' bits or without."""
    return isinstance(spec, (Decoder, Encoder, EncDec, VisionLanguage))


def memory_format(spec: ModelSpec, habits: Framework, kind: str) -> torch.memory_format:
    """Of weights and maps: as they are priced (`sim.model.pictures.vision.turned`)."""
    last = (
        habits.maps.channels_last
        or (habits.precision.param_dtype != "fp32" and not habits.maps.planar)
        or (habits.precision.autocast and not habits.maps.planar)
    )
    return torch.channels_last if kind == "cuda" and images(spec) and last else torch.preserve_format
