"""Attention in pieces (Llama 4's chunks, a tower's windows): inside each, everything else over all tokens."""

from __future__ import annotations

from typing import Any

import pytest

from sim.framework.framework import load_framework
from sim.model import Shape, describe
from sim.model.layers.pieces import inside
from sim.model.parts import Part
from sim.model.specs.decoder import Decoder
from sim.work import Attention

WHOLE = Decoder(name="d", layers=2, hidden=1024, heads=8, kv_heads=2, ffn=4096, vocab=32000)


def parts(attention: str = "flash", **shape: Any) -> tuple[Part, ...]:
    network = describe(WHOLE, Shape(micro=2, seq=4096, **shape), load_framework("megatron-lm"), attention)
    return dict(network.blocks)["L0"].parts


def test_attention_is_over_pieces_and_nothing_else_changes() -> None:
    compared = 0
    for one, other in zip(parts(), inside(parts(), 256), strict=True):
        for before, after in zip((*one.forward, *one.backward), (*other.forward, *other.backward), strict=True):
            if isinstance(before, Attention):
                compared += 1
                assert isinstance(after, Attention) and (after.batch, after.q, after.kv) == (32, 256, 256)
                assert after.flops * 16 == before.flops and after.bytes == before.bytes
            else:
                assert before == after
    assert compared == 2


@pytest.mark.parametrize("tokens", [300, 4095, 2731])
def test_pieces_hold_all_tokens(tokens: int) -> None:
    for part in inside(parts(), tokens):
        for work in part.forward:
            if isinstance(work, Attention):
                assert 0 <= work.batch * work.q - 2 * 4096 < work.batch and work.q == work.kv


@pytest.mark.parametrize("tokens", [4096, 9000])
def test_a_piece_as_long_as_the_sequence_is_the_sequence(tokens: int) -> None:
    assert inside(parts(), tokens) == list(parts())


def test_queries_whose_keys_lie_elsewhere_stay_whole() -> None:
    assert inside(parts(cp=2), 256) == list(parts(cp=2))


def test_what_is_written_out_stays_whole() -> None:
    assert inside(parts("math"), 256) == list(parts("math"))
