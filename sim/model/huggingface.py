"""Hugging Face `config.json` as plain JSON: no transformers import, so what its classes default to is written here.

Each `model_type` has a reader from the config's keys to a spec. A missing field is named; an unknown type names the closest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.families import FAMILIES
from sim.model.spec import ModelSpec
from topologies.errors import BadInput, Refused, UnknownName

_ACTIVATIONS = {
    "silu": "swiglu", "swiglu": "swiglu", "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "gelu", "relu": "relu", "relu2": "relu2", "tanh": "tanh",
}  # fmt: skip


class Config:
    """A config's keys, with errors that name the file and the key."""

    def __init__(self, tree: dict[str, Any], where: str) -> None:
        self.tree, self.where = tree, where

    def number(self, *keys: str, default: int | None = None) -> int:
        for key in keys:
            value = self.tree.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadInput(f"{self.where}: {key} = {value!r} must be a whole number")
            return value
        if default is None:
            raise BadInput(
                f"{self.where}: '{keys[0]}' is missing for model_type '{self.tree.get('model_type')}'. Add it, e.g. \"{keys[0]}\": 32"
            )
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.tree.get(key, default)
        return default if value is None else bool(value)

    def activation(self, *keys: str, gated: bool, default: str = "silu") -> str:
        name = next((self.tree[key] for key in keys if self.tree.get(key)), default)
        if name not in _ACTIVATIONS:
            raise UnknownName("activation", str(name), _ACTIVATIONS, self.where)
        plain = _ACTIVATIONS[name]
        if gated:
            return {"swiglu": "swiglu", "gelu": "geglu", "relu": "reglu"}.get(plain, "swiglu")
        return "silu" if plain == "swiglu" else plain


def _sizes(c: Config) -> dict[str, Any]:
    heads = c.number("num_attention_heads", "n_head", "n_heads")
    return {
        "layers": c.number("num_hidden_layers", "n_layer", "n_layers"),
        "hidden": c.number("hidden_size", "n_embd", "d_model"),
        "heads": heads,
        "kv_heads": c.number("num_key_value_heads", default=heads),
        "head_dim": c.number("head_dim", default=0),
        "vocab": c.number("vocab_size"),
    }


def _llama(c: Config) -> dict[str, Any]:
    family = {"qwen2": "qwen2", "qwen3": "qwen3", "internlm": "internlm"}.get(c.tree["model_type"], "llama")
    fields = {**FAMILIES[family], **_sizes(c), "ffn": c.number("intermediate_size"), "dropout": 0.0}
    fields["activation"] = c.activation("hidden_act", gated=True)
    fields["tied"] = c.flag("tie_word_embeddings")
    biased = c.flag("attention_bias") or (family == "internlm" and c.flag("bias", True))
    fields |= {"qkv_bias": biased or family == "qwen2", "proj_bias": biased, "bias": c.flag("mlp_bias")}
    window = c.number("sliding_window", default=0)
    if window and c.flag("use_sliding_window", family != "qwen2") and family != "qwen3":
        fields["window"] = window
    return fields


