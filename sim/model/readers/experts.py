"""Decoders with routed experts, latent attention, or layers that follow a pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers.config import Config, sizes, windows
from sim.model.readers.families import FAMILIES
from sim.model.readers.gated import Fields, llama
from topologies.errors import Refused


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
    qwen2 = c.kind == "qwen2_moe"
    biased = c.flag("qkv_bias", True) if qwen2 else c.flag("attention_bias")
    fields = llama(c) | {"qk_norm": not qwen2, "qkv_bias": biased, "moe_every": c.number("decoder_sparse_step", default=1)}
    return fields | {"moe": moe | {"shared": shared, "shared_gate": shared > 0}, "first_dense": _dense(c)}


def _dense(c: Config) -> int:
    """How many first layers `mlp_only_layers` keeps dense. Raises `Refused` where it names others."""
    named = c.tree.get("mlp_only_layers") or []
    if not isinstance(named, list) or sorted(named) != list(range(len(named))):
        raise Refused(
            f"{c.where}: mlp_only_layers = {str(named)[:60]} are not the first layers, which is not described. Make it [0, 1, ...] or []"
        )
    return len(named)


def _qwen3_next(c: Config) -> Fields:
    """The gated delta rule in three layers of four, attention with an output gate in the fourth; experts in all."""
    layers, every = c.number("num_hidden_layers"), c.number("full_attention_interval", default=4)
    kinds = c.tree.get("layer_types") or ["full_attention" if i % every == every - 1 else "linear_attention" for i in range(layers)]
    delta = {
        "key_heads": c.number("linear_num_key_heads", default=16), "value_heads": c.number("linear_num_value_heads", default=32),
        "key_dim": c.number("linear_key_head_dim", default=128), "value_dim": c.number("linear_value_head_dim", default=128),
        "conv": c.number("linear_conv_kernel_dim", default=4),
    }  # fmt: skip
    fields = _qwen_moe(c) | {"mixers": "".join("*" if kind == "full_attention" else "D" for kind in kinds), "delta": delta}
    return fields | {"gated_attention": True, "rotary": c.fraction("partial_rotary_factor", default=0.25)}


def _deepseek(c: Config) -> Fields:
    mla = {"kv_lora": c.number("kv_lora_rank"), "q_lora": c.number("q_lora_rank", default=0), "rope": c.number("qk_rope_head_dim")}
    mla |= {"nope": c.number("qk_nope_head_dim"), "value": c.number("v_head_dim")}
    inner = c.number("moe_intermediate_size")
    moe = {"experts": c.number("n_routed_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": inner}
    moe |= {"shared": inner * c.number("n_shared_experts", default=0), "correction": c.kind != "deepseek_v2"}
    fields = llama(c) | {"head_dim": 0, "kv_heads": 0, "mla": mla, "moe": moe}
    return fields | {"first_dense": c.number("first_k_dense_replace", default=0), "moe_every": c.number("moe_layer_freq", default=1)}


def _glm_moe(c: Config) -> Fields:
    """GLM-4.5: grouped queries and partly rotated heads before DeepSeek-V3's experts."""
    inner = c.number("moe_intermediate_size")
    moe = {"experts": c.number("n_routed_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": inner, "correction": True}
    fields = llama(c) | {"moe": moe | {"shared": inner * c.number("n_shared_experts", default=0)}, "qk_norm": c.flag("use_qk_norm")}
    fields |= {"qkv_bias": c.flag("attention_bias"), "proj_bias": False, "first_dense": c.number("first_k_dense_replace", default=0)}
    return fields | {"rotary": c.fraction("partial_rotary_factor", default=0.5)}


def _llama4(c: Config) -> Fields:
    """Chunks of 8192 tokens in three layers of four, no positions in the fourth; a shared expert beside the one chosen; dense layers between
    (Maverick). `intermediate_size` is the experts', `intermediate_size_mlp` the dense layers'."""
    inner = c.number("intermediate_size")
    moe = {"experts": c.number("num_local_experts"), "top_k": c.number("num_experts_per_tok", default=1), "ffn": inner, "shared": inner}
    fields = llama(c) | {"ffn": c.number("intermediate_size_mlp", default=inner), "moe": moe}
    fields |= {
        "moe_every": c.number("interleave_moe_layer_step", default=1),
        "qk_norm": c.flag("use_qk_norm", True),
        "qk_norm_weight": False,
    }
    fields |= {"window": c.number("attention_chunk_size", default=8192), "chunked": True, "full_unrotated": True}
    layers, experts, full = fields["layers"], max(1, fields["moe_every"]), max(1, c.number("no_rope_layer_interval", default=4))
    _as_step_says(c, "moe_layers", list(range(experts - 1, layers, experts)), f"interleave_moe_layer_step = {experts}")
    _as_step_says(c, "no_rope_layers", [int((layer + 1) % full != 0) for layer in range(layers)], f"no_rope_layer_interval = {full}")
    return fields | windows(c, layers, full)


def _as_step_says(c: Config, key: str, meant: list[int], step: str) -> None:
    """Raises `Refused` where a list of layers, which Llama4TextConfig prefers to the step between them, names others."""
    named = c.tree.get(key)
    if named and named != meant:
        raise Refused(
            f"{c.where}: {key} = {str(named)[:60]} are not the layers of {step}, which is not described. Leave it out, or change the step"
        )


def _minimax_m2(c: Config) -> Fields:
    """Mixtral with one norm over all heads, and DeepSeek-V3's correction of the router."""
    width = c.number("head_dim", default=0) or c.number("hidden_size") // c.number("num_attention_heads")
    fields, norms = _mixtral(c), c.flag("use_qk_norm", True)
    fields |= {"moe": fields["moe"] | {"correction": c.flag("use_routing_bias", True)}, "qk_norm": norms, "qk_norm_whole": norms}
    return fields | {"rotary": c.number("rotary_dim", default=width) / width}


def _minimax_text(c: Config) -> Fields:
    """Mixtral with lightning attention in most layers. Which see all keys is in `layer_types` (transformers' conversion, whose default is every
    second from the first on) or `attn_type_list` (as released, 1 for these). The factors of its residuals are left out."""
    layers, heads = c.number("num_hidden_layers"), c.number("num_attention_heads")
    width = c.number("head_dim", default=0) or c.number("hidden_size") // heads
    kinds = c.tree.get("layer_types") or c.tree.get("attn_type_list") or [1, 0] * (layers // 2) + [1] * (layers % 2)
    fields = _mixtral(c) | {"mixers": "".join("*" if kind in (1, "full_attention") else "L" for kind in kinds), "window": 0}
    fields["moe"] |= {"shared": c.number("shared_intermediate_size", default=0)}
    fields |= {"lightning": {"heads": heads, "head_dim": width, "chunk": c.number("block_size", default=256)}}
    return fields | {"rotary": c.number("rotary_dim", default=width) / width}


def _ernie_moe(c: Config) -> Fields:
    """Experts from a layer on, some of them for every token."""
    inner, biased = c.number("moe_intermediate_size"), c.flag("use_bias")
    moe = {"experts": c.number("moe_num_experts"), "top_k": c.number("moe_k", default=2), "ffn": inner, "correction": True}
    fields = llama(c) | {"moe": moe | {"shared": inner * c.number("moe_num_shared_experts", default=0)}, "bias": biased, "qkv_bias": biased}
    fields |= {
        "proj_bias": biased,
        "first_dense": c.number("moe_layer_start_index", default=1),
        "tied": c.flag("tie_word_embeddings", True),
    }
    return fields | {"moe_every": c.number("moe_layer_interval", default=1)}


def _granite_hybrid(c: Config) -> Fields:
    """Granite 4: Mamba-2 in most layers, attention in some; experts and one MLP for every token, or that MLP alone."""
    shared, experts = c.number("shared_intermediate_size", default=1024), c.number("num_local_experts", default=0)
    kinds = c.tree.get("layer_types") or c.tree.get("layers_block_type") or ["mamba"] * c.number("num_hidden_layers")
    fields = llama(c) | {"mixers": "".join("*" if kind == "attention" else "M" for kind in kinds), "ffn": shared, "window": 0}
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


def _gpt_oss(c: Config) -> Fields:
    moe = {"experts": c.number("num_local_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": c.number("intermediate_size")}
    window = c.number("sliding_window", default=128)
    fields = {**FAMILIES["gpt-oss"], **sizes(c), "window": window, "dropout": 0.0, "tied": c.flag("tie_word_embeddings")}
    return fields | {"moe": moe | {"bias": True, "router_bias": True, "limited": True}}


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
    "qwen3_next": _qwen3_next, "qwen3_vl_moe_text": _qwen_moe, "glm4_moe": _glm_moe, "llama4_text": _llama4, "minimax_m2": _minimax_m2,
    "ernie4_5_moe": _ernie_moe, "granitemoehybrid": _granite_hybrid, "mamba2": _mamba2, "minimax": _minimax_text, "minimax_text_01": _minimax_text,
    "minimax_m1": _minimax_text,
}  # fmt: skip
