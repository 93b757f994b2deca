"""How many tokens a sequence of a row holds: stated, or its task's, its benchmark's, its model's.

A batch that counts tokens holds as many sequences as are full.
"""

from __future__ import annotations

import re

import msgspec

from sim.accuracy.row import Row

_SQUAD = 384
"""Tokens of a SQuAD example in BERT's fine-tuning scripts (--max_seq_length 384)."""

_BINNED = {128: 120, 512: 288}
"""Tokens of a padded BERT sequence where each batch holds sequences of one length bin of 64: NVIDIA's PyTorch scripts
since 21.09 (LDDL, --phase2_bin_size 64). Half of 512 and a fifth of 128 are padding in Wikipedia (Krell et al. 2021,
sequence packing); the mean of a bin lies half a bin above the sequences' own mean."""

_TEXTS = 448
"""Tokens that Whisper writes of 30 seconds of sound at most (Radford et al. 2022, section 2.2; config.json: max_target_positions)."""
_LENGTHS: tuple[tuple[str, int], ...] = (
    # (pattern over "model_type model_name", tokens where a row says nothing); the first that matches counts
    (r"transformer[-_ ]?xl.*large", 384),  # tgt_len of NVIDIA's wt103 configurations
    (r"transformer[-_ ]?xl", 192),
    (r"bert", 128),  # its first phase
    (r"whisper", _TEXTS),
    # Sentences: --train-max-length of GNMT in NVIDIA's DeepLearningExamples.
    (r"gnmt|transformer[-_ ](base|big)|marian|nllb|m2m|mbart", 50),
    (r"\bm?t5", 512),  # its longest (Raffel et al. 2019)
    (r"gpt-?2\b|\bbart|pegasus", 1024),  # their positions
    (r"llama[-_ ]?v?3(?![\d.]* ?b)", 8192),  # LLaMA 30B is of the first. What its authors pretrained on (Llama team 2024, section 3.4.1)
    (
        r"llama[-_ ]?v?2(?![\d.]* ?b)|mixtral|qwen",
        4096,
    ),  # Touvron et al. 2023; Megatron-LM's and Megatron-Bridge's recipes; Qwen team 2024, section 3.2
)
_BENCHMARKS: tuple[tuple[str, int], ...] = (
    # the same of MLPerf's rules: training_policies, training_rules.adoc, and mlcommons/training
    (r"bert", 512),  # its second phase
    (r"llama", 8192),  # llama2_70b_lora, llama31_405b, llama31_8b
    (r"gpt", 2048),  # large_language_model/megatron-lm
)
_OTHER_STACKS = r"bert|\bm?t5|whisper|\bdlrm"
"""Models whose length is their own in any framework."""
_TITANS = 8192
"""Tokens in the configurations of torchtitan's Llamas (torchtitan/models/llama3/train_configs/*.toml: seq_len)."""


def _length(row: Row) -> int:
    """Tokens where the row says nothing: its task's (MLPerf's BERT: the second phase), its benchmark's, its model's, else 2048."""
    kind = f"{row.model_type} {row.model_name}".lower()
    if "squad" in row.task.lower():
        return _SQUAD
    for pattern, size in _BENCHMARKS if row.submitted else ():
        if re.search(pattern, kind):
            return size
    if re.search(r"torch[- ]?titan", row.framework.lower()) and not re.search(_OTHER_STACKS, kind):
        return _TITANS
    return next((size for pattern, size in _LENGTHS if re.search(pattern, kind)), 2048)


def of_length(row: Row, family: str, assumed: list[str]) -> Row:
    """A decoder's row with its sequences' length, which counts of tokens are told in, where it leaves it out."""
    if family != "decoder" or row.seq_len is not None or row.batch_unit == "images":
        return row
    return msgspec.structs.replace(row, seq_len=_assumed(row, assumed))


def _assumed(row: Row, assumed: list[str]) -> int:
    """`_length`, with a note."""
    size = _length(row)
    assumed.append(f"seq_len not stated: {size}")
    return size


def seq_len_of(row: Row, framework: str, assumed: list[str]) -> int | None:
    """The plan's tokens of a sequence: as stated, or as the model and its scripts have them; None for pictures."""
    if row.batch_unit == "images":
        return None
    if row.seq_len is None:
        return _assumed(row, assumed)
    if row.seq_len > _TEXTS and "whisper" in f"{row.model_type} {row.model_name}".lower():
        assumed.append(f"{row.seq_len} are frames of sound: {_TEXTS} tokens of text")
        return _TEXTS
    if framework == "pytorch-apex-jit" and row.seq_len in _BINNED:
        size = _BINNED[row.seq_len]
        assumed.append(f"sequences binned by length (LDDL): {size} tokens in the mean of up to {row.seq_len}")
        return size
    return row.seq_len
