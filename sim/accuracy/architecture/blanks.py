"""What a row's cells leave blank, where its name is that of a shipped model of the same width: vocabulary, heads, widths, experts.

A cut model (some layers of Llama 3 70B) has the sizes of the whole one.
"""

from __future__ import annotations

import re

import msgspec

from sim.accuracy.architecture.names import shipped_model
from sim.accuracy.row import Row
from sim.model.load import load_model
from sim.model.specs.decoder import Decoder


def named(row: Row) -> Decoder | None:
    """The shipped decoder that the row names, where its width is the row's."""
    name = shipped_model(whole_name(row.model_name), row.params, modern=not "" < row.date < "2024")
    spec = load_model(name) if name else None
    return spec if isinstance(spec, Decoder) and row.hidden in (None, spec.hidden) else None


def whole_name(name: str) -> str:
    """The name without the words that say that it is cut short."""
    return re.sub(r"(?i)[-_ (,]*(proxy|cut|truncated)?[-_ ]*\d+ ?l(ayers?)?\b\)?|[-_ (]*\b(proxy|cut|truncated)\b\)?", "", name).strip()


_SOME = r"\b(\d+) (?:of \d+ )?layers\b|(?:proxy|cut|truncated)[-_ ]*(\d+) ?l(?:ayers?)?\b|[-_ (](\d+)l\b"


def _cut(row: Row, assumed: list[str]) -> Row:
    """The row with the layers that its name or note counts ("Llama-3.1-405B-proxy7L", "7 of 126 layers"), and the width of the model cut so short."""
    found = re.search(_SOME, f"{row.model_name} {row.arch_note}".lower())
    spec = named(row)
    if not found or not spec or whole_name(row.model_name) == row.model_name or (row.n_layers and row.hidden):
        return row
    layers = row.n_layers or int(next(group for group in found.groups() if group))
    assumed.append(f"{layers} layers of {spec.hidden}, as the name says")
    return msgspec.structs.replace(row, n_layers=layers, hidden=spec.hidden)


def with_blanks(row: Row, assumed: list[str]) -> Row:
    """The row with blank sizes filled. Without both layers and width, which no name tells either, nothing is: the whole model then stands in."""
    row = _cut(row, assumed)
    if row.n_layers is None or row.hidden is None or not (spec := named(row)) or (row.n_experts and not spec.moe):
        return row
    own: dict[str, int | str | None] = {"n_heads": spec.heads, "vocab_size": spec.vocab, "activation": spec.activation}
    if row.n_heads in (None, spec.heads):
        own |= {"n_kv_heads": spec.kv_heads, "head_dim": spec.head_dim}
    if spec.moe:
        own |= {"n_experts": spec.moe.experts, "top_k": spec.moe.top_k, "moe_ffn_hidden": spec.moe.ffn}
    if not spec.moe or spec.first_dense:
        own["ffn_hidden"] = spec.inner
    blank = {name: value for name, value in own.items() if value and not getattr(row, name)}
    told = [name for name in blank if name not in ("n_kv_heads", "head_dim", "activation") or _matters(name, spec)]
    if told:
        assumed.append(f"{', '.join(told)} not stated: those of {spec.name}")
    return msgspec.structs.replace(row, **blank)


def _matters(name: str, spec: Decoder) -> bool:
    """A blank that the usual reading would fill otherwise: as many keys as queries, heads that share the width out."""
    if name == "n_kv_heads":
        return spec.kv != spec.heads
    return name == "head_dim" and spec.head * spec.heads != spec.hidden
