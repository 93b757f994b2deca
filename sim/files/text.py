"""Programs as text and as files: one op a line, and an exact way back.

    program llama-2l device=cuda steps=1
    mesh pp=2 tp=4 order=pp,dp_replicate,dp_shard,cp,tp ep=1
    segment fwd
      collective comm.tp L0.gather name=all_gather bytes=4096 group=tp
      compute compute L0.qkv gemm(m=8,n=8,k=8) cls=gemm alloc=128
    role stage0
      thread host
        call fwd s0/mb0/fwd index=0 step=0
    ranks 8 stage0

An op's line is its kind, lane and id, then its works, then `field=value` for what is not the default (a flag stands
alone: `blocking`). Words with blanks, quotes or `=` are JSON strings. `#` starts a comment line. `sim.files.programfile`
keeps the same content as JSON lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeVar

from sim.files.optext import parse_op
from sim.files.programfile import check_names, expand, load_program, runs, save_program
from sim.mesh import Mesh
from sim.program import KINDS, Call, Op, Program, Role
from sim.words import number, quote, split, unquote
from topologies.errors import BadInput, UnknownName

__all__ = ["load_program", "parse_op", "parse_program", "save_program", "show_program"]

T = TypeVar("T")


def show_program(program: Program) -> str:
    """The whole program as text; `parse_program` reads it back exactly."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    mesh = program.mesh
    yield f"program {quote(program.name)} device={program.device} steps={program.steps}"
    sizes = "".join(f"{axis}={size} " for axis, size in mesh.sizes.items())
    yield f"mesh {sizes}order={','.join(mesh.order)} ep={mesh.ep}{f' etp={mesh.etp}' if mesh.etp else ''}{f' ulysses={mesh.ulysses}' if mesh.ulysses > 1 else ''}{f' inner={mesh.inner}' if mesh.inner > 1 else ''}"
    for what, size in program.resident.items():
        yield f"resident {quote(what)} {size}"
    for note in program.notes:
        yield f"note {json.dumps(note)}"
    for name, ops in program.segments.items():
        yield f"segment {quote(name)}"
        for op in ops:
            yield f"  {op}"
    for name, role in program.roles.items():
        yield f"role {quote(name)}"
        for thread, calls in role.threads.items():
            yield f"  thread {quote(thread)}"
            for call in calls:
                yield f"    call {quote(call.segment)} {quote(call.at)} index={call.index} step={call.step}"
    for name, count in runs(program.role_of):
        yield f"ranks {count} {quote(name)}"


