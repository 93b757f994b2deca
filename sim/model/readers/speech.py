"""Configs of models of speech: Whisper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers.config import Config
from topologies.errors import Refused

Fields = dict[str, Any]


def _whisper(c: Config) -> Fields:
    """Encoder and decoder of the same width; transformers' class defaults to the tiny size."""
    hidden, heads = c.number("d_model", default=384), c.number("encoder_attention_heads", default=6)
    ffn = c.number("encoder_ffn_dim", default=1536)
    for key, wanted in (("decoder_attention_heads", heads), ("decoder_ffn_dim", ffn)):
        if c.number(key, default=wanted) != wanted:
            raise Refused(f"{c.where}: {key} differs from the encoder's {wanted}, which is not supported; make them equal")
    if not c.flag("tie_word_embeddings", True):
        raise Refused(f"{c.where}: tie_word_embeddings = false of whisper is not supported; set it to true")
    return {
        "family": "whisper",
        "layers": c.number("encoder_layers", default=4),
        "decoder_layers": c.number("decoder_layers", default=4),
        "hidden": hidden,
        "heads": heads,
        "ffn": ffn,
        "vocab": c.number("vocab_size", default=51865),
        "mels": c.number("num_mel_bins", default=80),
        "frames": 2 * c.number("max_source_positions", default=1500),
        "positions": c.number("max_target_positions", default=448),
    }


READERS: dict[str, Callable[[Config], Fields]] = {"whisper": _whisper}
