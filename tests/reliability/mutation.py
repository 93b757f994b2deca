"""Small faults put into one file at a time: do its tests see them? `python -m tests.reliability.mutation FILE TESTS... [--most N]`.

Each fault changes one operator, comparison, number or truth value (the operators of DeMillo, Lipton and Sayward 1978 that
matter in arithmetic code). Every mutant runs in a forked process that imports the changed module in place of the file's own, so
the tree is never touched. Prints the faults that all tests let pass, and the share that they caught.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

import hypothesis  # noqa: F401 - loaded once here, not in every child
import pytest

HOME = Path(__file__).parents[2]
LIMIT = 20
"""Seconds that the tests of one mutant may take: then it counts as caught (it hangs)."""
COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


def changed(node: ast.AST) -> list[ast.AST]:
    """The node with one fault, in every way that is known."""
    found: list[ast.AST] = []
    new = copy.copy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in COMPARE:
        new.ops = [COMPARE[type(new.ops[0])](), *new.ops[1:]]
        found.append(new)
    elif isinstance(new, ast.BinOp | ast.AugAssign) and type(new.op) in ARITHMETIC:
        new.op = ARITHMETIC[type(new.op)]()
        found.append(new)
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        found.append(new)
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        found.append(new.operand)
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        new.value = not new.value
        found.append(new)
    elif isinstance(new, ast.Constant) and isinstance(new.value, int | float):
        new.value = new.value + 1
        found.append(new)
    return found


def children(node: ast.AST) -> Iterator[tuple[ast.AST, str, int]]:
    """(parent, field, index or -1) of every place below that may be changed; annotations are none."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(-1, value)]:
            if isinstance(child, ast.AST):
                yield node, field, at
                yield from children(child)


def mutants(source: str) -> Iterator[tuple[str, CodeType]]:
    """(line and change, code) of every mutant of a file."""
    tree = ast.parse(source)
    for parent, field, at in list(children(tree)):
        value = getattr(parent, field)
        old = value if at < 0 else value[at]
        for new in changed(old):
            put(parent, field, at, new)
            told = f"{getattr(old, 'lineno', 0)}: {ast.unparse(old)[:60]}  ->  {ast.unparse(new)[:60]}"
            yield told, compile(ast.fix_missing_locations(tree), "<mutant>", "exec")
            put(parent, field, at, old)


def put(parent: ast.AST, field: str, at: int, node: ast.AST) -> None:
    if at < 0:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[at] = node


class Overlay(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives other code for one module."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of the changed module; None for all others."""
        if name != self.name:
            return None
        package = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, self.path, loader=self, submodule_search_locations=package)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the changed code as the module."""
        exec(self.code, module.__dict__)


def caught(name: str, path: Path, code: CodeType, tests: Sequence[str]) -> bool:
    """Whether the tests fail (or hang) with this code for the module."""
    child = os.fork()
    if child == 0:
        # Nobody must hear of what fails here: the child ends by itself, without handlers of its parent.
        signal.alarm(LIMIT)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        sys.meta_path.insert(0, Overlay(name, path, code))
        try:
            os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])) != 0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] != 0


def main(words: Sequence[str]) -> int:
    """Mutates a file and prints what its tests let pass; 1 where they fail on the file as it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--most", type=int, default=60, help="mutants, drawn without bias")
    parser.add_argument("--seconds", type=float, default=300.0)
    args = parser.parse_args(words)
    path = args.file.resolve()
    parts = path.relative_to(HOME).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as place:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = place
        if caught(name, path, compile(path.read_text("utf-8"), str(path), "exec"), args.tests):
            print(f"the tests fail on {args.file} as it is")
            return 1
        drawn = list(mutants(path.read_text("utf-8")))
        random.Random(0).shuffle(drawn)
        begin, seen, alive = time.monotonic(), 0, []
        for told, code in drawn[: args.most]:
            if time.monotonic() - begin > args.seconds:
                break
            seen += 1
            if not caught(name, path, code, args.tests):
                alive.append(told)
                print(f"  {args.file}:{told}", flush=True)
    print(f"{args.file}: {seen - len(alive)} of {seen} caught ({(seen - len(alive)) / max(seen, 1):.0%}), of {len(drawn)} mutants in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
