"""Chakra's execution traces as files: one `NAME.RANK.et` for each rank.

A file is a sequence of messages, each after its length as a varint: first a `GlobalMetadata`, then `Node`s.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from sim.exchange import wire
from sim.exchange.attributes import Attr, encode_attrs, read_attr
from sim.exchange.chakra import Node, decode
from topologies.errors import BadInput

VERSION = "0.0.4"
"""Of the schema, as Chakra's own generator writes it."""
LARGEST = 2 << 30
"""Bytes of one file."""
LONGEST = 64 << 20
"""Bytes of one node."""


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
            name, attr = read_attr(value)
            found[name] = attr
    return found


def _check(nodes: list[Node]) -> None:
    """Raises `BadInput` for ids that stand twice, or dependencies that lead nowhere."""
    ids = {node.id for node in nodes}
    if len(ids) < len(nodes):
        raise BadInput("two nodes have the same id")
    for node in nodes:
        for dep in (*node.ctrl, *node.data):
            if dep not in ids:
                raise BadInput(f"node {node.id} ({node.name[:60]}) depends on node {dep}, which is not there")
