"""Faults inside functions: which there are in a room, a sample of them, and the code of a function that has one."""

from __future__ import annotations

import ast
import gc
import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

from tests.reliability.mutation import HOME, changed, children, put

BY_HAND = "sim/cost/fit"
"""Fits are run by hand with the raw measurements: no test without them reaches these files."""
Key = tuple[str, int]
"""A function: file and first line (of its first decorator)."""


class Fault(NamedTuple):
    """One place in a function that may be changed, and which of its changes it is."""

    function: Key
    place: int
    change: int


def functions(tree: ast.AST, path: str) -> Iterator[tuple[Key, list[ast.stmt]]]:
    """The outermost functions of a file, methods included, with their bodies: what lies inside belongs to them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (path, min([node.lineno, *(one.lineno for one in node.decorator_list)])), node.body
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try):
            yield from functions(node, path)


def faults(path: str) -> list[Fault]:
    """Every fault that is known for a file."""
    tree = ast.parse(Path(path).read_text("utf-8"))
    return [
        Fault(key, at, number)
        for key, body in functions(tree, path)
        for at, (_, _, old) in enumerate(_places(body))
        for number in range(len(changed(old)))
    ]


def _places(body: list[ast.stmt]) -> list[tuple[ast.AST, Callable[[ast.AST], None], ast.AST]]:
    """(parent, how to put another there, what is there) of every node in a function's body."""
    found = []
    for parent, field, at in children(ast.Module(body, [])):
        value = getattr(parent, field)
        found.append((parent, lambda new, p=parent, f=field, i=at: put(p, f, i, new), value if at < 0 else value[at]))
    return found


def damaged(fault: Fault) -> tuple[str, CodeType]:
    """(line and change, the function's new code)."""
    path, first = fault.function
    tree = ast.parse(Path(path).read_text("utf-8"))
    body = next(body for key, body in functions(tree, path) if key == fault.function)
    _, exchange, old = _places(body)[fault.place]
    new = changed(old)[fault.change]
    told = f"{Path(path).relative_to(HOME)}:{getattr(old, 'lineno', first)}: {ast.unparse(old)[:90]}  ->  {ast.unparse(new)[:90]}"
    exchange(new)
    whole = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
    return told, next(code for code in codes(whole) if code.co_firstlineno == first and code.co_name not in ("<module>", "<lambda>"))


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all inside it, the outer ones first."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from codes(one)


def loaded(paths: Sequence[str]) -> dict[Key, list[FunctionType]]:
    """The functions of these files as they are in memory, all files imported."""
    for path in paths:
        parts = Path(path).relative_to(HOME).with_suffix("").parts
        importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    found: dict[Key, list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename in paths:
            found.setdefault((one.__code__.co_filename, one.__code__.co_firstlineno), []).append(one)
    return found


def drawn(rooms: Sequence[str], each: int, seed: int) -> tuple[dict[str, int], list[Fault]]:
    """(faults known by room, those drawn without bias: `each` of every room, 0: all)."""
    known, found = {}, []
    for room in rooms:
        files = [path for path in sorted((HOME / room).rglob("*.py")) if not path.is_relative_to(HOME / BY_HAND)]
        here = [fault for path in files for fault in faults(str(path))]
        known[room] = len(here)
        random.Random(f"{seed} {room}").shuffle(here)
        found += here[: each or None]
    return known, found
