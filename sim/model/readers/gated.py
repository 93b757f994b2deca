"""Decoders in Llama's manner: RMSNorm, rotary positions, a gated MLP; and those that change one of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers.config import Config, sizes, windows
from sim.model.readers.families import FAMILIES
from topologies.errors import Refused

Fields = dict[str, Any]


def llama(c: Config) -> Fields:
    """Llama, Mistral, Qwen2, Qwen3, InternLM, SmolLM: what differs are biases, windows and norms of heads."""
    family = {"qwen2": "qwen2", "qwen3": "qwen3", "internlm": "internlm"}.get(c.kind, "llama")
    fields = {**FAMILIES[family], **sizes(c), "ffn": c.number("intermediate_size"), "dropout": 0.0}
    fields["activation"] = c.activation("hidden_act", gated=True)
    fields["tied"] = c.flag("tie_word_embeddings")
    biased = c.flag("attention_bias") or (family == "internlm" and c.flag("bias", True))
    fields |= {"qkv_bias": biased or family == "qwen2", "proj_bias": biased, "bias": c.flag("mlp_bias")}
    window = c.number("sliding_window", default=0)
    if window and c.flag("use_sliding_window", not c.kind.startswith("qwen")):
        fields |= {"window": window, **_behind(c, fields["layers"])}
    return fields


def _behind(c: Config, layers: int) -> Fields:
    """Windows by `layer_types`, or (Qwen) in the layers from `max_window_layers` on."""
    first = c.number("max_window_layers", default=0) if c.kind.startswith("qwen") else 0
    if not first or isinstance(c.tree.get("layer_types"), list):
        return windows(c, layers)
    if first >= layers:
        return {"window": 0}
    raise Refused(
        f"{c.where}: windows only in the layers from max_window_layers = {first} on are not supported. Set use_sliding_window to false"
    )


def _internlm2(c: Config) -> Fields:
    return llama(c) | {"qkv_bias": c.flag("bias"), "proj_bias": c.flag("bias"), "fused_qkv": True}


def _phi3(c: Config) -> Fields:
    """q, k, v in one linear, gate and up in one (Phi3Attention.qkv_proj, Phi3MLP.gate_up_proj)."""
    return llama(c) | {"fused_qkv": True, "rotary": c.fraction("partial_rotary_factor", default=1.0)}


def _gemma(c: Config) -> Fields:
    """The embedding is the head, and its rows are multiplied; heads of 256."""
    fields = llama(c) | {"tied": c.flag("tie_word_embeddings", True), "head_dim": c.number("head_dim", default=256)}
    fields["activation"] = c.activation("hidden_activation", "hidden_act", gated=True, default="gelu_pytorch_tanh")
    return fields | {"scaled": ["embedding"]}


GRANITE = ("embedding", "mixers", "logits")
"""What Granite multiplies (modeling_granite.py, modeling_granitemoe.py, modeling_granitemoehybrid.py)."""
_CAPS = (("capped_scores", "attn", 50.0), ("capped_logits", "final", 30.0))
"""Fields, keys, and what Gemma2Config takes where a file leaves them out."""


def _gemma2(c: Config) -> Fields:
    """A norm before and after each mixer; every other layer sees a window."""
    caps = {name: bool(c.tree.get(f"{key}_logit_softcapping", default)) for name, key, default in _CAPS} if c.kind == "gemma2" else {}
    return _gemma(c) | {"post_norms": True, "window": c.number("sliding_window", default=4096), "window_every": 2} | caps


_GEMMA3 = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208, "sliding_window": 4096, "sliding_window_pattern": 6}
"""Gemma3TextConfig's defaults, which the served files of 4B to 27B leave out."""


def _gemma3(c: Config) -> Fields:
    """Gemma 2 with norms of heads; every sixth layer sees all keys."""
    c = Config({**_GEMMA3, **{key: value for key, value in c.tree.items() if value is not None}}, c.where)
    every = c.number("_sliding_window_pattern", "sliding_window_pattern")
    return _gemma2(c) | {"qk_norm": True, "window": c.number("sliding_window"), **windows(c, c.number("num_hidden_layers"), every)}


def _olmo(c: Config) -> Fields:
    """LayerNorm without parameters (Groeneveld et al. 2024, section 2.1)."""
    return llama(c) | {"norm": "layernorm", "norm_bias": False, "norm_weight": False}


def _olmo2(c: Config) -> Fields:
    """Norms after each mixer only, and one over all heads of the queries and of the keys (OLMo 2 report, section 3.1)."""
    return llama(c) | {"pre_norms": False, "post_norms": True, "qk_norm": True, "qk_norm_whole": True}


def _olmo3(c: Config) -> Fields:
    """OLMo 2 with windows in three layers of four."""
    return _olmo2(c) | {"window": c.number("sliding_window", default=4096), **windows(c, c.number("num_hidden_layers"), 4)}


def _exaone4(c: Config) -> Fields:
    """Norms after each mixer and of each head; 32B: windows in three layers of four, and no rotary positions in the fourth."""
    fields = llama(c) | {"pre_norms": False, "post_norms": True, "qk_norm": True}
    window = c.number("sliding_window", default=0)
    return fields | ({"window": window, "full_unrotated": True, **windows(c, fields["layers"], 4)} if window else {})


def _glm(c: Config) -> Fields:
    """GLM-4: half of each head is rotated, biases in q, k, v alone; the files of 0414 (`glm4`) have norms after each mixer too."""
    fields = llama(c) | {"qkv_bias": c.flag("attention_bias"), "proj_bias": False, "post_norms": c.kind == "glm4"}
    return fields | {"rotary": c.fraction("partial_rotary_factor", default=0.5)}


