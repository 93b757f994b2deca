"""Decoders with routed experts, or latent attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sim.model.readers.config import Config, sizes, windows
from sim.model.readers.families import FAMILIES
from sim.model.readers.gated import GRANITE, Fields, llama
from sim.model.specs.decoder import Indexer
from topologies.errors import Refused


def mixtral(c: Config) -> Fields:
    """Experts in every layer."""
    inner = c.number("intermediate_size")
    return {**llama(c), "moe": {"experts": c.number("num_local_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": inner}}


def _phimoe(c: Config) -> Fields:
    """Mixtral with LayerNorms, biases in attention and in the head."""
    fields = mixtral(c) | {"norm": "layernorm", "head_bias": c.flag("lm_head_bias")}
    return fields | {"tied": c.flag("tie_word_embeddings")}


def _olmoe(c: Config) -> Fields:
    """One norm over all heads of the queries and of the keys."""
    moe = {"experts": c.number("num_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": c.number("intermediate_size")}
    return llama(c) | {"qk_norm": True, "qk_norm_whole": True, "moe": moe}


def qwen_moe(c: Config) -> Fields:
    """Qwen2 and Qwen3 with experts, some of them with one for every token behind a gate."""
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
            f"{c.where}: mlp_only_layers = {str(named)[:60]} are not the first layers, which is not supported. Make it [0, 1, ...] or []"
        )
    return len(named)


def deepseek(c: Config) -> Fields:
    """Latent attention, and experts behind the first layers (DeepSeek-V2 and later)."""
    mla = {"kv_lora": c.number("kv_lora_rank"), "q_lora": c.number("q_lora_rank", default=0), "rope": c.number("qk_rope_head_dim")}
    mla |= {"nope": c.number("qk_nope_head_dim"), "value": c.number("v_head_dim")}
    inner = c.number("moe_intermediate_size")
    moe = {"experts": c.number("n_routed_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": inner}
    moe |= {"shared": inner * c.number("n_shared_experts", default=0), "correction": c.kind not in ("deepseek_v2", "mistral4")}
    fields = llama(c) | {"head_dim": 0, "kv_heads": 0, "mla": mla, "moe": moe}
    return fields | {"first_dense": c.number("first_k_dense_replace", default=0), "moe_every": c.number("moe_layer_freq", default=1)}


def _deepseek_sparse(c: Config) -> Fields:
    """DeepSeek-V3.2: DeepSeek-V3 with an indexer in each layer."""
    fields = deepseek(c)
    index = {"heads": c.number("index_n_heads", default=64), "dim": c.number("index_head_dim", default=128)}
    return fields | {"mla": fields["mla"] | {"index": index | {"top_k": c.number("index_topk", default=2048)}}}


def _glm_sparse(c: Config) -> Fields:
    """GLM-5: DeepSeek-V3.2's layers; GLM-5.2's take over their indexer's choice by turns (transformers' GlmMoeDsaConfig)."""
    fields = _deepseek_sparse(Config({"n_shared_experts": 1, "index_n_heads": 32, **c.tree}, c.where))
    every, first = max(1, c.number("index_topk_freq", default=1)), max(1, c.number("index_skip_topk_offset", default=2))
    index = fields["mla"]["index"] | {"every": every, "first": first}
    turns = Indexer(**index)
    meant = ["full" if turns.chooses(layer) else "shared" for layer in range(fields["layers"])]
    _as_step_says(c, "indexer_types", meant, f"index_topk_freq = {every} after the first {first}")
    dense = c.number("first_k_dense_replace", default=3)
    _as_step_says(c, "mlp_layer_types", ["dense"] * dense + ["sparse"] * (fields["layers"] - dense), f"first_k_dense_replace = {dense}")
    return fields | {"mla": fields["mla"] | {"index": index}, "first_dense": dense}


def _glm_lite(c: Config) -> Fields:
    """GLM-4.7 Flash: DeepSeek-V3's layers, of which `mlp_layer_types` names the first as dense; unsaid: one."""
    kinds = c.tree.get("mlp_layer_types") or ["dense"]
    dense = [kind == "dense" for kind in kinds]
    if not isinstance(kinds, list) or dense != sorted(dense, reverse=True):
        raise Refused(
            f"{c.where}: mlp_layer_types = {str(kinds)[:60]}: dense layers after others are not supported. Put the dense layers first"
        )
    return deepseek(Config({"n_shared_experts": 1, **c.tree}, c.where)) | {"first_dense": sum(dense)}


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


def _as_step_says(c: Config, key: str, meant: Sequence[int | str], step: str) -> None:
    """Raises `Refused` where a list of layers, which Llama4TextConfig prefers to the step between them, names others."""
    named = c.tree.get(key)
    if named and named != list(meant):
        raise Refused(
            f"{c.where}: {key} = {str(named)[:60]} are not the layers of {step}, which is not supported. Leave it out, or change the step"
        )


def _minimax_m2(c: Config) -> Fields:
    """Mixtral with one norm over all heads, and DeepSeek-V3's correction of the router."""
    width = c.number("head_dim", default=0) or c.number("hidden_size") // c.number("num_attention_heads")
    fields, norms = mixtral(c), c.flag("use_qk_norm", True)
    fields |= {"moe": fields["moe"] | {"correction": c.flag("use_routing_bias", True)}, "qk_norm": norms, "qk_norm_whole": norms}
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


def _gpt_oss(c: Config) -> Fields:
    moe = {"experts": c.number("num_local_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": c.number("intermediate_size")}
    window = c.number("sliding_window", default=128)
    fields = {**FAMILIES["gpt-oss"], **sizes(c), "head_dim": c.number("head_dim", default=64), "window": window, "dropout": 0.0}
    return fields | {"moe": moe | {"bias": True, "router_bias": True, "limited": True}, "tied": c.flag("tie_word_embeddings")}


def _dbrx(c: Config) -> Fields:
    """LayerNorms without biases; sizes of attention and experts in tables of their own."""
    attn, ffn = c.inner("attn_config"), c.inner("ffn_config")
    moe = {"experts": ffn.number("moe_num_experts"), "top_k": ffn.number("moe_top_k"), "ffn": ffn.number("ffn_hidden_size")}
    fields = {**sizes(c), "kv_heads": attn.number("kv_n_heads"), "norm": "layernorm", "norm_bias": False, "fused_qkv": True}
    return fields | {"moe": moe, "dropout": 0.0, "tied": c.flag("tie_word_embeddings")}


READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "mixtral": mixtral, "granitemoe": lambda c: mixtral(c) | {"scaled": list(GRANITE)}, "phimoe": _phimoe, "olmoe": _olmoe, "qwen2_moe": qwen_moe, "qwen3_moe": qwen_moe,
    "deepseek_v2": deepseek, "deepseek_v3": deepseek, "kimi_k2": deepseek, "deepseek_v32": _deepseek_sparse, "glm_moe_dsa": _glm_sparse, "mistral4": deepseek, "glm4_moe_lite": _glm_lite, "gpt_oss": _gpt_oss, "dbrx": _dbrx,
    "qwen3_vl_moe_text": qwen_moe, "glm4_moe": _glm_moe, "llama4_text": _llama4, "minimax_m2": _minimax_m2, "ernie4_5_moe": _ernie_moe,
}  # fmt: skip
