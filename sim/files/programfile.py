"""Programs as files: JSON lines, one op a line, plain or gzip by the file's name.

The first line is the head, then every segment with its ops, then every role. A program saved on a laptop is played on a
cluster without networkx or SimPy. Writing is atomic (a file is whole or absent), reading is bounded.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Union

import msgspec

from sim.files.runs import atomic
from sim.mesh import Mesh
from sim.program import Call, Op, Program, Role
from topologies.errors import BadInput, UnknownName

LARGEST = 2 << 30
"""Bytes of a program after unpacking: 6 million ops; more is no program but a bomb."""
LONGEST = 256 << 20
"""Bytes of one line (a role's calls stand on one)."""


class _Head(msgspec.Struct, tag="program", tag_field="line", frozen=True):
    name: str
    device: str
    mesh: Mesh
    steps: int
    resident: dict[str, int]
    notes: tuple[str, ...]
    ranks: tuple[tuple[str, int], ...]
    """Role and number of neighbours that play it."""


class _Segment(msgspec.Struct, tag="segment", tag_field="line", frozen=True):
    name: str
    ops: int


class _Role(msgspec.Struct, tag="role", tag_field="line", frozen=True):
    name: str
    threads: dict[str, tuple[Call, ...]]


_Line = Union[_Head, _Segment, _Role]


def save_program(program: Program, path: str | Path) -> None:
    """Writes the program to `path` (gzip when it ends in .gz), whole or not at all."""
    target = Path(path)
    with atomic(target) as file:
        _write(program, file, target.suffix == ".gz")


def _write(program: Program, file: IO[bytes], packed: bool) -> None:
    encode = msgspec.json.Encoder().encode
    lines = (encode(value) + b"\n" for value in _values(program))
    if not packed:
        file.writelines(lines)
        return
    # No name and no time inside: equal programs are equal bytes.
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as out:
        out.writelines(lines)


def _values(program: Program) -> Iterator[object]:
    ranks = tuple(runs(program.role_of))
    yield _Head(program.name, program.device, program.mesh, program.steps, program.resident, program.notes, ranks)
    for name, ops in program.segments.items():
        yield _Segment(name, len(ops))
        yield from ops
    for name, role in program.roles.items():
        yield _Role(name, {thread: tuple(calls) for thread, calls in role.threads.items()})


def load_program(path: str | Path) -> Program:
    """Reads what `save_program` wrote. Raises `BadInput` with the line that cannot be used."""
    source = Path(path)
    if not source.is_file():
        raise BadInput(f"program file {source} does not exist")
    try:
        with source.open("rb") as file:
            program = _read(_lines(gzip.GzipFile(fileobj=file) if source.suffix == ".gz" else file))
        check_names(program)
    except (BadInput, msgspec.MsgspecError) as error:
        raise BadInput(f"program file {source}: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"program file {source} cannot be unpacked: {error}") from None
    return program


def _lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    read = 0
    while line := file.readline(LONGEST + 1):
        read += len(line)
        if len(line) > LONGEST or read > LARGEST:
            raise BadInput(f"a program has at most {LARGEST} bytes, {LONGEST} in a line")
        yield line


def _read(lines: Iterator[bytes]) -> Program:
    decode = msgspec.json.Decoder(_Line).decode
    decode_op = msgspec.json.Decoder(Op).decode
    head = decode(next(lines, b"null"))
    if not isinstance(head, _Head):
        raise BadInput("the first line is not a program's head")
    segments: dict[str, tuple[Op, ...]] = {}
    roles: dict[str, Role] = {}
    for line in lines:
        value = decode(line)
        if isinstance(value, _Segment):
            segments[value.name] = tuple(decode_op(next(lines, b"null")) for _ in range(value.ops))
        elif isinstance(value, _Role):
            roles[value.name] = Role({**value.threads})
        else:
            raise BadInput("a second head")
    if head.device not in ("cuda", "cpu"):
        raise UnknownName("device", head.device, ("cuda", "cpu"))
    return Program(
        name=head.name,
        device="cuda" if head.device == "cuda" else "cpu",
        mesh=head.mesh,
        segments=segments,
        roles=roles,
        role_of=expand(head.ranks),
        steps=head.steps,
        resident=head.resident,
        notes=head.notes,
    )


RANKS = 1 << 20
"""More ranks than any machine has: a file cannot ask for more memory than it is worth."""


def runs(names: tuple[str, ...]) -> list[tuple[str, int]]:
    """Neighbours that are equal, with their number: (a, a, b) -> [(a, 2), (b, 1)]."""
    found: list[tuple[str, int]] = []
    for name in names:
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1] + 1)
        else:
            found.append((name, 1))
    return found


def expand(counted: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """The inverse of `runs`. Raises `BadInput` beyond `RANKS`."""
    if any(count < 1 for _, count in counted) or sum(count for _, count in counted) > RANKS:
        raise BadInput(f"a program has at most {RANKS} ranks, at least one in each run")
    return tuple(name for name, count in counted for _ in range(count))


def check_names(program: Program) -> None:
    """Raises `BadInput` when a rank has no role, a call no segment, or the mesh another number of ranks."""
    if program.world != program.mesh.world:
        raise BadInput(f"the program has roles for {program.world} ranks, its mesh has {program.mesh.world}")
    for name in dict.fromkeys(program.role_of):
        if name not in program.roles:
            raise UnknownName("role", name, program.roles, "the program's ranks")
    for name, role in program.roles.items():
        for thread, calls in role.threads.items():
            for segment in dict.fromkeys(call.segment for call in calls):
                if segment not in program.segments:
                    raise UnknownName("segment", segment, program.segments, f"thread {thread} of role {name}")
