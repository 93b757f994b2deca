"""What models of speech are: Whisper, wav2vec 2.0. Sizes are counts of elements."""

from __future__ import annotations

from typing import ClassVar

from sim.model.check import check_heads
from sim.model.specs.fields import Count, Fraction, Layers, Natural, Spec
from sim.model.specs.lora import Lora, SpeechLora, check_adapters
from topologies.errors import BadInput


class Whisper(Spec, tag="whisper", frozen=True, kw_only=True):
    """A recording's spectrum through two convolutions and an encoder, its text out of a decoder that attends to it (Radford et al. 2022)."""

    chain: ClassVar[bool] = False
    """All layers of the decoder read the encoder's result."""
    adapters: ClassVar[type[Lora]] = SpeechLora
    layers: Layers
    """Of the encoder."""
    decoder_layers: Natural = 0
    """0 = as many."""
    hidden: Count
    heads: Count
    ffn: Natural = 0
    """0 = 4 x hidden."""
    vocab: Count = 51865
    mels: Count = 80
    """Bands of the spectrum."""
    frames: Count = 3000
    """Of one recording: 30 s, one each 10 ms; the second convolution takes every other."""
    positions: Count = 448
    """Longest text; the plan's seq_len counts its tokens."""
    lora: SpeechLora | None = None

    def __post_init__(self) -> None:
        check_heads(self.name or "whisper", self.hidden, self.heads)
        check_adapters(self.name or "whisper", self.lora, self.hidden)
        if self.frames % 2:
            raise BadInput(f"{self.name or 'whisper'}: frames = {self.frames} must be even: the second convolution has a stride of 2")

    def input_bytes(self, seq: int) -> int:
        """The fp32 spectrum, int64 tokens and labels."""
        return 4 * self.mels * self.frames + 16 * seq


class Wav2Vec(Spec, tag="wav2vec", frozen=True, kw_only=True):
    """A wave through convolutions into a bidirectional transformer, which learns what is behind masked frames (Baevski et al. 2020)."""

    unit: ClassVar[str] = "samples"
    layers: Layers
    hidden: Count
    heads: Count
    ffn: Natural = 0
    """0 = 4 x hidden."""
    samples: Count = 250_000
    """Of one recording, at 16 kHz: pre-training crops to so many for the base model, 320,000 for the large one (section 4.2)."""
    stable: bool = False
    """Norms before attention and MLP, and after each convolution, which have biases (the large models of 60,000 hours)."""
    code: Count = 256
    """Width in which frames and quantised sounds are compared."""
    characters: Natural = 0
    """Fine-tuning to characters by CTC: so many of them; 0 = pre-training."""
    dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        check_heads(self.name or "wav2vec2", self.hidden, self.heads)
        if self.samples < 400:
            raise BadInput(f"{self.name or 'wav2vec2'}: samples = {self.samples} make no frame of 25 ms. Use 400 or more")

    @property
    def frames(self) -> int:
        """What the convolutions leave of a recording: one for each 20 ms."""
        length = self.samples
        for kernel, stride in ((10, 5), *((3, 2),) * 4, *((2, 2),) * 2):
            length = (length - kernel) // stride + 1
        return length

    def input_bytes(self, seq: int) -> int:
        """The fp32 wave and, int64, which frames are masked."""
        return 4 * self.samples + 8 * self.frames
