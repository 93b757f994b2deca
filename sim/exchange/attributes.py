"""Attributes of Chakra's nodes on the wire: AttributeProto of mlcommons/chakra, schema/protobuf/et_def.proto.

An attribute is a name and one value. Each scalar type has a field number of its own, and a list of this type has the next number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

from sim.exchange import wire
from topologies.errors import BadInput

Attr = bool | int | float | str | tuple[int | float | str, ...]
_DOUBLE, _INT64, _UINT32, _UINT64, _BOOL, _STRING = 3, 9, 11, 13, 27, 29
_INTEGERS = {"comm_type": _INT64, "comm_src": _UINT32, "comm_dst": _UINT32, "comm_tag": _UINT32, "comm_priority": _UINT32}
"""Field numbers that Chakra's generator and converters use for these attributes; other integers are uint64."""


def _attr(name: str, value: Attr) -> bytes:
    head = wire.bytes_field(1, name.encode())
    if isinstance(value, bool):
        return head + wire.number_field(_BOOL, int(value))
    if isinstance(value, int):
        return head + wire.number_field(_INTEGERS.get(name, _UINT64 if value >= 0 else _INT64), value)
    if isinstance(value, float):
        return head + wire.double_field(_DOUBLE, value)
    if isinstance(value, str):
        return head + wire.bytes_field(_STRING, value.encode())
    raise BadInput(f"attribute {name[:40]} = {str(value)[:40]}: lists are read, not written")


def encode_attrs(attrs: dict[str, Attr], number: int = 10) -> bytes:
    """Encodes attributes as fields with this number (10 in a node, 2 in the metadata)."""
    return b"".join(wire.bytes_field(number, _attr(name, value)) for name, value in attrs.items())


_READ: dict[int, Callable[[int], int]] = {7: wire.signed, 9: wire.signed, 15: wire.zigzag, 17: wire.zigzag, 27: bool}
"""Field number -> decoder of a varint: int32 and int64 are signed, sint32 and sint64 zigzag, one is a bool; others are unsigned."""
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}


def _scalars(number: int, value: wire.Value) -> list[bool | int | float | str]:
    """Values of scalar field `number` of an AttributeProto: one, or a packed list."""
    if number in _FIXED:
        form = _FIXED[number]
        if isinstance(value, int) or len(value) % struct.calcsize(form):
            raise BadInput(f"attribute field {number} has no whole number of values")
        return [one[0] for one in struct.iter_unpack(form, value)]
    if number == _STRING:
        return [wire.text(value)]
    if number == 31:
        return [value.hex() if isinstance(value, bytes) else ""]
    how = _READ.get(number, int)
    return [how(one) for one in wire.varints(value)]


@lru_cache(1 << 12)
def read_attr(data: wire.Value) -> tuple[str, Attr]:
    """Name and value of the attribute in a field; the value is 0 where it has none. Raises `BadInput`. Cached, because most nodes have the
    same few attributes."""
    if isinstance(data, int):
        raise BadInput("a number stands where an attribute must")
    name, found = "", list[bool | int | float | str]()
    many = False
    for number, _, value in wire.fields(data):
        if number == 1:
            name = wire.text(value)
        elif 3 <= number <= 32 and number % 2:
            found = _scalars(number, value)
        elif 4 <= number <= 32:
            if isinstance(value, int):
                raise BadInput(f"attribute {name[:40]}: a number stands where a list must")
            many = True
            found = [one for n, _, part in wire.fields(value) if n == 1 for one in _scalars(number - 1, part)]
    if many:
        return name, tuple(found)
    return name, found[0] if found else 0