def _mixtral(c: Config) -> dict[str, Any]:
    inner = c.number("intermediate_size")
    return {**_llama(c), "moe": {"experts": c.number("num_local_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": inner}}


def _qwen_moe(c: Config) -> dict[str, Any]:
    moe = {"experts": c.number("num_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": c.number("moe_intermediate_size")}
    shared = c.number("shared_expert_intermediate_size", default=0)
    qwen3 = c.tree["model_type"] == "qwen3_moe"
    fields = _llama(c) | {"qk_norm": qwen3, "qkv_bias": not qwen3, "moe_every": c.number("decoder_sparse_step", default=1)}
    return fields | {"moe": moe | {"shared": shared, "shared_gate": shared > 0}}


def _deepseek(c: Config) -> dict[str, Any]:
    mla = {"kv_lora": c.number("kv_lora_rank"), "q_lora": c.number("q_lora_rank", default=0), "rope": c.number("qk_rope_head_dim")}
    mla |= {"nope": c.number("qk_nope_head_dim"), "value": c.number("v_head_dim")}
    inner = c.number("moe_intermediate_size")
    moe = {"experts": c.number("n_routed_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": inner}
    moe |= {"shared": inner * c.number("n_shared_experts", default=0), "correction": c.tree["model_type"] != "deepseek_v2"}
    fields = _llama(c) | {"head_dim": 0, "kv_heads": 0, "mla": mla, "moe": moe}
    return fields | {"first_dense": c.number("first_k_dense_replace", default=0), "moe_every": c.number("moe_layer_freq", default=1)}


def _gpt_oss(c: Config) -> dict[str, Any]:
    moe = {"experts": c.number("num_local_experts"), "top_k": c.number("num_experts_per_tok"), "ffn": c.number("intermediate_size")}
    window = c.number("sliding_window", default=128)
    fields = {**FAMILIES["gpt-oss"], **_sizes(c), "window": window, "dropout": 0.0, "tied": c.flag("tie_word_embeddings")}
    return fields | {"moe": moe | {"bias": True, "router_bias": True}}


def _gpt2(c: Config) -> dict[str, Any]:
    fields = {**FAMILIES["gpt"], **_sizes(c), "ffn": c.number("n_inner", default=0), "positions": c.number("n_positions", "n_ctx")}
    return fields | {
        "activation": c.activation("activation_function", gated=False, default="gelu_new"),
        "dropout": float(c.tree.get("resid_pdrop", 0.1)),
    }


def _bloom(c: Config) -> dict[str, Any]:
    return {**FAMILIES["bloom"], **_sizes(c), "dropout": float(c.tree.get("hidden_dropout", 0.0))}


def _mpt(c: Config) -> dict[str, Any]:
    biased = not c.flag("no_bias")
    attention = c.tree.get("attn_config") or {}
    fields = {**FAMILIES["mpt"], **_sizes(c), "bias": biased, "norm_bias": biased}
    if attention.get("alibi"):
        fields["position"] = "alibi"
    return fields | {"ffn": c.number("expansion_ratio", default=4) * fields["hidden"], "positions": c.number("max_seq_len", default=0)}


def _falcon(c: Config) -> dict[str, Any]:
    if c.flag("new_decoder_architecture"):
        raise Refused(f"{c.where}: Falcon's new decoder (two norms side by side) is not described; falcon-7b's is")
    kv = 1 if c.flag("multi_query", True) else 0
    return {**FAMILIES["falcon"], **_sizes(c), "kv_heads": kv, "parallel_block": c.flag("parallel_attn", True), "bias": c.flag("bias")}


def _neox(c: Config) -> dict[str, Any]:
    fields = {**FAMILIES["gpt"], **_sizes(c), "position": "rope", "tied": c.flag("tie_word_embeddings"), "dropout": 0.0}
    rotary = float(c.tree.get("rotary_pct", 0.25))
    return fields | {
        "ffn": c.number("intermediate_size"),
        "rotary": rotary,
        "activation": c.activation("hidden_act", gated=False, default="gelu"),
    }


def _nemotron(c: Config) -> dict[str, Any]:
    fields = {**FAMILIES["nemotron"], **_sizes(c), "ffn": c.number("intermediate_size"), "tied": c.flag("tie_word_embeddings")}
    return fields | {"rotary": float(c.tree.get("partial_rotary_factor", 0.5)), "bias": c.flag("mlp_bias")}


READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama, "mistral": _llama, "qwen2": _llama, "qwen3": _llama, "internlm": _llama, "mixtral": _mixtral,
    "qwen2_moe": _qwen_moe, "qwen3_moe": _qwen_moe, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss, "gpt2": _gpt2, "bloom": _bloom, "mpt": _mpt, "falcon": _falcon, "gpt_neox": _neox, "nemotron": _nemotron,
}  # fmt: skip
"""Reader by `model_type`."""


def from_config(tree: dict[str, Any], where: str) -> ModelSpec:
    """A spec from a config. Raises `UnknownName` for a type, `BadInput` for a missing or misshapen field."""
    from sim.model.load import spec_of

    kind = tree.get("model_type")
    if not isinstance(kind, str):
        raise BadInput(f"{where}: 'model_type' is missing. It is what names the architecture; known: {', '.join(sorted(READERS))}")
    if kind not in READERS:
        raise UnknownName("model_type", kind, READERS, where)
    name = str(tree.get("_name_or_path") or kind)
    return spec_of(READERS[kind](Config(tree, where)), where, name)
