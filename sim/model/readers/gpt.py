"""Decoders in GPT's manner: LayerNorm with biases, an MLP without a gate; and those that change one of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers.config import Config, sizes
from sim.model.readers.families import FAMILIES
from topologies.errors import Refused

Fields = dict[str, Any]


def _gpt2(c: Config) -> Fields:
    fields = {**FAMILIES["gpt"], **sizes(c), "ffn": c.number("n_inner", default=0), "positions": c.number("n_positions", "n_ctx")}
    return fields | {
        "activation": c.activation("activation_function", gated=False, default="gelu_new"),
        "dropout": c.fraction("resid_pdrop", default=0.1),
        "attention_dropout": c.fraction("attn_pdrop", default=0.1),
        "tied": c.flag("tie_word_embeddings", True),
    }


def _bigcode(c: Config) -> Fields:
    """GPT-2 with one head of keys and values (StarCoder)."""
    return _gpt2(c) | {"kv_heads": 1 if c.flag("multi_query", True) else 0}


def _gpt_neo(c: Config) -> Fields:
    """No biases in q, k, v; local layers (256 keys) between global ones."""
    fields = {**FAMILIES["gpt"], **sizes(c), "ffn": c.number("intermediate_size", default=0), "qkv_bias": False, "fused_qkv": False}
    kinds = [kind for some, count in c.tree.get("attention_types") or [[["global", "local"], 1]] for kind in some * count]
    if "local" in kinds:
        fields |= {"window": c.number("window_size", default=256), "window_every": 1 if "global" not in kinds else 2}
    fields |= {"positions": c.number("max_position_embeddings"), "dropout": c.fraction("resid_dropout", default=0.0)}
    return fields | {"activation": c.activation("activation_function", gated=False, default="gelu_new")}


def _gptj(c: Config) -> Fields:
    """One norm feeds attention (no biases) and MLP (with); the head has a bias and a weight of its own."""
    fields = {**FAMILIES["gpt"], **sizes(c), "ffn": c.number("n_inner", default=0), "qkv_bias": False, "proj_bias": False}
    width = fields["hidden"] // fields["heads"]
    fields |= {"position": "rope", "rotary": c.number("rotary_dim", default=64) / width, "parallel_block": True, "head_bias": True}
    return fields | {"tied": False, "dropout": c.fraction("resid_pdrop", default=0.0), "fused_qkv": c.kind == "codegen"}


def _neox(c: Config) -> Fields:
    """Attention and MLP side by side, each with its own norm, unless use_parallel_residual is false."""
    fields = {**FAMILIES["gpt"], **sizes(c), "position": "rope", "tied": c.flag("tie_word_embeddings"), "dropout": 0.0}
    parallel = c.flag("use_parallel_residual", True)
    return fields | {
        "ffn": c.number("intermediate_size"),
        "rotary": c.fraction("rotary_pct", "partial_rotary_factor", default=0.25),
        "activation": c.activation("hidden_act", gated=False, default="gelu"),
        "parallel_block": parallel,
        "two_norms": parallel,
    }


def _opt(c: Config) -> Fields:
    """Positions start at 2; biases everywhere, ReLU."""
    if c.number("word_embed_proj_dim", default=c.number("hidden_size")) != c.number("hidden_size") or not c.flag(
        "do_layer_norm_before", True
    ):
        raise Refused(
            f"{c.where}: OPT with projected embeddings or norms after the mixers (opt-350m) is not supported; the other sizes are"
        )
    fields = {**FAMILIES["gpt"], **sizes(c), "ffn": c.number("ffn_dim"), "positions": c.number("max_position_embeddings") + 2}
    fields |= {"activation": c.activation("activation_function", gated=False, default="relu"), "tied": c.flag("tie_word_embeddings", True)}
    fields |= {"dropout": c.fraction("dropout", default=0.1), "attention_dropout": c.fraction("attention_dropout", default=0.0)}
    return fields | {"fused_qkv": False}


def _phi(c: Config) -> Fields:
    """Phi-1 to -2: one norm feeds attention and MLP, biases everywhere, in the head too."""
    if c.flag("qk_layernorm"):
        raise Refused(f"{c.where}: qk_layernorm of Phi is not supported; set it to false")
    fields = {**FAMILIES["gpt"], **sizes(c), "ffn": c.number("intermediate_size"), "position": "rope", "parallel_block": True}
    fields |= {"rotary": c.fraction("partial_rotary_factor", default=0.5), "head_bias": True, "tied": c.flag("tie_word_embeddings")}
    return fields | {"activation": c.activation("hidden_act", gated=False, default="gelu_new"), "dropout": 0.0, "fused_qkv": False}


def _starcoder2(c: Config) -> Fields:
    fields = {**FAMILIES["gpt"], **sizes(c), "ffn": c.number("intermediate_size"), "position": "rope", "bias": c.flag("use_bias", True)}
    fields |= {"tied": c.flag("tie_word_embeddings", True), "window": c.number("sliding_window", default=0), "fused_qkv": False}
    fields |= {"activation": c.activation("hidden_act", gated=False, default="gelu_pytorch_tanh")}
    return fields | {"dropout": c.fraction("residual_dropout", default=0.0)}


def _bloom(c: Config) -> Fields:
    return {
        **FAMILIES["bloom"],
        **sizes(c),
        "dropout": c.fraction("hidden_dropout", default=0.0),
        "tied": c.flag("tie_word_embeddings", True),
    }


def _mpt(c: Config) -> Fields:
    """ALiBi where attn_config says so, else learned positions as long as max_seq_len."""
    biased, attention = not c.flag("no_bias", True), c.inner("attn_config")
    fields = {**FAMILIES["mpt"], **sizes(c), "bias": biased, "norm_bias": biased, "tied": c.flag("tie_word_embeddings", True)}
    fields["kv_heads"] = attention.number("kv_n_heads", default=0)
    if attention.flag("alibi"):
        fields["position"] = "alibi"
    ratio = c.number("expansion_ratio", default=4)
    return fields | {"ffn": ratio * fields["hidden"], "positions": c.number("max_seq_len", default=0)}


def _falcon(c: Config) -> Fields:
    """Falcon-7B: one norm for both mixers, one key-value head. New decoders (40B, 180B): a norm for each, grouped heads."""
    new = c.flag("new_decoder_architecture")
    heads = c.number("num_attention_heads", "n_head")
    kv = c.number("num_kv_heads", "n_head_kv", default=heads) if new else (1 if c.flag("multi_query", True) else 0)
    parallel = c.flag("parallel_attn", True)
    fields = {**FAMILIES["falcon"], **sizes(c), "kv_heads": kv, "parallel_block": parallel or new, "bias": c.flag("bias")}
    fields |= {"two_norms": new and c.number("num_ln_in_parallel_attn", default=2) == 2, "tied": c.flag("tie_word_embeddings", True)}
    return fields | ({"position": "alibi"} if c.flag("alibi") else {})


READERS: dict[str, Callable[[Config], Fields]] = {
    "gpt2": _gpt2, "gpt_bigcode": _bigcode, "gpt_neo": _gpt_neo, "gptj": _gptj, "codegen": _gptj, "gpt_neox": _neox, "opt": _opt,
    "phi": _phi, "starcoder2": _starcoder2, "bloom": _bloom, "mpt": _mpt, "falcon": _falcon, "RefinedWebModel": _falcon,
}  # fmt: skip