class _Reader:
    """Takes a program's lines one after the other."""

    def __init__(self) -> None:
        self.head: dict[str, str] = {}
        self.mesh: Mesh | None = None
        self.resident: dict[str, int] = {}
        self.notes: list[str] = []
        self.segments: dict[str, list[Op]] = {}
        self.roles: dict[str, dict[str, list[Call]]] = {}
        self.ranks: list[tuple[str, int]] = []
        self._ops: list[Op] | None = None
        self._role: dict[str, list[Call]] | None = None
        self._calls: list[Call] | None = None

    def take(self, line: str) -> None:
        words = split(line)
        if words[0] in KINDS:
            if self._ops is None:
                raise BadInput("an op stands before the first segment")
            self._ops.append(parse_op(line))
            return
        reader = _READERS.get(words[0])
        if reader is None:
            raise UnknownName("word", words[0], (*_READERS, *KINDS))
        reader(self, words[1:])

    def take_head(self, words: list[str]) -> None:
        self.head = {"name": unquote(_at(words, 0, "a name"))} | _pairs(words[1:], ("device", "steps"))

    def take_mesh(self, words: list[str]) -> None:
        pairs = dict(word.partition("=")[::2] for word in words)
        order = tuple(pairs.pop("order", "").split(","))
        ep = number(pairs.pop("ep", "1"), "ep of the mesh")
        etp = number(pairs.pop("etp", "0"), "etp of the mesh")
        ulysses = number(pairs.pop("ulysses", "1"), "ulysses of the mesh")
        inner = number(pairs.pop("inner", "1"), "inner of the mesh")
        self.mesh = Mesh({axis: number(size, f"{axis} of the mesh") for axis, size in pairs.items()}, order, ep, etp, ulysses, inner)

    def take_resident(self, words: list[str]) -> None:
        self.resident[unquote(_at(words, 0, "a name"))] = number(_at(words, 1, "bytes"), "resident bytes")

    def take_note(self, words: list[str]) -> None:
        self.notes.append(unquote(_at(words, 0, "a text")))

    def take_segment(self, words: list[str]) -> None:
        self._ops = _new(self.segments, "segment", unquote(_at(words, 0, "a name")), [])

    def take_role(self, words: list[str]) -> None:
        self._role = _new(self.roles, "role", unquote(_at(words, 0, "a name")), {})
        self._calls = None

    def take_thread(self, words: list[str]) -> None:
        if self._role is None:
            raise BadInput("a thread stands before the first role")
        self._calls = _new(self._role, "thread", unquote(_at(words, 0, "a name")), [])

    def take_call(self, words: list[str]) -> None:
        if self._calls is None:
            raise BadInput("a call stands before the first thread of its role")
        pairs = _pairs(words[2:], ("index", "step"))
        index, step = (number(pairs[key], f"{key} of a call") for key in ("index", "step"))
        self._calls.append(Call(unquote(words[0]), unquote(_at(words, 1, "where it stands")), index, step))

    def take_ranks(self, words: list[str]) -> None:
        self.ranks.append((unquote(_at(words, 1, "a role")), number(_at(words, 0, "a number"), "ranks")))

    def program(self) -> Program:
        if not self.head or self.mesh is None:
            raise BadInput("a program's text starts with the lines `program ...` and `mesh ...`")
        device = self.head["device"]
        if device not in ("cuda", "cpu"):
            raise UnknownName("device", device, ("cuda", "cpu"))
        return Program(
            name=self.head["name"],
            device="cuda" if device == "cuda" else "cpu",
            mesh=self.mesh,
            segments={name: tuple(ops) for name, ops in self.segments.items()},
            roles={name: Role({thread: tuple(calls) for thread, calls in threads.items()}) for name, threads in self.roles.items()},
            role_of=expand(tuple(self.ranks)),
            steps=number(self.head["steps"], "steps"),
            resident=self.resident,
            notes=tuple(self.notes),
        )


_READERS = {
    "program": _Reader.take_head,
    "mesh": _Reader.take_mesh,
    "resident": _Reader.take_resident,
    "note": _Reader.take_note,
    "segment": _Reader.take_segment,
    "role": _Reader.take_role,
    "thread": _Reader.take_thread,
    "call": _Reader.take_call,
    "ranks": _Reader.take_ranks,
}


def parse_program(text: str) -> Program:
    """The inverse of `show_program`. Raises `BadInput` with the number of the line, and on names that lead nowhere."""
    reader = _Reader()
    for at, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            reader.take(line)
        except BadInput as error:
            raise BadInput(f"line {at}: {error}") from None
    program = reader.program()
    check_names(program)
    return program


def _pairs(words: list[str], keys: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(word.partition("=")[::2] for word in words)
    if sorted(pairs) != sorted(keys):
        raise BadInput(f"expected {' '.join(f'{key}=...' for key in keys)}, got {' '.join(words)[:80]!r}")
    return pairs


def _at(words: list[str], index: int, what: str) -> str:
    if index >= len(words):
        raise BadInput(f"{what} is missing")
    return words[index]


def _new(table: dict[str, T], what: str, name: str, value: T) -> T:
    if name in table:
        raise BadInput(f"{what} {name[:80]} stands twice")
    table[name] = value
    return value
