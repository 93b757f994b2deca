"""What a decoder reads of its encoder is in memory once, however many layers read it; with autocast each linear keeps its own cast."""

from __future__ import annotations

import pytest

from sim.framework.framework import load_framework
from sim.model.load import load_model
from sim.model.network import describe
from sim.model.parts import Block, Shape


def _blocks(model: str, framework: str, seq: int) -> dict[str, Block]:
    return dict(describe(load_model(model), Shape(micro=2, seq=seq, precision="bf16"), load_framework(framework)).blocks)


@pytest.mark.parametrize(
    ("model", "seq", "rows", "hidden", "linears"), [("t5-large", 512, 512, 1024, 1), ("whisper-large-v3", 448, 1500, 1280, 2)]
)
def test_the_encoders_result_is_kept_once(model: str, seq: int, rows: int, hidden: int, linears: int) -> None:
    result = 2 * rows * hidden * 2
    plain, cast = _blocks(model, "pytorch", seq), _blocks(model, "pytorch-native-amp", seq)
    readers = {name: [part for part in block.parts if part.name == "cross.kv"] for name, block in plain.items() if name.startswith("D")}
    assert len(readers) >= 24 and all(part.saved == 0 for (part,) in readers.values())
    kept = {name: sum(part.saved for part in blocks["target"].parts) for name, blocks in (("plain", plain), ("cast", cast))}
    assert kept["plain"] >= 2 * result > kept["cast"] - result  # beside it what the norm before it keeps
    assert all(
        part.saved == linears * result
        for name, block in cast.items()
        if name.startswith("D")
        for part in block.parts
        if part.name == "cross.kv"
    )
