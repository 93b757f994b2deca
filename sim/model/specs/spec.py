"""What a model is, before anything splits it: one frozen value per architecture family.

`ModelSpec` is their union, tagged by `family` (the key of preset files); `spec_of` reads one from a mapping. Decoders, with most fields by
far, have a file of their own (`sim.model.specs.decoder`); pictures, diffusion, speech and recommenders have theirs. `sim.model.network.describe` turns a spec into
a `Network` of one rank's kernels. Sizes are counts of elements; 0 means "as usual" where said.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_type_hints

import msgspec

from sim.model.captured import Captured
from sim.model.check import check_heads
from sim.model.specs import coco, openimages
from sim.model.specs.clip import Clip
from sim.model.specs.decoder import Decoder
from sim.model.specs.diffusion import DiffusionUNet, Dit, Flux, Wan
from sim.model.specs.fields import GATED, Activation, Count, Fraction, Layers, Natural, Spec
from sim.model.specs.pictures import ConvNext, EfficientNet, UNet
from sim.model.specs.recommender import Dlrm
from sim.model.specs.speech import Wav2Vec, Whisper
from sim.model.specs.vlm import VisionLanguage
from sim.wrongvalue import struct_of, wrong_value
from topologies.errors import BadInput, UnknownName


class Mlp(Spec, tag="mlp", frozen=True, kw_only=True):
    """Linear layers with an activation between: `widths` from the input to the output."""

    widths: Annotated[tuple[Count, ...], msgspec.Meta(min_length=2)]
    activation: Activation = "relu"
    bias: bool = True
    loss: Literal["cross_entropy", "mse"] = "mse"
    unit: ClassVar[str] = "samples"

    def __post_init__(self) -> None:
        if self.activation in GATED:
            plain = ", ".join(kind for kind in get_args(Activation) if kind not in GATED)
            raise BadInput(
                f'{self.name or "mlp"}: activation = "{self.activation}" gates one linear by another, and an MLP\'s layers have one. Use {plain}'
            )

    def input_bytes(self, seq: int) -> int:
        """fp32 vectors in and out."""
        return 4 * (self.widths[0] + self.widths[-1])


class Encoder(Spec, tag="encoder", frozen=True, kw_only=True):
    """A bidirectional transformer with norms after the residuals: BERT (Devlin et al. 2018)."""

    layers: Layers
    hidden: Count
    heads: Count
    ffn: Natural = 0
    """0 = 4 x hidden."""
    vocab: Count = 30522
    positions: Count = 512
    types: Natural = 2
    """Segment embeddings; 0 = none (DistilBERT)."""
    head: Literal["pretraining", "masked", "squad", "none"] = "pretraining"
    """pretraining: masked words and next sentence; masked: words alone (RoBERTa); squad: two scores a token."""
    predictions: Natural = 0
    """Words per sequence that have logits; 0 = 15 %, rounded up (those that are masked), and never more than there are: transformers makes
    them of all."""
    dropout: Fraction = 0.1
    tied: bool = True
    """The head over masked words uses the embedding's weight."""

    def __post_init__(self) -> None:
        check_heads(self.name or "encoder", self.hidden, self.heads)

    def picked(self, seq: int) -> int:
        """Words of a sequence of `seq` tokens that have logits."""
        return min(self.predictions or math.ceil(0.15 * seq), seq)

    def input_bytes(self, seq: int) -> int:
        """int64 ids, labels, segments and mask."""
        return 32 * seq


class Vit(Spec, tag="vit", frozen=True, kw_only=True):
    """A vision transformer on square images cut into patches (Dosovitskiy et al. 2020)."""

    layers: Layers
    hidden: Count
    heads: Count
    ffn: Natural = 0
    image: Count = 224
    patch: Count = 16
    classes: Count = 1000
    dropout: Fraction = 0.0
    unit: ClassVar[str] = "images"

    def __post_init__(self) -> None:
        check_heads(self.name or "vit", self.hidden, self.heads)

    def input_bytes(self, seq: int) -> int:
        """The fp32 picture."""
        return 12 * self.image**2


class Cnn(Spec, tag="cnn", frozen=True, kw_only=True):
    """A convolutional network: resnet (also ResNeXt, SE), vgg, alexnet, inception-v3, ssd300, mask-rcnn, retinanet, cifar."""

    arch: Literal["resnet", "vgg", "alexnet", "inception-v3", "ssd300", "mask-rcnn", "retinanet", "cifar"] = "resnet"
    depth: Natural = 50
    """resnet: 18 34 50 101 152; mask-rcnn, retinanet: 50 101 152; vgg: 11 13 16 19."""
    groups: Count = 1
    width: Count = 64
    """Channels of one group in the first stage (ResNeXt 32x4d: groups 32, width 4)."""
    se: bool = False
    """Squeeze and excitation after each block (Hu et al. 2018), reduction 16."""
    batch_norm: bool = True
    """vgg: with batch norm after each convolution; resnet always has it."""
    image: Natural = 0
    """Pixels of a side; 0 = 224, for inception-v3 299, for ssd300 300, for cifar 32, for retinanet 800, for mask-rcnn COCO's photographs with a short
    side of 800."""
    classes: Natural = 0
    """0 = 1000, for ssd300 81, for mask-rcnn 91, for retinanet 264, for cifar 10."""
    unit: ClassVar[str] = "images"

    @property
    def chain(self) -> bool:
        """Each block reads the one before it alone: not the heads of detectors, which read maps of several sizes."""
        return self.arch not in ("ssd300", "mask-rcnn", "retinanet")

    def input_bytes(self, seq: int) -> int:
        """The fp32 picture; detectors' photographs are scaled on the device: retinanet's in fp32, mask-rcnn's as they are decoded, three bytes a
        pixel."""
        if self.arch == "mask-rcnn":
            return 3 * (self.image**2 or coco.PIXELS)
        if self.arch == "retinanet":
            return 12 * (self.image**2 or openimages.PIXELS)
        return 12 * (self.image or {"inception-v3": 299, "ssd300": 300, "cifar": 32}.get(self.arch, 224)) ** 2


