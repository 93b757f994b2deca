"""Decoders whose layers mix in several ways: Mamba-2, the gated delta rule or lightning attention beside attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers.config import Config, sizes
from sim.model.readers.experts import deepseek, mixtral, qwen_moe
from sim.model.readers.gated import Fields, granite, llama
from topologies.errors import Refused


def _qwen3_next(c: Config) -> Fields:
    """The gated delta rule in three layers of four, attention with an output gate in the fourth; experts in all."""
    return qwen_moe(c) | _delta(c)


def _qwen3_5(c: Config) -> Fields:
    """Qwen3-Next's layers with one MLP in each."""
    return llama(c) | {"qk_norm": True} | _delta(c)


def _qwen3_5_moe(c: Config) -> Fields:
    """Qwen3-Next's layers; the intermediate size of an MLP that no layer has is left out."""
    return qwen_moe(Config({"intermediate_size": c.number("moe_intermediate_size"), **c.tree}, c.where)) | _delta(c)


def _delta(c: Config) -> Fields:
    """Which layers mix by the gated delta rule, and its sizes. Partly rotated heads: Qwen3-Next's and Qwen3.5's classes have a quarter."""
    layers, every = c.number("num_hidden_layers"), c.number("full_attention_interval", default=4)
    kinds = c.tree.get("layer_types") or ["full_attention" if i % every == every - 1 else "linear_attention" for i in range(layers)]
    delta = {
        "key_heads": c.number("linear_num_key_heads", default=16), "value_heads": c.number("linear_num_value_heads", default=32),
        "key_dim": c.number("linear_key_head_dim", default=128), "value_dim": c.number("linear_value_head_dim", default=128),
        "conv": c.number("linear_conv_kernel_dim", default=4),
    }  # fmt: skip
    mixers = "".join("*" if kind == "full_attention" else "D" for kind in kinds)
    return {"mixers": mixers, "delta": delta, "gated_attention": True, "rotary": c.fraction("partial_rotary_factor", default=0.25)}


def _kimi_linear(c: Config) -> Fields:
    """Kimi Linear: Kimi Delta Attention, and latent attention whose rotary columns are not turned in the layers that `full_attn_layers` counts from 1.
    Kimi K3's residuals over blocks, activation and latent experts are none of it.

    Raises `Refused` for these.
    """
    for key, plain in (("attn_res_block_size", None), ("routed_expert_hidden_size", None), ("mla_use_output_gate", False)):
        if c.tree.get(key, plain) not in (plain, None):
            raise Refused(f"{c.where}: {key} = {c.tree[key]} (Kimi K3) is not supported. Leave it out")
    linear, layers = c.inner("linear_attn_config"), c.number("num_hidden_layers")
    full = linear.tree.get("full_attn_layers") or []
    renamed = {"n_routed_experts": c.tree.get("num_experts"), "num_experts_per_tok": c.tree.get("num_experts_per_token")}
    renamed |= {"n_shared_experts": c.tree.get("num_shared_experts")}
    heads, width = linear.number("num_heads"), linear.number("head_dim", default=128)
    delta = {"key_heads": heads, "value_heads": heads, "key_dim": width, "value_dim": width, "channels": True}
    delta |= {"conv": linear.number("short_conv_kernel_size", default=4)}
    mixers = "".join("*" if layer + 1 in full else "D" for layer in range(layers))
    position = "none" if c.flag("mla_use_nope", True) else "rope"
    return deepseek(Config({**renamed, **c.tree}, c.where)) | {"mixers": mixers, "delta": delta, "position": position}


