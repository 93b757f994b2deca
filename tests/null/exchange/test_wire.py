"""Protocol buffers on the wire: what is written is read, and damaged bytes are refused, never more than that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.exchange import wire
from sim.exchange.chakra import Kind, Node, decode, encode
from topologies.errors import BadInput

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(0, 2**64 - 1)
NODES = st.builds(
    Node,
    id=NUMBERS,
    name=TEXTS.filter(bool),
    kind=st.sampled_from(list(Kind)).map(int),
    ctrl=st.lists(NUMBERS, max_size=4).map(tuple),
    data=st.lists(NUMBERS, max_size=4).map(tuple),
    start=NUMBERS,
    duration=NUMBERS,
    inputs=TEXTS,
    attrs=st.dictionaries(TEXTS, st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXTS, max_size=4),
)


@pytest.mark.parametrize(("value", "data"), [(0, b"\0"), (1, b"\1"), (127, b"\x7f"), (150, b"\x96\x01"), (-1, b"\xff" * 9 + b"\1")])
def test_varints_are_those_of_the_specification(value: int, data: bytes) -> None:
    assert wire.varint(value) == data
    assert wire.signed(wire.read_varint(data, 0)[0]) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_come_back(value: int) -> None:
    assert wire.signed(wire.read_varint(wire.varint(value), 0)[0]) == value
    assert wire.zigzag((value << 1) ^ (value >> 63)) == value


@given(NODES)
def test_nodes_come_back(node: Node) -> None:
    assert decode(encode(node)) == node


@given(NODES, st.data())
def test_damaged_nodes_are_read_or_refused(node: Node, data: st.DataObject) -> None:
    good = bytearray(encode(node))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] = data.draw(st.integers(0, 255))
    for bad in (bytes(good), bytes(good[:at])):
        try:
            decode(bad)
        except BadInput as error:
            assert str(error)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except BadInput as error:
        assert str(error)
