"""Which rows train low-rank adapters, and where: as the row says, as MLPerf rules, or as their library does unless told."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sim.accuracy.row import Row
from sim.model.specs.lora import Lora, Target

_ALL: tuple[Target, ...] = ("qkv", "proj", "up", "down")
_LIBRARIES: tuple[tuple[str, str, Lora], ...] = (
    # (pattern over framework and task, whose habit it is, the adapters); the first that matches counts
    (
        r"nemo|megatron|mlperf",
        "the performance setting of NeMo's Llama recipes",
        Lora(rank=16, targets=("qkv",)),
    ),  # peft.target_modules, dim
    (r"axolotl", "axolotl's examples", Lora(rank=32, targets=_ALL, dropout=0.05)),  # lora_target_linear
    (r"llama-?factory", "LLaMA-Factory's defaults", Lora(rank=8, targets=_ALL, dropout=0.0)),  # lora_target: all
    (r"unsloth", "Unsloth's notebooks", Lora(rank=16, targets=_ALL, dropout=0.0)),  # target_modules: all seven
    (r"torch ?tune", "torchtune's recipes", Lora(rank=8, targets=_ALL, dropout=0.0)),  # lora_attn_modules, apply_lora_to_mlp
    (r"qlora", "QLoRA's authors", Lora(rank=64, targets=_ALL, dropout=0.1)),  # Dettmers et al. 2023, appendix B
    (
        "",
        "PEFT's defaults, of queries and values",
        Lora(rank=8, targets=("q", "v"), dropout=0.0),
    ),  # LoraConfig; lit-gpt's lora.py has the same two
)
FOUR_BITS = r"\bnf4\b|4-?bit|qlora"
"""Words of a base that is packed in four bits."""
_EVERYWHERE = r"all[- ]linear|all (the )?linear|every linear|all modules"
_NAMES: dict[str, Target] = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "proj",
    "up_proj": "up",
    "gate_proj": "up",
    "down_proj": "down",
}
"""Of transformers' linears: the word for each."""


def _linears(note: str) -> tuple[Target, ...]:
    """The linears that a note names; of a gated MLP either stands for both that read its input."""
    found = tuple(dict.fromkeys(word for name, word in _NAMES.items() if re.search(rf"\b{name}\b", note)))
    return ("qkv", *found[3:]) if found[:3] == ("q", "k", "v") else found


_ADAPTERS = r"(?<![a-z])(?<![vq][-_ ])(q|rs)?[dl]ora\b|\bpeft\b"
"""Words of low-rank adapters, and not of latent attention (kv_lora_rank, q_lora 1536)."""
_WITHOUT = r"\b(no|not|non|without|w/o|vs\.?|than)\W+([dlq]*lora|peft|adapters?)\b"
_WHOLE = r"\bfull\b|pre-?train"
"""Tasks of all weights, whatever else the framework can do."""


def trains_adapters(row: Row) -> bool:
    """LoRA, said of the task, the model ("Llama-2-70B LoRA") or the family, or beside a task that is not of all weights of the framework, the type or
    the architecture; MLPerf trains Llama 2 70B so alone (training_rules: llama2_70b_lora)."""
    told = re.sub(_WITHOUT, "", f"{row.task} {row.model_name} {row.family}".lower())
    if re.search(f"{_ADAPTERS}|adapter", told):
        return True
    more = re.sub(_WITHOUT, "", f"{row.framework} {row.model_type} {row.arch_note}".lower())
    if re.search(_ADAPTERS, more) and not re.search(_WHOLE, row.task.lower()):
        return True
    return row.submitted and re.search(r"llama[-_ ]?2.*70b", row.model_name.lower()) is not None


EIGHT_BITS = r"\bint-?8\b|\b8[- ]?bits?\b(?! float)|llm\.int8"
"""Words of a base that is packed in eight bits, whose products are in 16 (Dettmers et al. 2022)."""


def packed_base(row: Row, words: str) -> bool:
    """The precision of a row that trains adapters is that of its frozen base alone: `words` say how its integers are stored."""
    return trains_adapters(row) and re.search(rf"{EIGHT_BITS}|\bint-?4\b", words) is not None


def _is_packed(row: Row) -> bool:
    """Does the base lie in four bits?"""
    return re.search(rf"{FOUR_BITS}|\bint-?4\b", f"{row.precision} {row.framework} {row.task} {row.model_name}".lower()) is not None


def adapters_of(row: Row, assumed: list[str]) -> Lora:
    """The adapters of a row that trains some."""
    if row.submitted:  # llama2_70b_lora of mlcommons/training: qkv_proj,o_proj, lora_r 16
        assumed.append("LoRA of rank 16 on qkv and the output projection: MLPerf's rule")
        return Lora(rank=16, targets=("qkv", "proj"))
    words = f"{row.framework} {row.task} {row.model_name}".lower()
    whose, lora = next((whose, lora) for pattern, whose, lora in _LIBRARIES if re.search(pattern, words))
    note = f"{row.notes} {row.arch_note} {row.task}".lower()
    rank = re.search(r"\b(?:rank|r)\W{0,3}([1-9]\d*)\b", note)
    named = _ALL if re.search(_EVERYWHERE, note) else _linears(note)
    if rank or named:
        size, targets = int(rank[1]) if rank else lora.rank, named or lora.targets
        lora = Lora(rank=size, targets=targets, dropout=lora.dropout)
    if _is_packed(row):
        gathered = re.search(r"fsdp|zero-?3|full_shard", row.sharding.lower()) or row.n_experts
        lora = lora if gathered else msgspec.structs.replace(lora, base="nf4")
        assumed.append("the base packed in four bits" + (": neither its bytes nor its unpacking are counted" if gathered else " (NF4)"))
    elif re.search(EIGHT_BITS, row.precision.lower()):
        assumed.append("the base packed in eight bits: neither its bytes nor its unpacking are counted")
    assumed.append(f"LoRA of rank {lora.rank} on {', '.join(lora.targets)}: {whose}{', but for what the row says' * bool(rank or named)}")
    return lora


def on_its_linears(model: dict[str, Any], fused: bool, assumed: list[str]) -> dict[str, Any]:
    """The model table with adapters that its linears can have: those of queries and of values stand on one, where that makes keys, too (PEFT names
    `query_key_value` or `c_attn` for such models). `fused`: the framework has one for all where the model does not say."""
    one = bool(model.get("mla")) or (fused if model.get("fused_qkv") is None else bool(model["fused_qkv"]))
    targets = model["lora"]["targets"] if model.get("lora") else ()
    rest = [target for target in targets if target not in ("q", "k", "v")]
    if not one or len(rest) == len(targets):
        return model
    assumed.append("adapters of queries, keys or values taken as one of all three, which are one linear")
    return model | {"lora": model["lora"] | {"targets": ("qkv", *rest)}}
