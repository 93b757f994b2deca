"""Attributes of Chakra nodes in every form that its schema has, and files that cannot be written or read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.exchange import tracefile, wire
from sim.exchange.attributes import encode_attrs, read_attr
from sim.exchange.chakra import Node, decode, encode
from sim.exchange.tracefile import read, write
from topologies.errors import BadInput


def attribute(number: int, value: bytes) -> Node:
    """A node with one attribute `a` of field `number` of the schema's AttributeProto."""
    return decode(encode(Node(1, "n", 4)) + wire.bytes_field(10, wire.bytes_field(1, b"a") + wire.bytes_field(number, value)))


def packed(*values: int) -> bytes:
    return wire.bytes_field(1, b"".join(map(wire.varint, values)))


@pytest.mark.parametrize(
    ("number", "value", "found"),
    [
        (4, wire.bytes_field(1, struct.pack("<2d", 0.5, -2.0)), (0.5, -2.0)),
        (6, wire.bytes_field(1, struct.pack("<2f", 0.5, 4.0)), (0.5, 4.0)),
        (8, packed(3, -4), (3, -4)),
        (10, packed(7, -(2**40)), (7, -(2**40))),
        (14, packed(7, 2**64 - 1), (7, 2**64 - 1)),
        (18, packed(0, 1, 2, 3), (0, -1, 1, -2)),
        (20, wire.bytes_field(1, struct.pack("<2I", 1, 2**32 - 1)), (1, 2**32 - 1)),
        (28, packed(1, 0), (True, False)),
        (30, wire.bytes_field(1, b"x") + wire.bytes_field(1, b"yz"), ("x", "yz")),
        (31, b"\x01\xff", "01ff"),
        (32, wire.bytes_field(1, b"\x01") + wire.bytes_field(1, b"\xff"), ("01", "ff")),
        (10, b"", ()),
    ],
)
def test_lists_and_bytes_are_read(number: int, value: bytes, found: object) -> None:
    assert attribute(number, value).attrs == {"a": found}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (wire.bytes_field(2, b"n") + wire.number_field(10, 5), "a number stands where an attribute must"),
        (wire.bytes_field(2, b"n") + wire.bytes_field(10, wire.bytes_field(1, b"a") + wire.number_field(10, 5)), "where a list must"),
        (wire.bytes_field(2, b"n") + wire.bytes_field(10, wire.bytes_field(3, b"1234567")), "no whole number of values"),
        (wire.number_field(2, 5), "a number stands where a text must"),
    ],
)
def test_numbers_in_the_place_of_more_are_refused(message: bytes, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        decode(message)


def test_lists_are_not_written() -> None:
    with pytest.raises(BadInput, match="lists are read, not written"):
        encode(Node(1, "n", 4, attrs={"dims": (1, 2)}))


def test_a_trace_that_breaks_off_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.0.et"
    write(path, [encode(Node(1, "kept", 4))])

    def nodes() -> Iterator[bytes]:
        yield encode(Node(1, "new", 4))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, nodes())
    assert [one.name for one in tmp_path.iterdir()] == ["a.0.et"]
    assert [node.name for node in read(path)[1]] == ["kept"]


def test_files_that_are_too_large_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.0.et"
    write(path, [encode(Node(1, "n", 4))], {"schema": "x"})
    assert read(path)[0]["schema"] == "x"
    size = path.stat().st_size
    monkeypatch.setattr(tracefile, "LARGEST", size - 1)
    with pytest.raises(BadInput, match=rf"a\.0\.et: it has {size} bytes, at most {size - 1} are read"):
        read(path)


def test_an_attribute_that_stands_at_many_nodes_is_read_once() -> None:
    (_, _, value), *_ = wire.fields(encode_attrs({"steptwin.class": "comm.ep"}))
    assert isinstance(value, bytes)
    assert read_attr(value) == ("steptwin.class", "comm.ep")
    assert read_attr(bytes(bytearray(value))) is read_attr(value)
