"""Nodes of a Chakra execution trace, as ASTRA-sim and others read them, and their encoding as messages.

The schema is mlcommons/chakra, schema/protobuf/et_def.proto. Times are whole microseconds. Attributes that ASTRA-sim's feeder asks for:
`is_cpu_op`, `num_ops` (FLOPs), `tensor_size`, `comm_type`, `comm_size` (bytes), `comm_src`, `comm_dst`, `comm_tag`, `pg_name`
(src/feeder_v3/et_feeder_node.cpp).
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from sim.exchange import wire
from sim.exchange.attributes import Attr, encode_attrs, read_attr
from topologies.errors import BadInput


class Kind(IntEnum):
    """Chakra's NodeType."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    SEND = 5
    RECV = 6
    COLL = 7


class Coll(IntEnum):
    """Chakra's CollectiveCommType, with this project's names."""

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
    """Control dependencies: ids of nodes that must have ended, because the host launches in this order."""
    data: tuple[int, ...] = ()
    """Data dependencies: ids of nodes that must have ended, because their results or their lane are needed."""
    start: int = 0
    duration: int = 0
    inputs: str = ""
    """The field `values` of the inputs. In PyTorch's traces it holds the process groups."""
    attrs: dict[str, Attr] = {}


def encode(node: Node, attrs: bytes | None = None) -> bytes:
    """Encodes a node as a message. `attrs`: its encoded attributes; None: those of the node are encoded."""
    parts = [wire.number_field(1, node.id), wire.bytes_field(2, node.name.encode()), wire.number_field(3, node.kind)]
    for number, deps in ((4, node.ctrl), (5, node.data)):
        if deps:
            parts.append(wire.bytes_field(number, b"".join(map(wire.varint, deps))))
    parts += [wire.number_field(number, value) for number, value in ((6, node.start), (7, node.duration)) if value]
    if node.inputs:
        parts.append(wire.bytes_field(8, wire.bytes_field(1, node.inputs.encode())))
    parts.append(encode_attrs(node.attrs) if attrs is None else attrs)
    return b"".join(parts)


def decode(message: bytes) -> Node:
    """Decodes a message to a node. Raises `BadInput`."""
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
            name, attr = read_attr(value)
            node.attrs[name] = attr
    if not seen and node.name == "" and not node.attrs:
        raise BadInput("a message is no node: it has neither type, nor name, nor attributes")
    return node
