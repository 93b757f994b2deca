"""Chakra files beside readers that know nothing of this project: one written here from the wire format, and protobuf's own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.exchange.chakra import Coll, Kind, Node, encode
from sim.exchange.export import Exported, export_plan
from sim.exchange.tracefile import read, write
from sim.setting.bind import bind
from topologies.errors import BadInput

PLAN = {
    "model": "gpt2-124m",
    "seq_len": 256,
    "framework": "pytorch",
    "batch": {"global": 8, "micro": 1},
    "parallel": {"pp": 2, "dp_shard": 2},
}
NODE = {1: "id", 2: "name", 3: "type", 4: "ctrl_deps", 5: "data_deps", 6: "start_time_micros", 7: "duration_micros"}
"""Fields of `Node` in mlcommons/chakra, schema/protobuf/et_def.proto."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A small pipelined plan on 4 ranks, as files."""
    return export_plan(bind(PLAN, "dgx-h100"), tmp_path_factory.mktemp("chakra"))


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def _split(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        if key & 7 == 0:
            value, at = _number(data, at)
            yield key >> 3, value
        else:
            size, at = _number(data, at) if key & 7 == 2 else (8 if key & 7 == 1 else 4, at)
            yield key >> 3, data[at : at + size]
            at += size


def _independent(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Version and nodes; attributes as name -> (field, value)."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size, at = _number(data, at)
        messages.append(data[at : at + size])
        at += size
    nodes = []
    for message in messages[1:]:
        node: dict[str, Any] = {"attr": {}, "ctrl_deps": [], "data_deps": []}
        for number, value in _split(message):
            if number in (4, 5):
                at = 0
                while at < len(value):
                    one, at = _number(value, at)
                    node[NODE[number]].append(one)
            elif number == 10:
                (_, name), rest = _split(value)
                node["attr"][name.decode()] = rest
            else:
                node[NODE[number]] = value.decode() if number == 2 else value
        nodes.append(node)
    return dict(_split(messages[0]))[1].decode(), nodes


@pytest.mark.no_cover
def test_another_reader_sees_the_same(exported: Exported) -> None:
    for rank in range(4):
        path = Path(f"{exported.prefix}.{rank}.et")
        version, nodes = _independent(path)
        head, ours = read(path)
        assert version == head["version"] == "0.0.4" and head["rank"] == rank
        assert [(n["id"], n["name"], n["type"], n["ctrl_deps"], n["data_deps"], n.get("duration_micros", 0)) for n in nodes] == [
            (n.id, n.name, n.kind, list(n.ctrl), list(n.data), n.duration) for n in ours
        ]
        for raw, node in zip(nodes, ours, strict=True):
            for name, (field, value) in raw["attr"].items():
                kinds = {27: bool, 3: lambda v: struct.unpack("<d", v)[0], 29: bytes.decode, 9: int, 11: int, 13: int}
                assert node.attrs[name] == kinds[field](value), name


def test_nodes_are_what_astra_sim_asks_for(exported: Exported) -> None:
    """Ids from 0, dependencies on earlier nodes, `is_cpu_op` everywhere, and the attributes of each type of node."""
    sent, received = [], []
    for rank in range(4):
        _, nodes = read(Path(f"{exported.prefix}.{rank}.et"))
        assert [node.id for node in nodes] == list(range(len(nodes)))
        for node in nodes:
            assert all(dep < node.id for dep in (*node.ctrl, *node.data))
            assert isinstance(node.attrs["is_cpu_op"], bool)
            if node.kind == Kind.COLL:
                assert node.attrs["is_cpu_op"] is False and node.attrs["comm_type"] in set(Coll) and int(str(node.attrs["comm_size"])) > 0
            if node.kind in (Kind.SEND, Kind.RECV):
                ends = tuple(node.attrs[key] for key in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
                assert ends[node.kind == Kind.RECV] == rank
                (sent if node.kind == Kind.SEND else received).append(ends)
            if node.kind == Kind.COMP and node.attrs["is_cpu_op"] is False:
                assert int(str(node.attrs["tensor_size"])) > 0 and int(str(node.attrs["num_ops"])) >= 0
    assert sent and sorted(sent) == sorted(received) and len(set(sent)) == len(sent)


def test_rounding_to_microseconds_keeps_the_sum(exported: Exported) -> None:
    _, nodes = read(Path(f"{exported.prefix}.0.et"))
    lanes = {str(node.attrs["steptwin.lane"]) for node in nodes}
    for lane in lanes:
        mine = [node for node in nodes if node.attrs["steptwin.lane"] == lane and "steptwin.seconds" in node.attrs]
        exact = sum(float(str(node.attrs["steptwin.seconds"])) for node in mine) * 1e6
        assert abs(sum(node.duration for node in mine) - exact) <= 0.5 + 1e-6


def test_ranks_exported_apart_agree(exported: Exported, tmp_path: Path) -> None:
    one = export_plan(bind(PLAN, "dgx-h100"), tmp_path, ranks=(3,))
    assert one.ranks == 1
    assert Path(f"{one.prefix}.3.et").read_bytes() == Path(f"{exported.prefix}.3.et").read_bytes()
    with pytest.raises(BadInput, match="there is no rank 4"):
        export_plan(bind(PLAN, "dgx-h100"), tmp_path, ranks=(4,))


def test_google_protobuf_reads_it(exported: Exported) -> None:
    """Descriptors of the messages, built in code from the published field numbers."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory, unknown_fields  # type: ignore[import-untyped,unused-ignore]

    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto
    scalar = {"string": kind.TYPE_STRING, "uint64": kind.TYPE_UINT64, "double": kind.TYPE_DOUBLE, "bool": kind.TYPE_BOOL,
              "int64": kind.TYPE_INT64, "uint32": kind.TYPE_UINT32, "int32": kind.TYPE_INT32}  # fmt: skip
    tables = {
        "AttributeProto": [("name", 1, "string"), ("double_val", 3, "double"), ("int64_val", 9, "int64"), ("uint32_val", 11, "uint32"),
                           ("uint64_val", 13, "uint64"), ("bool_val", 27, "bool"), ("string_val", 29, "string")],
        "GlobalMetadata": [("version", 1, "string"), ("attr", 2, "*AttributeProto")],
        "Node": [("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "int32"), ("ctrl_deps", 4, "*uint64"), ("data_deps", 5, "*uint64"),
                 ("start_time_micros", 6, "uint64"), ("duration_micros", 7, "uint64"), ("attr", 10, "*AttributeProto")],
    }  # fmt: skip
    for name, rows in tables.items():
        message = file.message_type.add(name=name)
        for field, number, what in rows:
            label = kind.LABEL_REPEATED if what.startswith("*") else kind.LABEL_OPTIONAL
            one = message.field.add(name=field, number=number, label=label, type=scalar.get(what.lstrip("*"), kind.TYPE_MESSAGE))
            if what.lstrip("*") not in scalar:
                one.type_name = f".ChakraProtoMsg.{what.lstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    node_type = message_factory.GetMessageClass(pool.FindMessageTypeByName("ChakraProtoMsg.Node"))
    path = Path(f"{exported.prefix}.1.et")
    data, at, count = path.read_bytes(), 0, 0
    _, ours = read(path)
    while at < len(data):
        size, at = _number(data, at)
        if count:
            theirs, mine = node_type.FromString(data[at : at + size]), ours[count - 1]
            assert (theirs.id, theirs.name, theirs.type, theirs.duration_micros) == (mine.id, mine.name, mine.kind, mine.duration)
            assert tuple(theirs.ctrl_deps) == mine.ctrl and tuple(theirs.data_deps) == mine.data
            assert {a.name for a in theirs.attr} == set(mine.attrs)
            assert theirs.SerializeToString(deterministic=True)
            assert len(unknown_fields.UnknownFieldSet(theirs)) == 0
        at, count = at + size, count + 1
    assert count == len(ours) + 1


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([Node(0, "a", 4), Node(0, "b", 4)], "same id"),
        ([Node(0, "a", 4, data=(7,))], "depends on node 7"),
    ],
)
def test_graphs_that_cannot_be_are_refused(nodes: list[Node], says: str, tmp_path: Path) -> None:
    write(tmp_path / "x.0.et", map(encode, nodes))
    with pytest.raises(BadInput, match=says):
        read(tmp_path / "x.0.et")


def test_files_that_are_none_are_refused(exported: Exported, tmp_path: Path) -> None:
    whole = Path(f"{exported.prefix}.0.et").read_bytes()
    bad = tmp_path / "bad.0.et"
    for data in (b"", whole[:-3], b'{"schema": "1.0"}', whole[:40] + b"\xff" * 12 + whole[52:]):
        bad.write_bytes(data)
        with pytest.raises(BadInput, match=r"bad\.0\.et"):
            read(bad)
    with pytest.raises(BadInput, match="cannot be read"):
        read(tmp_path / "none.0.et")
