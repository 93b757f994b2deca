"""Chakra's execution traces as files: one `NAME.RANK.et` for each rank, read by ASTRA-sim and others.

The schema is mlcommons/chakra, schema/protobuf/et_def.proto: a file is a sequence of messages, each after its length as a varint, first
a `GlobalMetadata`, then `Node`s. Times are whole microseconds. Attributes that ASTRA-sim's feeder asks for: `is_cpu_op`, `num_ops`
(FLOPs), `tensor_size`, `comm_type`, `comm_size` (bytes), `comm_src`, `comm_dst`, `comm_tag`, `pg_name` (src/feeder_v3/et_feeder_node.cpp).
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from pathlib import Path

import msgspec

from sim.exchange import wire
from topologies.errors import BadInput

VERSION = "0.0.4"
"""Of the schema, as Chakra's own generator writes it."""
LARGEST = 2 << 30
"""Bytes of one file."""
LONGEST = 64 << 20
"""Bytes of one node."""
Attr = bool | int | float | str | tuple[int | float | str, ...]


class Kind(IntEnum):
    """NodeType."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    SEND = 5
    RECV = 6
    COLL = 7


class Coll(IntEnum):
    """CollectiveCommType; the names are this project's."""

    all_reduce = 0
    reduce = 1
    all_gather = 2
    gather = 3
    scatter = 4
    broadcast = 5
    all_to_all = 6
    reduce_scatter = 7
    reduce_scatter_block = 8
    barrier = 9


class Node(msgspec.Struct, omit_defaults=True, gc=False):
    """One node of a rank's graph. `start` and `duration` in microseconds."""

    id: int
    name: str = ""
    kind: int = 0
    ctrl: tuple[int, ...] = ()
    """Nodes that must have ended because the host launches in this order."""
    data: tuple[int, ...] = ()
    """Nodes that must have ended because their results, or their lane, are needed."""
    start: int = 0
    duration: int = 0
    inputs: str = ""
    """`values` of the inputs: PyTorch's traces keep their process groups there."""
    attrs: dict[str, Attr] = {}


_DOUBLE, _INT64, _UINT32, _UINT64, _BOOL, _STRING = 3, 9, 11, 13, 27, 29
_INTEGERS = {"comm_type": _INT64, "comm_src": _UINT32, "comm_dst": _UINT32, "comm_tag": _UINT32, "comm_priority": _UINT32}
"""Fields in which Chakra's generator and converters keep these attributes; other integers are uint64."""


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
    """Attributes as the fields `number` of a message (10 of a node, 2 of the metadata)."""
    return b"".join(wire.bytes_field(number, _attr(name, value)) for name, value in attrs.items())


def encode(node: Node, attrs: bytes | None = None) -> bytes:
    """A node's message. `attrs`: its attributes, where they are encoded already."""
    parts = [wire.number_field(1, node.id), wire.bytes_field(2, node.name.encode()), wire.number_field(3, node.kind)]
    for number, deps in ((4, node.ctrl), (5, node.data)):
        if deps:
            parts.append(wire.bytes_field(number, b"".join(map(wire.varint, deps))))
    parts += [wire.number_field(number, value) for number, value in ((6, node.start), (7, node.duration)) if value]
    if node.inputs:
        parts.append(wire.bytes_field(8, wire.bytes_field(1, node.inputs.encode())))
    parts.append(encode_attrs(node.attrs) if attrs is None else attrs)
    return b"".join(parts)


def write(path: Path, messages: Iterable[bytes], attrs: dict[str, Attr] | None = None) -> int:
    """Writes a trace of encoded nodes with `attrs` in its metadata: first beside it, then moved there in one piece. Returns the nodes' number."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    count = 0
    try:
        with os.fdopen(handle, "wb") as file:
            head = wire.bytes_field(1, VERSION.encode()) + encode_attrs(attrs or {}, 2)
            file.write(wire.varint(len(head)) + head)
            for message in messages:
                file.write(wire.varint(len(message)) + message)
                count += 1
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return count


def read(path: Path) -> tuple[dict[str, Attr], list[Node]]:
    """A trace: its metadata's attributes (with `version`), and its nodes in the file's order.

    Raises `BadInput` with the file and the number of the message that cannot be used.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise BadInput(f"it has {size} bytes, at most {LARGEST} are read")
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"Chakra trace {path} cannot be read: {error.strerror}") from None
    except BadInput as error:
        raise BadInput(f"Chakra trace {path}: {error}") from None
    at, found = 0, list[Node]()
    head: dict[str, Attr] | None = None
    try:
        for message in _messages(data):
            if head is None:
                head = _metadata(message)
            else:
                found.append(decode(message))
            at += 1
        if head is None:
            raise BadInput("the file is empty")
        _check(found)
    except BadInput as error:
        raise BadInput(f"Chakra trace {path}, message {at}: {error}. It must be of the schema mlcommons/chakra et_def.proto") from None
    return head, found


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = wire.read_varint(data, at)
        if length > LONGEST or length > len(data) - at:
            raise BadInput(f"a message of {length} bytes, of which {len(data) - at} are there")
        yield data[at : at + length]
        at += length


def _metadata(message: bytes) -> dict[str, Attr]:
    found: dict[str, Attr] = {}
    for number, _, value in wire.fields(message):
        if number == 1:
            found["version"] = wire.text(value)
        elif number == 2:
            name, attr = _read_attr(value)
            found[name] = attr
    return found


def decode(message: bytes) -> Node:
    """The node in a message. Raises `BadInput`."""
    node = Node(0, attrs={})
    seen = False
    for number, _, value in wire.fields(message):
        if number in (1, 3, 6, 7):
            if not isinstance(value, int):
                raise BadInput(f"field {number} of a node is no number")
            setattr(node, {1: "id", 3: "kind", 6: "start", 7: "duration"}[number], value)
            seen = seen or number == 3
        elif number == 2:
            node.name = wire.text(value)
        elif number == 4:
            node.ctrl += tuple(wire.varints(value))
        elif number == 5:
            node.data += tuple(wire.varints(value))
        elif number == 8 and isinstance(value, bytes):
            node.inputs = next((wire.text(v) for n, _, v in wire.fields(value) if n == 1), "")
        elif number == 10:
            name, attr = _read_attr(value)
            node.attrs[name] = attr
    if not seen and node.name == "" and not node.attrs:
        raise BadInput("a message is no node: it has neither type, nor name, nor attributes")
    return node


_READ: dict[int, Callable[[int], int]] = {7: wire.signed, 9: wire.signed, 15: wire.zigzag, 17: wire.zigzag, 27: bool}
"""How a varint attribute is read, by its field: int32 and int64 signed, sint32 and sint64 zigzag, bool; the others as they come."""


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


def _read_attr(data: wire.Value) -> tuple[str, Attr]:
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


def _check(nodes: list[Node]) -> None:
    """Raises `BadInput` for ids that stand twice, or dependencies that lead nowhere."""
    ids = {node.id for node in nodes}
    if len(ids) < len(nodes):
        raise BadInput("two nodes have the same id")
    for node in nodes:
        for dep in (*node.ctrl, *node.data):
            if dep not in ids:
                raise BadInput(f"node {node.id} ({node.name[:60]}) depends on node {dep}, which is not there")
