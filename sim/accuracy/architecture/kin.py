"""Sizes of models with an encoder that do not ship, by the names that libraries give them: BERT's kin, and encoders with decoders.

What such a model has beside BERT's or the Transformer's layers (shared weights, a generator, other attention) is not described; the sizes are
its makers'.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from sim.accuracy.row import Row


class Sizes(NamedTuple):
    """As the columns of the table; `ffn` 0 = 4 x hidden, `vocab` 0 = that of the family."""

    layers: int
    hidden: int
    heads: int
    ffn: int = 0
    vocab: int = 0
    activation: str = ""


_ENCODERS: tuple[tuple[str, Sizes], ...] = (
    # (pattern over the name in lower case with single spaces, its sizes): config.json of the released models where nothing else is said
    (r"distil(ro)?bert", Sizes(6, 768, 12)),  # Sanh et al. 2019
    (r"tinybert", Sizes(4, 312, 12, 1200)),  # Jiao et al. 2019
    (r"albert.*xx", Sizes(12, 4096, 64, 16384, 30000)),  # Lan et al. 2019, table 1
    (r"albert.*xlarge", Sizes(24, 2048, 16, 8192, 30000)),
    (r"albert.*large", Sizes(24, 1024, 16, 4096, 30000)),
    (r"albert.*base", Sizes(12, 768, 12, 3072, 30000)),
    (r"electra.*small", Sizes(12, 256, 4, 1024)),  # Clark et al. 2020, table 6: the discriminator
    (r"electra.*large", Sizes(24, 1024, 16)),
    (r"electra", Sizes(12, 768, 12)),
    (r"deberta.*xx", Sizes(48, 1536, 24, 6144, 128100)),  # He et al. 2020
    (r"deberta.*xlarge", Sizes(24, 1536, 24, 6144, 128100)),
    (r"deberta.*v[23].*large", Sizes(24, 1024, 16, 4096, 128100)),
    (r"deberta.*v[23].*base", Sizes(12, 768, 12, 3072, 128100)),
    (r"deberta.*large", Sizes(24, 1024, 16, 4096, 50265)),
    (r"deberta", Sizes(12, 768, 12, 3072, 50265)),
    (r"xlm ?r.*xxl", Sizes(48, 4096, 32, 16384, 250880)),  # Goyal et al. 2021
    (r"xlm ?r.*xl", Sizes(36, 2560, 32, 10240, 250880)),
    (r"xlm ?r.*large", Sizes(24, 1024, 16, 4096, 250002)),  # Conneau et al. 2019
    (r"xlm ?r", Sizes(12, 768, 12, 3072, 250002)),
    (r"xlnet.*large", Sizes(24, 1024, 16, 4096, 32000)),  # Yang et al. 2019
    (r"xlnet", Sizes(12, 768, 12, 3072, 32000)),
    (r"bert.*3\.9 ?b", Sizes(48, 2560, 40)),  # Megatron-LM (Shoeybi et al. 2019, table 4)
    (r"bert.*1\.3 ?b", Sizes(24, 2048, 32)),
    (r"bert.*(334|345) ?m", Sizes(24, 1024, 16)),
    (r"esm ?2.*15 ?b", Sizes(48, 5120, 40, 20480, 33)),  # Lin et al. 2022, of proteins
    (r"esm ?2.*\b3 ?b", Sizes(36, 2560, 40, 10240, 33)),
    (r"esm ?2.*650 ?m|esm ?1b", Sizes(33, 1280, 20, 5120, 33)),
    (r"esm ?2.*150 ?m", Sizes(30, 640, 20, 2560, 33)),
    (r"esm ?2.*35 ?m", Sizes(12, 480, 20, 1920, 33)),
    (r"esm ?2.*\b8 ?m", Sizes(6, 320, 20, 1280, 33)),
)
_PAIRS: tuple[tuple[str, Sizes], ...] = (
    # the same of encoders with decoders: layers of one stack
    (r"mbart", Sizes(12, 1024, 16, 4096, 250054, "gelu")),  # Liu et al. 2020
    (r"\bbart.*large", Sizes(12, 1024, 16, 4096, 50265, "gelu")),  # Lewis et al. 2019
    (r"\bbart", Sizes(6, 768, 12, 3072, 50265, "gelu")),
    (r"pegasus", Sizes(16, 1024, 16, 4096, 96103)),  # Zhang et al. 2019: large
    (r"marian|opus ?mt", Sizes(6, 512, 8, 2048, 58101)),
    (r"nllb.*3\.3 ?b", Sizes(24, 2048, 16, 8192, 256206)),  # NLLB team 2022
    (r"nllb.*1\.3 ?b", Sizes(24, 1024, 16, 8192, 256206)),
    (r"nllb.*600 ?m", Sizes(12, 1024, 16, 4096, 256206)),
    (r"m2m ?100.*1\.2 ?b", Sizes(24, 1024, 16, 8192, 128112)),  # Fan et al. 2020
    (r"m2m ?100.*418 ?m", Sizes(12, 1024, 16, 4096, 128112)),
)


def with_kin(row: Row, assumed: list[str]) -> Row:
    """The row with the sizes of the encoder, or encoder with decoder, that it names; as it is where it states some or the name is none."""
    if row.n_layers or row.hidden:
        return row
    name = re.sub(r"[_ -]+", " ", row.model_name.lower())
    found = next((sizes for pattern, sizes in (*_ENCODERS, *_PAIRS) if re.search(pattern, name)), None)
    if found is None or "moe" in name:
        return row
    assumed.append(f"architecture by the name: {found.layers} layers of {found.hidden}")
    return msgspec.structs.replace(
        row,
        n_layers=found.layers,
        hidden=found.hidden,
        n_heads=found.heads,
        ffn_hidden=found.ffn or 4 * found.hidden,
        vocab_size=row.vocab_size or found.vocab or None,
        activation=row.activation or found.activation,
    )
