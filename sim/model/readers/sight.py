"""Configs of vision-language models: a tower's, a projector's, and a language model's, which the reader of its own type reads.

A size of pictures that the file leaves open (Qwen's take any) is `Tower.image`'s default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers import experts, gated, gpt, hybrid
from sim.model.readers.config import Config
from topologies.errors import Refused

Fields = dict[str, Any]
_TEXT = {**gated.READERS, **experts.READERS, **hybrid.READERS, **gpt.READERS}


def _decoder(c: Config, unsaid: str) -> Fields:
    """The language model: of `text_config`, or (Qwen2-VL's first files) the file's own fields; `unsaid`: its type where the file has none."""
    nested = c.tree.get("text_config")
    tree = {**nested} if isinstance(nested, dict) else {key: value for key, value in c.tree.items() if key != "model_type"}
    tree.setdefault("model_type", unsaid)
    for key in ("tie_word_embeddings", "vocab_size"):
        if c.tree.get(key) is not None:
            tree.setdefault(key, c.tree[key])
    kind = str(tree["model_type"])
    if kind == "mllama_text_model":
        return {"family": "decoder", **_mllama_text(Config(tree, f"{c.where}: text_config"))}
    if kind not in _TEXT:
        raise Refused(f"{c.where}: the language model's model_type '{kind}' is not read. Read are {', '.join(sorted(_TEXT))}")
    return {"family": "decoder", **_TEXT[kind](Config(tree, f"{c.where}: text_config"))}


def _side(c: Config, key: str, unsaid: int) -> int:
    """Pixels of a side, which some files give twice. Raises `Refused` for what is no square."""
    value = c.tree.get(key)
    if not isinstance(value, list):
        return c.number(key, default=unsaid)
    if len(set(map(str, value))) != 1 or not isinstance(value[0], int):
        raise Refused(f"{c.where}: {key} = {value!r}: pictures and patches that are no squares are not supported. Give one number")
    return value[0]


def _sizes(c: Config, layers: int, hidden: int, heads: int, ffn: int, image: int, patch: int) -> Fields:
    """Of a tower, with what its class defaults to."""
    return {
        "layers": c.number("num_hidden_layers", default=layers),
        "hidden": c.number("hidden_size", default=hidden),
        "heads": c.number("num_attention_heads", default=heads),
        "ffn": c.number("intermediate_size", default=ffn),
        "image": _side(c, "image_size", image),
        "patch": _side(c, "patch_size", patch),
        "fused_qkv": False,
    }


def _clip(c: Config) -> Fields:
    fields = _sizes(c, 12, 768, 12, 3072, 224, 32) | {"class_token": True, "first_norm": True, "last_norm": "class"}
    return fields | {"activation": c.activation("hidden_act", gated=False, default="quick_gelu")}


def _siglip(c: Config) -> Fields:
    """Without the head, which no decoder reads."""
    fields = _sizes(c, 12, 768, 12, 3072, 224, 16) | {"patch_bias": True, "last_norm": "patches"}
    return fields | {"activation": c.activation("hidden_act", gated=False, default="gelu_pytorch_tanh")}


def _pixtral(c: Config) -> Fields:
    fields = _sizes(c, 24, 1024, 16, 4096, 1024, 16) | {"norm": "rmsnorm", "bias": False, "position": "rope", "first_norm": True}
    return fields | {"activation": c.activation("hidden_act", gated=True, default="gelu")}


def _intern(c: Config) -> Fields:
    """InternViT of 300 million parameters; that of 6 billion has norms of heads."""
    if c.flag("use_qk_norm") or not c.flag("attention_bias") or not c.flag("use_mean_pooling", True):
        raise Refused(
            f"{c.where}: a tower with use_qk_norm, without attention_bias or without use_mean_pooling is not supported "
            "(InternViT-300M has no norms of heads, biases, and the mean)"
        )
    norm = "rmsnorm" if c.tree.get("norm_type") == "rms_norm" else "layernorm"
    fields = _sizes(c, 24, 1024, 16, 4096, 448, 14) | {"patch_bias": True, "class_token": True, "layer_scale": True, "norm": norm}
    return fields | {"activation": c.activation("hidden_act", gated=False, default="gelu")}


_TOWERS: dict[str, Callable[[Config], Fields]] = {
    "clip_vision_model": _clip, "siglip_vision_model": _siglip, "pixtral": _pixtral, "internvl_vision": _intern,
}  # fmt: skip


def _tower(c: Config, unsaid: str) -> Fields:
    vision = c.inner("vision_config")
    kind = str((c.tree.get("vision_config") or {}).get("model_type") or unsaid)
    if kind not in _TOWERS:
        raise Refused(f"{c.where}: the vision tower's model_type '{kind}' is not supported. Allowed: {', '.join(sorted(_TOWERS))}")
    return _TOWERS[kind](vision)


def _llava(c: Config) -> Fields:
    """CLIP, whose last layer but one is read without the class token, or Pixtral's tower, read whole at its end; trained with the tower frozen
    (Liu et al. 2023)."""
    tower, layer = _tower(c, "clip_vision_model"), c.number("vision_feature_layer", default=-2)
    if layer >= 0 or (tower.get("class_token") and c.tree.get("vision_feature_select_strategy", "default") != "default"):
        raise Refused(f"{c.where}: vision_feature_layer = {layer} from the front, or a class token among the patches, is not supported")
    return {
        "family": "vlm",
        "tower": tower | {"unread": -1 - layer},
        "projector": {"bias": c.flag("multimodal_projector_bias", True)},
        "decoder": _decoder(c, "llama"),
        "frozen": ("tower",),
    }


def _paligemma(c: Config) -> Fields:
    return {"family": "vlm", "tower": _tower(c, "siglip_vision_model"), "projector": {"layers": 1}, "decoder": _decoder(c, "gemma")}


def _gemma3(c: Config) -> Fields:
    tower = _tower(c, "siglip_vision_model")
    side = int(c.number("mm_tokens_per_image", default=256) ** 0.5)
    projector = {"pool": tower["image"] // tower["patch"] // side, "norm": "rmsnorm", "layers": 1, "bias": False}
    return {"family": "vlm", "tower": tower, "projector": projector, "decoder": _decoder(c, "gemma3_text")}


def _internvl(c: Config) -> Fields:
    projector = {"merge": round(1 / c.fraction("downsample_ratio", default=0.5)), "norm": "layernorm", "joined_norm": True}
    return {"family": "vlm", "tower": _tower(c, "internvl_vision"), "projector": projector, "decoder": _decoder(c, "qwen2")}


def _qwen2(c: Config) -> Fields:
    """The tower's `hidden_size` is the language model's."""
    v = c.inner("vision_config")
    hidden = v.number("embed_dim", default=1280)
    tower = _flat(v, hidden) | {
        "ffn": round(v.fraction("mlp_ratio", default=4.0) * hidden),
        "activation": v.activation("hidden_act", gated=False, default="quick_gelu"),
    }
    return _merged(c, v, tower, "layernorm")


def _qwen2_5(c: Config) -> Fields:
    """Whole pictures in every eighth layer, windows of `window_size` pixels a side in the others."""
    v = c.inner("vision_config")
    layers, full = v.number("depth", default=32), v.tree.get("fullatt_block_indexes") or [7, 15, 23, 31]
    every = full[0] + 1
    if full != list(range(every - 1, layers, every)):
        raise Refused(f"{v.where}: fullatt_block_indexes = {full} is not every n-th layer, which alone is supported")
    tower = _flat(v, v.number("hidden_size", default=1280)) | {
        "ffn": v.number("intermediate_size", default=3420),
        "activation": v.activation("hidden_act", gated=True),
        "norm": "rmsnorm",
        "window": (v.number("window_size", default=112) // v.number("patch_size", default=14)) ** 2,
        "full_every": every,
    }
    return _merged(c, v, tower, "rmsnorm")


def _qwen3(c: Config) -> Fields:
    """Three of the tower's layers are read by mergers of their own, and positions come of a table, too."""
    v = c.inner("vision_config")
    tower = _flat(v, v.number("hidden_size", default=1152), 27, 16) | {
        "ffn": v.number("intermediate_size", default=4304),
        "activation": v.activation("hidden_act", gated=False, default="gelu_pytorch_tanh"),
        "patch_bias": True,
        "grid": int(v.number("num_position_embeddings", default=2304) ** 0.5),
    }
    fields = _merged(c, v, tower, "layernorm")
    return fields | {"projector": fields["projector"] | {"deepstack": v.tree.get("deepstack_visual_indexes", [8, 16, 24])}}


def _qwen3_5(c: Config) -> Fields:
    """Qwen3-VL's tower, of which the last layer alone is read."""
    return _qwen3(Config({**c.tree, "vision_config": {**c.inner("vision_config").tree, "deepstack_visual_indexes": []}}, c.where))


def _mllama(c: Config) -> Fields:
    """Llama 3.2 Vision: a tower of two stages over all tiles of a picture, and layers of the decoder that read it."""
    v, decoder = c.inner("vision_config"), _decoder(c, "mllama_text_model")
    local, second, image = v.number("num_hidden_layers", default=32), v.number("num_global_layers", default=8), _side(v, "image_size", 448)
    ratios = v.tree.get("supported_aspect_ratios") or [0] * 8
    tower = {
        "layers": local + second, "gated_layers": second, "hidden": v.number("hidden_size", default=1280),
        "heads": v.number("attention_heads", "num_attention_heads", default=16), "ffn": v.number("intermediate_size", default=5120),
        "activation": v.activation("hidden_act", gated=False, default="gelu"), "attention_bias": False, "fused_qkv": False, "image": image,
        "patch": _side(v, "patch_size", 14), "class_token": True, "tiles": v.number("max_num_tiles", default=4), "ratios": len(ratios),
    }  # fmt: skip
    beside = v.tree.get("intermediate_layers_indices") or [3, 7, 15, 23, 30]
    return {"family": "vlm", "tower": tower, "projector": {"layers": 1, "beside": beside}, "decoder": decoder}


def _mllama_text(c: Config) -> Fields:
    """Llama, in whose `cross_attention_layers` words read pictures. The embedding has eight rows more than the head (MllamaTextModel)."""
    fields = gated.READERS["llama"](c)
    crossed = c.tree.get("cross_attention_layers")
    crossed = [3, 8, 13, 18, 23, 28, 33, 38] if crossed is None else crossed
    return fields | {"further_rows": 8, "mixers": "".join("X" if at in crossed else "*" for at in range(fields["layers"]))}


def _flat(v: Config, hidden: int, layers: int = 32, patch: int = 14) -> Fields:
    """Qwen's towers take patches of two frames as they lie in memory."""
    return {
        "layers": v.number("depth", default=layers),
        "hidden": hidden,
        "heads": v.number("num_heads", default=16),
        "patch": v.number("patch_size", "spatial_patch_size", default=patch),
        "frames": v.number("temporal_patch_size", default=2),
        "fused_qkv": True,
        "position": "rope",
    }


def _merged(c: Config, v: Config, tower: Fields, norm: str) -> Fields:
    merge = v.number("spatial_merge_size", default=2)
    projector = {"merge": merge, "norm": norm, "inner": tower["hidden"] * merge**2}
    return {"family": "vlm", "tower": tower, "projector": projector, "decoder": _decoder(c, "qwen2")}


READERS: dict[str, Callable[[Config], Fields]] = {
    "llava": _llava, "paligemma": _paligemma, "gemma3": _gemma3, "internvl": _internvl, "qwen2_vl": _qwen2, "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3, "qwen3_vl_moe": _qwen3, "qwen3_5": _qwen3_5, "qwen3_5_moe": _qwen3_5, "mllama": _mllama,
}  # fmt: skip
