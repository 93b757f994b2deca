"""What a row's word of recomputation means: whole layers, some of them, or parts of each ("full", "selective (op)", "block 10")."""

from __future__ import annotations

import math
import re
from typing import Any

from sim.accuracy.row import Row
from sim.accuracy.rows.recipes import recomputed
from sim.accuracy.rows.wording import bare, precision_of, said
from sim.model.layers.redo import MODULES
from sim.sections import Module

_KEPT: tuple[tuple[str, float, str], ...] = (
    # (word, share of a layer's work that is done again, why)
    (r"every (other|second)( (transformer )?(layer|block)|$|\))", 1 / 2, "every second layer is recomputed"),
    (r"save_qkv_out_proj", 2 / 3, "qkv and output products are kept, a third of the layer: counted as two layers of three"),
    (r"save_qkv_proj", 7 / 8, "only the qkv products are kept: seven layers of eight"),
    (
        r"save_dot_(with_context_)?except_mlp",
        3 / 4,
        "attention's products are kept, the MLP's first run again: counted as three layers of four",
    ),
)
_PRODUCTS_KEPT = r"save_dot_only|checkpoint_dots|\bdots(_with_no_batch_dims)?_saveable|\bminimal(_flash|_with_context)?\b"
"""Paxml's policy, and MaxText's remat_policy of the same, which may keep attention's result too; JAX's own names (jax.checkpoint_policies)."""
_NOTHING_KEPT, _ALL_KEPT = r"nothing[_ ]saveable|save_nothing", r"everything[_ ]saveable|save_(all|everything)"
"""Policies of JAX that recompute all and nothing."""
_OPERATORS = r"\(op\)|\bsac\b(?!\W*\d)|every (2nd|second|other) (op|matmul|mm)\b"
"""torchtitan's policy that keeps attention and every second product."""
_WHOLE = r"yes|true|on\b|y\b|1\b|enabled|full|uniform|all\b|whole|ac\b|gc\b|.*checkpoint|.*recomput"
"""Words that say no more than that layers are recomputed."""
_UNSAID = {"maxtext": (("", "save_qkv_proj"), (r"(?<!\d)2[0-4]\.\d\d", "save_dot_except_mlp"))}
"""Recomputation that a framework's recipes use unless told, the last one whose pattern is in the row's version: remat_policy of dgxc-benchmarking
maxtext/configure.sh, in its v24.11 (Llama 2; in 16 bits save_dot_except_mlpwi, which keeps one more product that would not run again) and later."""


def recompute_of(row: Row, layers_per_rank: int, framework: str, assumed: list[str], chunks: int = 1) -> dict[str, Any]:
    """The plan's recomputation, whose layers are those of each of a rank's `chunks`; policies that keep some products count as recomputing so many of
    the layers."""
    each = max(1, layers_per_rank // chunks)
    text = "" if said(row.recompute) is None else row.recompute.lower()
    text = re.sub(_NOTHING_KEPT, "full", re.sub(_ALL_KEPT, "none", text))
    if not text and framework in _UNSAID and row.batch_unit != "images":
        text = [word for version, word in _UNSAID[framework] if re.search(version, row.framework_version)][-1]
        assumed.append(f"recomputation not stated: {text}, as {framework}'s recipes")
    if found := re.search(_PRODUCTS_KEPT, text):
        assumed.append(
            f"recomputation {text!r}: products are kept; {'' if found[2] else 'attention, a call of its own, and '}norms run again"
        )
        return {"recompute": "selective", "recompute_modules": ("layernorm",) if found[2] else ("core_attn", "layernorm")}
    if said(text) is False:
        return {"recompute": "none"}
    if re.search(_OPERATORS, text) or bare(text) == "op":
        return {"recompute": "selective", "recompute_modules": ("op",)}
    for word, share, why in (*_KEPT, *_share(text)):
        if re.search(word, text):
            assumed.append(f"recomputation {text!r}: {why}")
            layers = math.floor(share * each + 0.5)
            return {"recompute": "full", "recompute_layers": layers} if layers else {"recompute": "none"}
    if modules := _modules(row, framework, assumed):
        return {"recompute": "selective", "recompute_modules": modules}
    if re.search(r"selective|^sel\b|\bcore\b|(attention|attn)( only)?$", text):
        return {"recompute": "selective"}
    if found := re.search(r"block\D*(\d+)|(\d+) (?:of \d+ )?layers", f"{text} {row.recompute_detail.lower()}"):
        return {"recompute": "full", "recompute_layers": _of_chunk(int(found.group(1) or found.group(2)), row, each, chunks)}
    if not text:
        assumed.append("recomputation not stated: none")
    elif said(text) and (re.search(r"partial|part\b|some\b|half", text) or not re.match(_WHOLE, text)):
        assumed.append(f"recomputation {row.recompute!r} taken as full: all layers")
    return {"recompute": "full" if said(text) else "none"}


def _of_chunk(layers: int, row: Row, each: int, chunks: int) -> int:
    """Layers of each chunk that a number stands for: Megatron-LM counts those of a chunk (its TransformerBlock, recompute_num_layers) where ranks have
    several; where the row knows of none, those of a rank."""
    return min(layers if row.vp else max(1, math.floor(layers / chunks + 0.5)), each)


def _share(text: str) -> list[tuple[str, float, str]]:
    """Layers that a text counts by their share: "50 %", "half of the layers", "every 2 layers", "every 3rd layer", "selective (2)" (torchtitan's
    selective_ac_option: every second)."""
    found = re.search(r"(\d+) ?%|every (\d+)(?:st|nd|rd|th)? |(?:selective|\bs?ac)\W*(\d+)\)?$|\bhalf\b.*layers", text)
    if not found:
        return []
    share = min(1.0, int(found[1]) / 100) if found[1] else 1 / max(1, int(found[2] or found[3] or 2))
    return [("", share, f"{share:.0%} of the layers")]


def _modules(row: Row, framework: str, assumed: list[str]) -> tuple[Module, ...]:
    """What of each layer the row says in Megatron-Core's words; where it says nothing, what the recipe does."""
    text = f"{row.recompute} {row.recompute_detail}".lower()
    said_ones = tuple(module for module in MODULES if re.search(rf"\b{module}\b", text))
    words = set(re.findall(r"\w+", row.recompute.lower()))
    alone = bool(words) and words <= set(MODULES)
    if not alone and not any("_" in module for module in said_ones) and not row.recompute.lower().startswith("selective"):
        said_ones = ()  # beside others "mlp" and "moe" are words like any other
    if said_ones or said(row.recompute) is not None or not framework.startswith("megatron-bridge"):
        return said_ones
    found = recomputed(row, precision_of(row))
    if found:
        assumed.append(f"recomputation not stated: {', '.join(found)}, as its recipe")
    return found
