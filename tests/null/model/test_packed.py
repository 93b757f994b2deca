"""Packed sequences: attention inside each example, everything else over all tokens."""

from __future__ import annotations

import msgspec
import pytest

from sim.framework.framework import load_framework
from sim.model import Shape, describe
from sim.model.specs.decoder import Decoder
from sim.work import Attention

WHOLE = Decoder(name="d", layers=2, hidden=1024, heads=8, kv_heads=2, ffn=4096, vocab=32000)


def works(spec: Decoder, attention: str = "flash", **shape: object) -> list[object]:
    network = describe(spec, Shape(micro=2, seq=4096, **shape), load_framework("megatron-lm"), attention)  # type: ignore[arg-type]
    return [work for _, block in network.blocks for part in block.parts for work in (*part.forward, *part.backward, *part.wgrad)]


def test_attention_is_over_examples_and_nothing_else_changes() -> None:
    whole, packed = works(WHOLE), works(msgspec.structs.replace(WHOLE, packed=256))
    assert len(whole) == len(packed)
    for one, other in zip(whole, packed, strict=True):
        if isinstance(one, Attention):
            assert isinstance(other, Attention) and (other.batch, other.q, other.kv) == (32, 256, 256)
            assert other.flops * 16 == one.flops and other.bytes == one.bytes
        else:
            assert one == other


@pytest.mark.parametrize("tokens", [300, 4095, 2731])
def test_examples_hold_all_tokens(tokens: int) -> None:
    for work in works(msgspec.structs.replace(WHOLE, packed=tokens)):
        if isinstance(work, Attention):
            assert 0 <= work.batch * work.q - 2 * 4096 < work.batch and work.q == work.kv


@pytest.mark.parametrize("tokens", [4096, 9000])
def test_examples_as_long_as_the_sequence_are_the_sequence(tokens: int) -> None:
    assert works(msgspec.structs.replace(WHOLE, packed=tokens)) == works(WHOLE)


def test_queries_whose_keys_lie_elsewhere_stay_whole() -> None:
    assert works(msgspec.structs.replace(WHOLE, packed=256), cp=2) == works(WHOLE, cp=2)
