"""Models with an encoder from a row's columns: BERT and its kin, T5 and its kin, Transformer-XL.

Each gives the plan's model table, or None where the row states no sizes: then a shipped model of the name stands in.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sim.accuracy.architecture.kin import with_kin
from sim.accuracy.architecture.names import shipped_model, size_of
from sim.accuracy.architecture.proportions import with_sizes
from sim.accuracy.row import Row
from sim.model.load import load_model
from sim.model.specs.spec import EncDec, Encoder, TransformerXl

BERTS = r"(?<!hu)bert\b|(ro|de)berta|electra|\bxlm-?r|\bxlnet|\besm-?[12]"
"""Bidirectional encoders: the layers of BERT, whatever they are trained to say."""
SEQ2SEQ = r"\bm?t5x?\b|\bt5|\bmt5|\bul2\b|\bm?bart|pegasus|marian|nllb|m2m.?100|encoder[-_ ]decoder"
_MASKED = r"roberta|xlm|camembert|modernbert|deberta|distilbert|\besm"
"""Trained on masked words alone."""
_OWN = {
    "electra": "ELECTRA's generator is not counted",
    "albert": "ALBERT's layers share their weights: counted as if each had its own",
    "deberta": "attention as BERT's",
}
_SIZES = {"bert-base": 110e6, "bert-large": 336e6}
"""Parameters of the two BERTs (Devlin et al. 2018), which tables round: 340 and 345 million."""
_ABOUT = 0.2
_NO_SIZE = r"\d+(\.\d+)? ?[mb]\b|\((?![^)]*(base|large|\d ?[mb]\b))[^)]*\)"
"""Numbers of parameters, and remarks."""


def bert(row: Row, assumed: list[str]) -> dict[str, Any] | None:
    """BERT with its pre-training heads, or the span scores of SQuAD.

    Masked words per sequence: 20 of 128 and 80 of 512 (max_predictions_per_seq of the published scripts). NVIDIA's
    PyTorch scripts before 2021 computed the vocabulary scores of every token. They pad the vocabulary to a multiple of 8, those for
    TensorFlow and OneFlow do not.
    """
    row = with_kin(row, assumed)
    if row.n_layers is None or row.hidden is None:
        found = _bert_by_name(row, assumed)
        sized = with_sizes(row, assumed) if found is None else None
        if found is not None:
            sized = msgspec.structs.replace(row, n_layers=found.layers, hidden=found.hidden, n_heads=found.heads, vocab_size=found.vocab)
        if sized is None:
            return None
        row = sized
    assert row.n_layers is not None and row.hidden is not None
    name, seq = f"{row.model_type} {row.model_name}".lower(), row.seq_len or 0
    assumed += [note for word, note in _OWN.items() if word in name]
    squad, masked = "squad" in row.task.lower(), re.search(_MASKED, name) is not None
    every = "pytorch" in row.framework.lower() and row.date[:4] < "2021" and not row.of_torch_2
    whole = 1 if re.search("tensorflow|oneflow", row.framework.lower()) else 8
    spec = Encoder(
        name=row.model_name,
        layers=row.n_layers,
        hidden=row.hidden,
        heads=row.n_heads or row.hidden // 64,
        ffn=row.ffn_hidden or 0,
        vocab=-(-(row.vocab_size or (50265 if "roberta" in name else 30522)) // whole) * whole,
        positions=max(512, seq),
        head="squad" if squad else "masked" if masked else "pretraining",
        predictions=0 if squad or masked else seq if every else {128: 20, 512: 80}.get(seq, 0),
    )
    tree: dict[str, Any] = msgspec.to_builtins(spec)
    return tree


def _bert_by_name(row: Row, assumed: list[str]) -> Encoder | None:
    """The shipped encoder that is meant. A BERT of no more than a number of parameters is the shipped one of about that size, and without any the
    base one, in MLPerf the large one (mlcommons/training, language_model/tensorflow/bert: 24 layers of 1024)."""
    bare = re.fullmatch(r"bert\W*", re.sub(_NO_SIZE, "", row.model_name.lower()))
    size = size_of(row.model_name.replace("-", " ")) or row.params or (_SIZES["bert-large"] if row.submitted else _SIZES["bert-base"])
    fits = (name for name, own in _SIZES.items() if abs(size / own - 1) < _ABOUT)
    name = next(fits, "") if bare else shipped_model(row.model_name, row.params)
    spec = load_model(name) if name else None
    if not isinstance(spec, Encoder):
        return None
    assumed.append(f"architecture of the shipped model {name}")
    return spec


def encoder_decoder(row: Row, assumed: list[str]) -> dict[str, Any] | None:
    """T5 (Raffel et al. 2019), T5 1.1 and mT5 (gated GELU, a head of its own), or the Transformer of 2017 that BART and translation took.

    `n_layers` counts those of one stack, or of both where the row's parameters say so.
    """
    row = with_kin(row, assumed)
    if row.n_layers is None or row.hidden is None:
        return None
    name = f"{row.model_type} {row.model_name}".lower()
    relative = re.search(r"t5|ul2", name) is not None
    gated = relative and re.search(r"1[._]1|flan|mt5|t5x|ul2|geglu", f"{name} {row.activation.lower()}") is not None
    spec = EncDec(
        name=row.model_name,
        layers=row.n_layers,
        hidden=row.hidden,
        heads=row.n_heads or max(1, row.hidden // 64),
        head_dim=row.head_dim or 0,
        ffn=row.ffn_hidden or (round(8 * row.hidden / 3 / 64) * 64 if gated else 4 * row.hidden),
        vocab=row.vocab_size or (250112 if "mt5" in name else 32128 if relative else 50265 if "bart" in name else 32768),
        activation="geglu" if gated else "relu" if relative or "gelu" not in row.activation else "gelu",
        norm="rmsnorm" if relative else "layernorm",
        pre_norm=relative or re.search(r"pegasus|nllb|m2m|mbart", name) is not None,
        bias=not relative,
        relative=32 if relative else 0,
        tied=not gated,
    )
    if row.params and spec.layers % 2 == 0 and _stacks(spec, spec.layers) > 1.5 * row.params:
        assumed.append(f"{spec.layers} layers are those of both stacks, by the parameters")
        spec = msgspec.structs.replace(spec, layers=spec.layers // 2)
    tree: dict[str, Any] = msgspec.to_builtins(spec)
    return tree


def _stacks(spec: EncDec, layers: int) -> float:
    """Parameters of `layers` in each stack: attention once in the encoder, twice in the decoder, and an MLP in both; embeddings beside."""
    attention = 4 * spec.hidden * spec.heads * (spec.head_dim or spec.hidden // spec.heads)
    mlp = (3 if spec.activation == "geglu" else 2) * spec.hidden * spec.ffn
    return layers * (3 * attention + 2 * mlp) + spec.vocab * spec.hidden * (1 if spec.tied else 2)


def transformer_xl(row: Row) -> dict[str, Any] | None:
    """WikiText-103's vocabulary and clusters; the large model embeds rare words in 4, 16 and 64 times fewer columns
    (NVIDIA's wt103 configurations: div_val 1 for base, 4 for large; dropatt 0 and 0.2)."""
    if row.n_layers is None or row.hidden is None:
        return None
    memory = re.search(r"mem_len (\d+)", row.arch_note)
    spec = TransformerXl(
        name=row.model_name,
        layers=row.n_layers,
        hidden=row.hidden,
        heads=row.n_heads or row.hidden // 64,
        ffn=row.ffn_hidden or 4 * row.hidden,
        memory=int(memory[1]) if memory else row.seq_len or 192,
        div=4 if row.hidden >= 1024 else 1,
        attention_dropout=0.2 if row.hidden >= 1024 else 0.0,
    )
    tree: dict[str, Any] = msgspec.to_builtins(spec)
    return tree
