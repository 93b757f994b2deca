"""Configs of pairs of towers, one of pictures and one of texts: CLIP, SigLIP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers.config import Config
from topologies.errors import Refused

Fields = dict[str, Any]


def _sizes(c: Config, hidden: int, heads: int) -> dict[str, int]:
    """Of a tower, with what its class defaults to."""
    found = {"layers": ("num_hidden_layers", 12), "hidden": ("hidden_size", hidden), "heads": ("num_attention_heads", heads)}
    found["ffn"] = ("intermediate_size", 4 * hidden)
    return {name: c.number(key, default=unsaid) for name, (key, unsaid) in found.items()}


def _pair(c: Config, patch: int, words: tuple[int, int, int, int], activation: str) -> Fields:
    """`words`: width, heads, vocabulary and tokens of texts where the file has none."""
    v, t = c.inner("vision_config"), c.inner("text_config")
    width, heads, vocab, tokens = words
    kinds = [one.activation("hidden_act", gated=False, default=activation) for one in (v, t)]
    if len(set(kinds)) > 1:
        raise Refused(
            f"{c.where}: hidden_act of vision_config is {kinds[0]} and of text_config {kinds[1]}: towers with different activations are not supported"
        )
    return {
        "family": "clip",
        **_sizes(v, 768, 12),
        "image": v.number("image_size", default=224),
        "patch": v.number("patch_size", default=patch),
        **{f"text_{name}": size for name, size in _sizes(t, width, heads).items()},
        "vocab": t.number("vocab_size", default=vocab),
        "text": t.number("max_position_embeddings", default=tokens),
        "activation": kinds[0],
    }


def _clip(c: Config) -> Fields:
    return _pair(c, 32, (512, 8, 49408, 77), "quick_gelu") | {"width": c.number("projection_dim", default=512)}


def _siglip(c: Config) -> Fields:
    """What pools the patches keeps their width, and texts' must be the same."""
    fields = _pair(c, 16, (768, 12, 32000, 64), "gelu_pytorch_tanh")
    width = c.inner("text_config").number("projection_size", default=fields["text_hidden"])
    if width != fields["hidden"]:
        raise Refused(f"{c.where}: features of pictures have {fields['hidden']} columns and of texts {width}, which cannot be compared")
    return fields | {"loss": "sigmoid", "width": width}


READERS: dict[str, Callable[[Config], Fields]] = {"clip": _clip, "siglip": _siglip}