def _minimax_text(c: Config) -> Fields:
    """Mixtral with lightning attention in most layers. Which see all keys is in `layer_types` (transformers' conversion, whose default is every
    second from the first on) or `attn_type_list` (as released, 1 for these). The factors of its residuals are left out."""
    layers, heads = c.number("num_hidden_layers"), c.number("num_attention_heads")
    width = c.number("head_dim", default=0) or c.number("hidden_size") // heads
    kinds = c.tree.get("layer_types") or c.tree.get("attn_type_list") or [1, 0] * (layers // 2) + [1] * (layers % 2)
    fields = mixtral(c) | {"mixers": "".join("*" if kind in (1, "full_attention") else "L" for kind in kinds), "window": 0}
    fields["moe"] |= {"shared": c.number("shared_intermediate_size", default=0)}
    fields |= {"lightning": {"heads": heads, "head_dim": width, "chunk": c.number("block_size", default=256)}}
    return fields | {"rotary": c.number("rotary_dim", default=width) / width}


def _granite_hybrid(c: Config) -> Fields:
    """Granite 4: Mamba-2 in most layers, attention in some; experts and one MLP for every token, or that MLP alone."""
    shared, experts = c.number("shared_intermediate_size", default=1024), c.number("num_local_experts", default=0)
    kinds = c.tree.get("layer_types") or c.tree.get("layers_block_type") or ["mamba"] * c.number("num_hidden_layers")
    fields = granite(c) | {"mixers": "".join("*" if kind == "attention" else "M" for kind in kinds), "ffn": shared, "window": 0}
    fields["position"] = "rope" if c.tree.get("position_embedding_type") == "rope" else "none"
    fields["mamba"] = {
        "heads": c.number("mamba_n_heads"), "head_dim": c.number("mamba_d_head", default=64), "state": c.number("mamba_d_state", default=256),
        "groups": c.number("mamba_n_groups", default=1), "conv": c.number("mamba_d_conv", default=4), "chunk": c.number("mamba_chunk_size", default=256),
    }  # fmt: skip
    if experts:
        fields["moe"] = {
            "experts": experts,
            "top_k": c.number("num_experts_per_tok"),
            "ffn": c.number("intermediate_size"),
            "shared": shared,
        }
    return fields


def _mamba2(c: Config) -> Fields:
    """Mamba-2 mixers alone, each with its norm and residual."""
    layers, hidden = c.number("num_hidden_layers"), c.number("hidden_size")
    width = c.number("head_dim", default=64)
    heads = c.number("num_heads", default=c.number("expand", default=2) * hidden // width)
    mamba = {"heads": heads, "head_dim": width, "state": c.number("state_size", default=128), "groups": c.number("n_groups", default=8)}
    mamba |= {"conv": c.number("conv_kernel", default=4), "chunk": c.number("chunk_size", default=256)}
    fields = {"layers": layers, "hidden": hidden, "heads": heads, "head_dim": width, "vocab": c.number("vocab_size"), "mamba": mamba}
    return fields | {"pattern": "M" * layers, "position": "none", "dropout": 0.0, "tied": c.flag("tie_word_embeddings")}


def _nemotron_h(c: Config) -> Fields:
    """One mixer a layer, by a letter: M Mamba-2, * attention, - MLP, E experts (Nemotron-H report, section 2)."""
    fields: Fields = {**sizes(c), "head_dim": c.number("head_dim", "attention_head_dim", default=128), "activation": "relu2"}
    fields |= {"position": "none", "dropout": 0.0, "pattern": str(c.tree.get("hybrid_override_pattern", ""))}
    fields |= {"tied": c.flag("tie_word_embeddings"), "ffn": c.number("intermediate_size", default=0)}
    fields["mamba"] = {
        "heads": c.number("mamba_num_heads"), "head_dim": c.number("mamba_head_dim"), "state": c.number("ssm_state_size", default=128),
        "groups": c.number("n_groups", default=8), "conv": c.number("conv_kernel", default=4), "chunk": c.number("chunk_size", default=128),
    }  # fmt: skip
    if "E" in fields["pattern"]:
        fields["moe"] = {
            "experts": c.number("n_routed_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": c.number("moe_intermediate_size"),
            "shared": c.number("moe_shared_expert_intermediate_size", default=0) * c.number("n_shared_experts", default=1), "correction": True,
        }  # fmt: skip
    return fields


READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "nemotron_h": _nemotron_h, "granitemoehybrid": _granite_hybrid, "mamba2": _mamba2, "minimax": _minimax_text, "minimax_text_01": _minimax_text,
    "minimax_m1": _minimax_text, "qwen3_next": _qwen3_next, "qwen3_5_text": _qwen3_5, "qwen3_5_moe_text": _qwen3_5_moe, "kimi_linear": _kimi_linear,
}  # fmt: skip
