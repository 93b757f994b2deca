"""Architectures whose configs are recognised but not supported: by `model_type`, what they have that `sim.model` has no layer for."""

from __future__ import annotations

_SCAN = "the selective scan of Mamba-1"
_STACKS = "an encoder and a decoder with learned positions"

UNDESCRIBED: dict[str, str] = {
    "mamba": _SCAN, "falcon_mamba": _SCAN, "jamba": _SCAN, "zamba": _SCAN, "zamba2": "attention that several layers share",
    "bamba": "a rotated half of attention among Mamba-2 layers", "falcon_h1": "attention and Mamba-2 side by side in one layer",
    "rwkv": "the WKV recurrence", "recurrent_gemma": "the RG-LRU recurrence", "lfm2": "gated short convolutions",
    "bailing_moe_linear": "lightning attention with rotated heads and norms over groups of them",
    "deepseek_v4": "attention to compressed keys, and residual streams that mix", "gemma4_text": "per-layer embeddings, and keys that are values",
    "gemma4": "per-layer embeddings, and keys that are values", "kimi_k25": "a vision tower over patches of several frames; its text_config is read by itself",
    "kimi_k3": "residuals over blocks of layers and gated latent attention", "glm5_next": "residual streams that mix", "deepseek_v41": "attention to compressed keys",
    "minimax_m3": "attention to chosen blocks of keys", "mimo_v2_flash": "other heads in windowed layers than in the rest",
    "step3p5": "other heads in windowed layers than in the rest",
    "nemotron-nas": "layers of different widths, some without attention", "deci": "layers of different widths", "openelm": "layers of different widths",
    "gemma3n": "per-layer embeddings and AltUp", "longcat_flash": "experts that compute nothing", "phi3small": "block-sparse attention",
    "bart": _STACKS, "mbart": _STACKS, "pegasus": _STACKS, "marian": _STACKS, "m2m_100": _STACKS, "led": _STACKS, "longt5": "local attention",
    "modernbert": "a bidirectional encoder with rotary positions, gates and windows", "nomic_bert": "a bidirectional encoder with rotary positions",
    "deberta": "disentangled attention", "deberta-v2": "disentangled attention", "albert": "layers that share their weights",
    "electra": "a generator beside a discriminator", "mpnet": "relative positions in an encoder", "longformer": "local attention",
    "big_bird": "block-sparse attention", "xlnet": "two-stream attention",
    "swin": "windows of patches that shift", "swinv2": "windows of patches that shift", "convnextv2": "global response normalization", "deit": "a distillation token", "dinov2": "layer scale and a head for features",
    "beit": "relative positions of patches", "mobilenet_v2": "inverted bottlenecks",
}  # fmt: skip
"""What is missing, in words for "... is not supported"."""

BY_FAMILY = {"wav2vec2": "wav2vec"}
"""By `model_type`: the family of a supported model whose config has no reader."""
