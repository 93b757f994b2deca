"""What a row's note says of its experts and of latent attention; what it does not say is that of the model it names."""

from __future__ import annotations

import re

from sim.accuracy.row import Row
from sim.model.specs.decoder import Decoder, Mla

_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4}
_COUNT = r"(\d+|one|two|three|four)"


def shared_width(row: Row, spec: Decoder | None) -> int:
    """Inner width of the experts that every token passes through, together: stated, or so many times one expert's."""
    note = row.arch_note.lower()
    if width := note_number(note, r"shared experts? \(?(?:of )?(\d+)"):
        return width
    if count := re.search(_COUNT + r" shared expert", note):
        return _count(count[1]) * (row.moe_ffn_hidden or 0)
    return spec.moe.shared if spec and spec.moe else 0


def first_dense(row: Row, spec: Decoder | None) -> int:
    """Layers at the beginning that keep the dense MLP."""
    note = row.arch_note.lower()
    if stated := note_number(note, r"(\d+) dense layer|dense_layers=(\d+)|first_k_dense_replace ?[=:]? ?(\d+)"):
        return stated
    if found := re.search(rf"first (?:{_COUNT} )?layers? (?:is |are )?dense|first (?:{_COUNT} )?dense layers?", note):
        return _count(found[1] or found[2] or "1")
    return spec.first_dense if spec and spec.layers == row.n_layers else min(1, spec.first_dense) if spec else 0


def latent(row: Row, spec: Decoder | None) -> Mla:
    """DeepSeek-V2/V3: 128 + 64 (rotary) wide queries and keys, values of 128 (their config.json)."""
    note = row.arch_note.lower()
    keys, queries = note_number(note, r"kv_lora\w* ?[=:]? ?(\d+)"), note_number(note, r"q_lora\w* ?[=:]? ?(\d+)")
    if spec and spec.mla and not keys:
        return spec.mla
    return Mla(kv_lora=keys or 512, q_lora=queries or 1536)


def predictions(row: Row) -> int:
    """Modules of multi-token prediction: one in Megatron-Bridge's recipe of DeepSeek-V3 (recipes/deepseek/deepseek_v3.py: mtp_num_layers = 1),
    unless the row says that it ran without."""
    recipe = re.search(r"deepseek[-_ ]?(v3|r1)", row.model_name.lower()) and "bridge" in f"{row.framework} {row.source_id}".lower()
    without = re.search(r"(w/o|without|no) mtp", row.notes.lower())
    return int(bool(recipe) and row.pretrains and not without)


def note_number(note: str, pattern: str) -> int:
    """The number that the pattern's group finds in a note; 0 where it finds none."""
    found = re.search(pattern, note)
    return int(next(group for group in found.groups() if group)) if found else 0


def _count(word: str) -> int:
    return _COUNTS.get(word) or int(word)
