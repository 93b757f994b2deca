"""Habits of model families: what a config leaves unsaid because its maker's code decides it.

`decoder("llama", n_layers=..., ...)` builds a spec from bare numbers, as tables of measurements give them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sim.model.specs.decoder import Decoder, Mla, Moe
from sim.wrongvalue import wrong_value
from topologies.errors import BadInput, UnknownName

_LAYERNORM: dict[str, Any] = {"norm": "layernorm", "activation": "gelu", "bias": True}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "internlm": {"qkv_bias": True, "proj_bias": True},  # InternLM-7B: attention with biases, MLP without
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gpt": _LAYERNORM | {"position": "learned", "tied": True, "fused_qkv": True},  # GPT-2, Megatron's GPT
    "mpt": _LAYERNORM | {"position": "learned", "tied": True, "fused_qkv": True, "dropout": 0.0},  # llm-foundry's training yamls
    "bloom": _LAYERNORM | {"position": "alibi", "tied": True, "embed_norm": True, "fused_qkv": True},
    "falcon": _LAYERNORM | {"bias": False, "tied": True, "parallel_block": True, "fused_qkv": True, "dropout": 0.0},
    "nemotron": {"norm": "layernorm", "activation": "relu2", "rotary": 0.5, "fused_qkv": True, "dropout": 0.0},  # Nemotron-4 report
    "mixtral": {},
    "deepseek": {},
    "gpt-oss": {"bias": True, "sinks": True, "window": 128, "window_every": 2, "rope_scaled": True},  # YaRN by 32
    "grok": {"activation": "geglu", "post_norms": True, "capped_scores": True, "tied": True},  # Grok-1's released code
}


def decoder(
    family: str,
    *,
    name: str = "",
    n_layers: int,
    hidden: int,
    n_heads: int,
    vocab_size: int,
    n_kv_heads: int = 0,
    head_dim: int = 0,
    ffn_hidden: int = 0,
    activation: str = "",
    n_experts: int = 0,
    top_k: int = 0,
    moe_ffn_hidden: int = 0,
    shared_ffn_hidden: int = 0,
    first_dense: int = 0,
    mla: Mla | None = None,
    **more: Any,
) -> Decoder:
    """A decoder with its family's habits; numbers that are 0 and words that are "" take the family's.

    `more` are fields of `Decoder` that win over the habits. Raises `UnknownName` for a family, `BadInput` for values.
    """
    if family not in FAMILIES:
        raise UnknownName("model family", family, FAMILIES)
    fields: dict[str, Any] = {**FAMILIES[family], **more}
    if activation:
        fields["activation"] = activation
    if n_experts:
        oss = dict.fromkeys(("bias", "router_bias", "limited"), family == "gpt-oss")
        fields["moe"] = Moe(experts=n_experts, top_k=top_k or 2, ffn=moe_ffn_hidden or ffn_hidden, shared=shared_ffn_hidden, **oss)
    sizes = {"kv_heads": n_kv_heads, "head_dim": head_dim, "ffn": ffn_hidden, "first_dense": first_dense}
    fields |= {key: value for key, value in sizes.items() if value}
    tree = {"name": name or family, "layers": n_layers, "hidden": hidden, "heads": n_heads, "vocab": vocab_size, **fields}
    if mla is not None:
        tree["mla"] = mla
    try:
        return msgspec.convert({key: msgspec.to_builtins(value) for key, value in tree.items()} | {"family": "decoder"}, Decoder)
    except msgspec.ValidationError as error:
        raise BadInput(f"{name or family}: {wrong_value(str(error), tree, Decoder)}") from None
