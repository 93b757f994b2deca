"""Layers and widths of a decoder of which a row says only how many parameters it has: those of models of that size.

Step times follow the parameters; how they are spread over depth and width moves them by a few per cent.
"""

from __future__ import annotations

import math
import re

import msgspec

from sim.accuracy.architecture.names import size_of
from sim.accuracy.row import Row

_ASPECTS = ((0.6e9, 64), (3e9, 80), (300e9, 128), (math.inf, 192))
"""Width over depth of models up to so many parameters: GPT-2 and GPT-3's small ones (Brown et al. 2020, table 2.1), GPT-3 and Llama,
the largest of Megatron-LM (Narayanan et al. 2021, table 1)."""
_VOCAB = 50304
_OTHERS = (
    r"moe|expert|hybrid|proxy|\bcut|truncat|\d+x\d|\ba\d+(\.\d+)?b\b|deepseek|kimi|gpt[-_ ]?oss|grok|mixtral|dbrx|minimax|arctic|switch"
    r"|gshard|glam\b|llama-?4|glm-?[45]|nemotron-?3"
)
"""Models whose parameters do not tell their layers, and parts of models."""
MIXERS = r"[mzjb]amba|hymba|falcon-?h1|griffin|recurrent-?gemma|rwkv|\bevo\W?\d|hyena|retnet|xlstm"
"""Decoders with other layers than attention, some or all."""

_SPLIT = 10e9
"""Parameters from which on a model's heads and layers divide among the GPUs that hold it, also where the row does not say among how many."""


def with_sizes(row: Row, assumed: list[str]) -> Row | None:
    """The row with layers and width; None where it states no parameters, or is no dense decoder."""
    params = row.params or size_of(row.model_name)
    if not params or row.n_experts or re.search(f"{_OTHERS}|{MIXERS}", f"{row.model_type} {row.model_name}".lower()):
        return None
    vocab = row.vocab_size or _VOCAB
    if not (row.n_layers or row.hidden or row.tp or row.pp) and params >= _SPLIT:
        width = _whole(params)
        row = msgspec.structs.replace(row, hidden=width, n_layers=4 * round(_layers(params, width, vocab) / 4))
    layers = row.n_layers or (_layers(params, row.hidden, vocab) if row.hidden else _depth(params, vocab, row.pp or 1))
    hidden = row.hidden or _width(params, layers, vocab, row.tp or 1)
    assumed.append(f"architecture not stated: {layers} layers of {hidden}, as models of {params / 1e9:.3g} billion parameters have")
    return msgspec.structs.replace(row, n_layers=layers, hidden=hidden)


def _whole(params: float) -> int:
    """The usual width, in heads of 128 that four divide, or eight where they are many."""
    aspect = next(aspect for most, aspect in _ASPECTS if params <= most)
    width = math.cbrt(params * aspect / 12)
    step = 128 * (8 if width >= 8192 else 4)
    return round(width / step) * step


def _layers(params: float, hidden: int, vocab: int) -> int:
    """Layers that parameters of 12 hidden^2 a layer and hidden x vocab once make."""
    return max(1, round((params - vocab * hidden) / (12 * hidden * hidden)))


def _depth(params: float, vocab: int, stages: int) -> int:
    """Layers of the usual proportions, a multiple of the pipeline's stages."""
    aspect = next(aspect for most, aspect in _ASPECTS if params <= most)
    layers = math.cbrt(params / (12 * aspect * aspect))
    for _ in range(20):  # the embedding's share is small: this settles at once
        layers = math.cbrt(max(params - vocab * aspect * layers, params / 10) / (12 * aspect * aspect))
    return max(1, round(layers / stages)) * stages


def _width(params: float, layers: int, vocab: int, tp: int) -> int:
    """The width at which so many layers hold the parameters, in steps that tensor parallelism can split."""
    step = max(128, 64 * tp)
    width = (math.sqrt(vocab * vocab + 48 * layers * params) - vocab) / (24 * layers)
    return max(1, round(width / step)) * step
