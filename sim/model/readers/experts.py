"""Decoders with routed experts, latent attention, or layers that follow a pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.config import Config, sizes
from sim.model.families import FAMILIES
from sim.model.readers.gated import Fields, llama


def _mixtral(c: Config) -> Fields:
    inner = c.number("intermediate_size")
    return {**llama(c), "moe": {"experts": c.number("num_local_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": inner}}


def _phimoe(c: Config) -> Fields:
    """Mixtral with LayerNorms, biases in attention and in the head."""
    fields = _mixtral(c) | {"norm": "layernorm", "head_bias": c.flag("lm_head_bias")}
    return fields | {"tied": c.flag("tie_word_embeddings")}


def _olmoe(c: Config) -> Fields:
    """One norm over all heads of the queries and of the keys."""
    moe = {"experts": c.number("num_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": c.number("intermediate_size")}
    return llama(c) | {"qk_norm": True, "qk_norm_whole": True, "moe": moe}


def _qwen_moe(c: Config) -> Fields:
    moe = {"experts": c.number("num_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": c.number("moe_intermediate_size")}
    shared = c.number("shared_expert_intermediate_size", default=0)
    qwen3 = c.kind == "qwen3_moe"
    fields = llama(c) | {"qk_norm": qwen3, "qkv_bias": not qwen3, "moe_every": c.number("decoder_sparse_step", default=1)}
    return fields | {"moe": moe | {"shared": shared, "shared_gate": shared > 0}}


def _deepseek(c: Config) -> Fields:
    mla = {"kv_lora": c.number("kv_lora_rank"), "q_lora": c.number("q_lora_rank", default=0), "rope": c.number("qk_rope_head_dim")}
    mla |= {"nope": c.number("qk_nope_head_dim"), "value": c.number("v_head_dim")}
    inner = c.number("moe_intermediate_size")
    moe = {"experts": c.number("n_routed_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": inner}
    moe |= {"shared": inner * c.number("n_shared_experts", default=0), "correction": c.kind != "deepseek_v2"}
    fields = llama(c) | {"head_dim": 0, "kv_heads": 0, "mla": mla, "moe": moe}
    return fields | {"first_dense": c.number("first_k_dense_replace", default=0), "moe_every": c.number("moe_layer_freq", default=1)}


def _gpt_oss(c: Config) -> Fields:
    moe = {"experts": c.number("num_local_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": c.number("intermediate_size")}
    window = c.number("sliding_window", default=128)
    fields = {**FAMILIES["gpt-oss"], **sizes(c), "window": window, "dropout": 0.0, "tied": c.flag("tie_word_embeddings")}
    return fields | {"moe": moe | {"bias": True, "router_bias": True}}


def _dbrx(c: Config) -> Fields:
    """LayerNorms without biases; sizes of attention and experts in tables of their own."""
    attn, ffn = c.inner("attn_config"), c.inner("ffn_config")
    moe = {"experts": ffn.number("moe_num_experts"), "top_k": ffn.number("moe_top_k"), "ffn": ffn.number("ffn_hidden_size")}
    fields = {**sizes(c), "kv_heads": attn.number("kv_n_heads"), "norm": "layernorm", "norm_bias": False, "fused_qkv": True}
    return fields | {"moe": moe, "dropout": 0.0, "tied": c.flag("tie_word_embeddings")}


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
    "mixtral": _mixtral, "granitemoe": _mixtral, "phimoe": _phimoe, "olmoe": _olmoe, "qwen2_moe": _qwen_moe, "qwen3_moe": _qwen_moe,
    "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek, "gpt_oss": _gpt_oss, "dbrx": _dbrx, "nemotron_h": _nemotron_h,
}  # fmt: skip