def _stablelm(c: Config) -> Fields:
    """The 12B has a norm with a weight for each head, and one norm for both mixers."""
    norms, parallel = c.flag("qk_layernorm"), c.flag("use_parallel_residual")
    fields = llama(c) | {"norm": "layernorm", "qkv_bias": c.flag("use_qkv_bias"), "proj_bias": False, "parallel_block": parallel}
    fields |= {"qk_norm": norms, "qk_norm_whole": norms}  # as many weights and bytes as one norm over all heads
    return fields | {"rotary": c.fraction("partial_rotary_factor", "rope_pct", default=0.25)}


def _cohere(c: Config) -> Fields:
    """One LayerNorm without bias feeds attention and MLP; the embedding is the head. Command R+ has a norm with a weight for each head."""
    fields = llama(c) | {"norm": "layernorm", "norm_bias": False, "parallel_block": True, "tied": c.flag("tie_word_embeddings", True)}
    return fields | {"qk_norm": c.flag("use_qk_norm"), "qk_norm_whole": c.flag("use_qk_norm"), "scaled": ["logits"]}


def _cohere2(c: Config) -> Fields:
    """Command R7B and A: windows in three layers of four, no rotary positions in the fourth."""
    rhythm = windows(c, c.number("num_hidden_layers"), c.number("sliding_window_pattern", "_sliding_window_pattern", default=4))
    return _cohere(c) | {"window": c.number("sliding_window", default=4096), "full_unrotated": True, **rhythm}


def granite(c: Config) -> Fields:
    """Llama with factors (embedding_multiplier, residual_multiplier, logits_scaling; attention's is that of its scores anyway)."""
    return llama(c) | {"scaled": list(GRANITE)}


def _ernie(c: Config) -> Fields:
    """One switch for all biases; the embedding is the head."""
    biased = c.flag("use_bias")
    return llama(c) | {"bias": biased, "qkv_bias": biased, "proj_bias": biased, "tied": c.flag("tie_word_embeddings", True)}


def _as(kind: str) -> Callable[[Config], Fields]:
    """The language model inside another: read as `kind`."""
    return lambda c: llama(Config({**c.tree, "model_type": kind}, c.where))


def _nemotron(c: Config) -> Fields:
    fields = {**FAMILIES["nemotron"], **sizes(c), "ffn": c.number("intermediate_size"), "tied": c.flag("tie_word_embeddings")}
    return fields | {"rotary": c.fraction("partial_rotary_factor", "rope_percent", default=0.5), "bias": c.flag("mlp_bias")}


def _arcee(c: Config) -> Fields:
    """Llama with squared ReLU and no gate."""
    return llama(c) | {"activation": c.activation("hidden_act", gated=False, default="relu2")}


def _qwen(c: Config) -> Fields:
    """Qwen 1: biases in q, k, v alone; intermediate_size counts gate and up together."""
    fields = {**FAMILIES["qwen2"], **sizes(c), "ffn": c.number("intermediate_size") // 2, "dropout": 0.0, "fused_qkv": True}
    return fields | {"tied": c.flag("tie_word_embeddings"), "head_dim": c.number("kv_channels", default=0)}


def _chatglm(c: Config) -> Fields:
    """GLM-2 and -3: half of each head is rotated; keys and values in groups."""
    heads = c.number("num_attention_heads")
    grouped = c.number("multi_query_group_num", default=1) if c.flag("multi_query_attention") else heads
    biased = c.flag("add_bias_linear")
    fields = {**sizes(c), "kv_heads": grouped, "head_dim": c.number("kv_channels", default=0), "ffn": c.number("ffn_hidden_size")}
    fields |= {"vocab": c.number("padded_vocab_size", "vocab_size"), "rotary": 0.5, "bias": biased, "dropout": 0.0, "fused_qkv": True}
    return fields | {"qkv_bias": biased or c.flag("add_qkv_bias"), "norm": "rmsnorm" if c.flag("rmsnorm", True) else "layernorm"}


def _seed_oss(c: Config) -> Fields:
    """Biases in q, k, v and in the projection are switched apart."""
    return llama(c) | {"qkv_bias": c.flag("attention_bias", True), "proj_bias": c.flag("attention_out_bias")}


def _baichuan(c: Config) -> Fields:
    """7B is Llama with one linear for q, k, v; 13B has ALiBi in place of rotary positions."""
    fields = llama(c) | {"fused_qkv": True}
    return fields | {"position": "alibi"} if fields["hidden"] == 5120 else fields


READERS: dict[str, Callable[[Config], Fields]] = {
    "llama": llama, "mistral": llama, "ministral3": llama, "qwen2": llama, "qwen3": llama, "internlm": llama, "granite": granite, "aquila": llama,
    "smollm3": lambda c: llama(c) | {"tied": c.flag("tie_word_embeddings", True)}, "internlm2": _internlm2, "phi3": _phi3,
    "gemma": _gemma, "gemma2": _gemma2, "gemma3_text": _gemma3, "olmo": _olmo, "olmo2": _olmo2, "stablelm": _stablelm, "cohere": _cohere,
    "nemotron": _nemotron, "arcee": _arcee, "qwen": _qwen, "chatglm": _chatglm, "baichuan": _baichuan,
    "exaone": llama, "seed_oss": _seed_oss, "olmo3": _olmo3, "exaone4": _exaone4, "glm": _glm, "glm4": _glm, "cohere2": _cohere2,
    "ernie4_5": _ernie, "qwen2_vl_text": _as("qwen2"), "qwen2_5_vl_text": _as("qwen2"), "qwen3_vl_text": _as("qwen3"),
}  # fmt: skip
