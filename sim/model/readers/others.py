"""Configs that are no decoders: BERT, DistilBERT and RoBERTa, T5, ViT, ResNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.model.readers.config import Config
from topologies.errors import BadInput, Refused

Fields = dict[str, Any]
_DEPTHS = {
    ("basic", (2, 2, 2, 2)): 18, ("basic", (3, 4, 6, 3)): 34, ("bottleneck", (3, 4, 6, 3)): 50, ("bottleneck", (3, 4, 23, 3)): 101,
    ("bottleneck", (3, 8, 36, 3)): 152,
}  # fmt: skip


def _bert(c: Config) -> Fields:
    """Which head it has follows from `architectures`; without one, that of pretraining."""
    names = " ".join(map(str, c.tree.get("architectures") or ()))
    roberta = c.kind != "bert"
    head = "squad" if "QuestionAnswering" in names else "masked" if "MaskedLM" in names or roberta else "pretraining"
    return {
        "family": "encoder",
        "layers": c.number("num_hidden_layers"),
        "hidden": c.number("hidden_size"),
        "heads": c.number("num_attention_heads"),
        "ffn": c.number("intermediate_size"),
        "vocab": c.number("vocab_size"),
        "positions": c.number("max_position_embeddings"),
        "predictions": c.number("max_position_embeddings"),  # its heads give logits of all tokens, of which the loss leaves most out
        "types": c.number("type_vocab_size", default=2),
        "dropout": c.fraction("hidden_dropout_prob", default=0.1),
        "head": head,
        "tied": c.flag("tie_word_embeddings", True),
    }


def _distilbert(c: Config) -> Fields:
    """BERT of half the layers, without segments and without the next sentence."""
    names = " ".join(map(str, c.tree.get("architectures") or ()))
    return {
        "family": "encoder",
        "layers": c.number("n_layers"),
        "hidden": c.number("dim"),
        "heads": c.number("n_heads"),
        "ffn": c.number("hidden_dim"),
        "vocab": c.number("vocab_size"),
        "positions": c.number("max_position_embeddings"),
        "predictions": c.number("max_position_embeddings"),
        "types": 0,
        "dropout": c.fraction("dropout", default=0.1),
        "head": "squad" if "QuestionAnswering" in names else "masked",
        "tied": c.flag("tie_weights_", c.flag("tie_word_embeddings", True)),
    }


def _t5(c: Config) -> Fields:
    """T5 1.0 (ReLU, shared embedding) and 1.1, Flan, mT5 (gated GELU, a head of its own)."""
    layers = c.number("num_layers")
    if c.number("num_decoder_layers", default=layers) != layers:
        raise Refused(f"{c.where}: num_decoder_layers differs from num_layers = {layers}, which is not supported; make them equal")
    word = str(c.tree.get("feed_forward_proj", "relu"))
    gated, plain = word.startswith("gated-"), word.removeprefix("gated-")
    named = Config({**c.tree, "feed_forward_proj": plain}, c.where)
    return {
        "family": "encdec",
        "layers": layers,
        "hidden": c.number("d_model"),
        "heads": c.number("num_heads"),
        "head_dim": c.number("d_kv"),
        "ffn": c.number("d_ff"),
        "vocab": c.number("vocab_size"),
        "activation": named.activation("feed_forward_proj", gated=gated, default="relu"),
        "norm": "rmsnorm",
        "bias": False,
        "relative": c.number("relative_attention_num_buckets", default=32),
        "tied": c.flag("tie_word_embeddings", True),
        "dropout": c.fraction("dropout_rate", default=0.1),
    }


def classes(c: Config) -> int:
    """How many labels a classifier has; transformers: 2 where the file says nothing."""
    labels = c.tree.get("id2label")
    return len(labels) if isinstance(labels, dict) and labels else c.number("num_labels", default=2)


def _vit(c: Config) -> Fields:
    return {
        "family": "vit",
        "layers": c.number("num_hidden_layers"),
        "hidden": c.number("hidden_size"),
        "heads": c.number("num_attention_heads"),
        "ffn": c.number("intermediate_size"),
        "image": c.number("image_size", default=224),
        "patch": c.number("patch_size", default=16),
        "classes": classes(c),
        "dropout": c.fraction("hidden_dropout_prob", default=0.0),
    }


def _resnet(c: Config) -> Fields:
    kind, stages = str(c.tree.get("layer_type", "bottleneck")), tuple(c.tree.get("depths") or (3, 4, 6, 3))
    widths = tuple(c.tree.get("hidden_sizes") or (256, 512, 1024, 2048))
    depth = _DEPTHS.get((kind, stages))
    known = (64, 128, 256, 512) if kind == "basic" else (256, 512, 1024, 2048)
    if depth is None or widths != known:
        raise BadInput(f"{c.where}: depths = {list(stages)}, hidden_sizes = {list(widths)} is no ResNet-18, 34, 50, 101 or 152 ('{kind}')")
    return {"family": "cnn", "depth": depth, "classes": classes(c)}


READERS: dict[str, Callable[[Config], Fields]] = {
    "bert": _bert, "distilbert": _distilbert, "roberta": _bert, "xlm-roberta": _bert, "camembert": _bert, "t5": _t5, "mt5": _t5, "vit": _vit, "resnet": _resnet,
}  # fmt: skip
