"""What models of speech are: Whisper. Sizes are counts of elements."""

from __future__ import annotations

from typing import ClassVar

from sim.model.check import check_heads
from sim.model.fields import Count, Natural, Spec
from topologies.errors import BadInput


class Whisper(Spec, tag="whisper", frozen=True, kw_only=True):
    """A recording's spectrum through two convolutions and an encoder, its text out of a decoder that attends to it (Radford et al. 2022)."""

    chain: ClassVar[bool] = False
    """All layers of the decoder read the encoder's result."""
    layers: Count
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

    def __post_init__(self) -> None:
        check_heads(self.name or "whisper", self.hidden, self.heads)
        if self.frames % 2:
            raise BadInput(f"{self.name or 'whisper'}: frames = {self.frames} must be even: the second convolution has a stride of 2")

    def input_bytes(self, seq: int) -> int:
        """The fp32 spectrum, int64 tokens and labels."""
        return 4 * self.mels * self.frames + 16 * seq
