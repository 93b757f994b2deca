"""Protocol buffers on the wire: the three kinds of field that Chakra's messages are made of.

A message is a sequence of fields; each begins with a varint (number << 3 | kind), kind 0 a varint, 1 eight bytes, 2 a length and so many
bytes, 5 four bytes (protobuf.dev, "Encoding"). Reading is bounded by the data that is there; nothing of it is executed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from topologies.errors import BadInput

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
Value = int | bytes
"""A field as it came: varints as unsigned integers, all others as bytes."""


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number as its 64-bit complement."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def number_field(number: int, value: int) -> bytes:
    """A field that holds an integer, a bool or an enum."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field that holds text, a message or a packed list."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def double_field(number: int, value: float) -> bytes:
    """A field that holds a double."""
    return varint(number << 3 | EIGHT) + struct.pack("<d", value)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where the next byte stands). Raises `BadInput` for one that does not end, or has more than 64 bits."""
    if at < len(data) and data[at] < 0x80:  # most are so short
        return data[at], at + 1
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
    raise BadInput("the data ends inside a number")


def fields(data: bytes) -> Iterator[tuple[int, int, Value]]:
    """(number, kind, value) of each field of a message, in order. Raises `BadInput` where the data is no message."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise BadInput("a field has number 0")
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = read_varint(data, at)
        elif kind in (EIGHT, FOUR):
            length = 8 if kind == EIGHT else 4
        else:
            raise BadInput(f"field {number} has wire type {kind}, which no message of this schema uses")
        if length > len(data) - at:
            raise BadInput(f"field {number} is longer than what is left")
        yield number, kind, data[at : at + length]
        at += length


def varints(value: Value) -> list[int]:
    """The numbers of a repeated field: one, or packed many."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = read_varint(value, at)
        found.append(one)
    return found


def signed(value: int) -> int:
    """A varint that holds an int32 or int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """A varint that holds a sint32 or sint64."""
    return (value >> 1) ^ -(value & 1)


def text(value: Value) -> str:
    """A field as text. Raises `BadInput` where it is none."""
    if isinstance(value, int):
        raise BadInput("a number stands where a text must")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("a text is no UTF-8") from None