class EncDec(Spec, tag="encdec", frozen=True, kw_only=True):
    """Encoder and decoder with cross-attention: T5, the Transformer of 2017."""

    layers: Layers
    """Of the encoder, and as many of the decoder."""
    hidden: Count
    heads: Count
    head_dim: Natural = 0
    ffn: Count
    vocab: Count
    activation: Activation = "relu"
    norm: Literal["rmsnorm", "layernorm"] = "layernorm"
    pre_norm: bool = True
    bias: bool = True
    relative: Natural = 0
    """Buckets of a learned relative position bias in the first layer of each stack (T5: 32); 0 = sinusoids. A quarter of them, of a decoder half, are for
    the nearest distances, one each; the others reach to 128 tokens."""
    tied: bool = True
    target: Natural = 0
    """Target tokens per sample; 0 = as many as source tokens (the plan's seq_len)."""
    dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        name = self.name or "encdec"
        check_heads(name, self.hidden, self.heads, self.head_dim)
        if self.relative and not 4 <= self.relative < 256:
            raise BadInput(
                f"{name}: relative = {self.relative} is no count of buckets that reach to 128 tokens. Use 4 to 255 (T5: 32), or 0"
            )

    @property
    def biased_scores(self) -> bool:
        """Attention adds a bias to its scores."""
        return self.relative > 0


class TransformerXl(Spec, tag="transformer-xl", frozen=True, kw_only=True):
    """Segments with memory and relative positions (Dai et al. 2019), adaptive softmax."""

    layers: Layers
    hidden: Count
    heads: Count
    head_dim: Natural = 0
    ffn: Count
    memory: Count
    """Tokens of the previous segment that attention sees."""
    vocab: Count = 267735
    cutoffs: tuple[Count, ...] = (19997, 39997, 199997)
    div: Count = 1
    """Each further cluster of words is embedded in so many times fewer columns."""
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.0
    """Of the attention's probabilities (dropatt)."""

    def __post_init__(self) -> None:
        name = self.name or "transformer-xl"
        check_heads(name, self.hidden, self.heads, self.head_dim)
        tails = sum(cut < self.vocab for cut in self.cutoffs)
        if self.hidden // self.div**tails < 1:
            raise BadInput(
                f"{name}: div = {self.div} leaves no column of hidden = {self.hidden} for the last of {tails + 1} clusters. Use less"
            )


class Seq2Seq(Spec, tag="seq2seq", frozen=True, kw_only=True):
    """LSTM encoder and decoder with additive attention: GNMT (Wu et al. 2016)."""

    layers: Annotated[int, msgspec.Meta(ge=2, le=10**8)] = 4
    """Of the encoder (the first is bidirectional, the second takes both of its directions), and as many of the decoder."""
    hidden: Count = 1024
    vocab: Count = 32320
    longest: Count = 50
    """Sentences are cut to so many tokens, whatever the plan's seq_len (GNMT v2: --max-length-train 50)."""
    dropout: Fraction = 0.2


ModelSpec = Union[
    Decoder,
    Encoder,
    EncDec,
    TransformerXl,
    Seq2Seq,
    Vit,
    Cnn,
    EfficientNet,
    ConvNext,
    UNet,
    Dit,
    Flux,
    DiffusionUNet,
    Wan,
    Whisper,
    Wav2Vec,
    VisionLanguage,
    Clip,
    Dlrm,
    Mlp,
    Captured,
]


def spec_of(tree: dict[str, Any], where: str, name: str = "") -> ModelSpec:
    """A spec from the mapping of a preset; `family` unsaid: a decoder. Raises `BadInput` with the field's path."""
    try:
        spec: ModelSpec = msgspec.convert({"family": "decoder", "name": name, **tree}, ModelSpec)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {wrong_value(str(error), tree, _named(tree, where))}") from None
    return spec


def _named(tree: dict[str, Any], where: str) -> type[Spec]:
    """The family that a table names. Raises `UnknownName` with the nearest for a family, or a field of it, that does not exist."""
    specs: dict[str, type[Spec]] = {str(spec.__struct_config__.tag): spec for spec in get_args(ModelSpec)}
    family = str(tree.get("family", "decoder"))
    if family not in specs:
        raise UnknownName("family", family, specs, where)
    _check_fields(tree, specs[family], where)
    return specs[family]


def _check_fields(tree: dict[str, Any], struct: Any, where: str, prefix: str = "") -> None:
    """The same of the fields of a table in it (`lora.rank`), at `prefix`."""
    hints, tagged = get_type_hints(struct), struct.__struct_config__.tag is not None
    fields = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
    for key, value in tree.items():
        if key not in fields and not (tagged and key == "family"):
            allowed = [prefix + field for field in (*fields, *(["family"] if tagged else []))]
            raise UnknownName("field", prefix + key, allowed, where, meant=_below(hints, key, prefix))
        inner = struct_of(hints.get(fields.get(key, "")))
        if inner is not None and isinstance(value, dict):
            _check_fields(value, inner, where, f"{prefix}{key}.")


def _below(hints: dict[str, Any], key: str, prefix: str) -> list[str]:
    """The fields called `key` of tables in this one: `moe.top_k`."""
    tables = {name: struct_of(hint) for name, hint in hints.items()}
    return [f"{prefix}{name}.{key}" for name, inner in tables.items() if inner is not None and key in inner.__struct_encode_fields__]
