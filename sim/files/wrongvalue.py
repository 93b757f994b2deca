"""What a plan's value must be, in words: the key, what was written, what is allowed, and an example."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from sim.plan import Plan
from topologies.errors import UnknownName

_EXAMPLES: dict[str, object] = {"seq_len": 4096, "batch.global": 64, "parallel.etp": 1, "parallel.stages": [8, 8], "model": "llama3-8b"}
"""Of keys without a default that would be one."""
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes", dict: "a table"}
_LONGEST = 60


def wrong_value(message: str, tree: Mapping[str, Any], struct: type[msgspec.Struct] = Plan, prefix: str = "") -> str:
    """msgspec's `message` about `tree`, a plan in the file's form, or the table of it at `prefix`, as one of ours. What it says of the whole is
    left as it is."""
    path = message.rpartition("`$.")[2].rstrip("`")
    if not path or path == message:
        return message
    steps = re.findall(r"[^.\[\]]+", path)
    hint, default = _field(steps, struct)
    if hint is None:
        return message
    path = prefix + path
    told = f"{path} = {_short(_at(tree, steps))}"
    words = options(hint)
    if words:
        return f"{told} is none of its values.{_near(_at(tree, steps), words)} Allowed: {', '.join(map(str, words))}{_files(path)}"
    example = _EXAMPLES.get(path, default)
    shown = "" if example is None or isinstance(example, msgspec.Struct) else f", e.g. {path} = {_short(example)}"
    return f"{told} must be {_words(hint)}{shown}"


def _field(steps: list[str], struct: type[msgspec.Struct]) -> tuple[Any, object]:
    """(type, default) of the key that `steps` lead to; (None, None) where a plan has none such: inside of a model's table."""
    hint: Any = struct
    default: object = None
    for step in steps:
        if step.isdigit():
            inner = [part for part in _parts(hint) if typing.get_origin(part) is tuple]
            hint, default = (typing.get_args(inner[0])[0], None) if inner else (None, None)
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            field = next((one for one in msgspec.structs.fields(hint) if one.encode_name == step), None)
            hint = field and typing.get_type_hints(hint, include_extras=True)[field.name]
            default = None if field is None or field.default is msgspec.NODEFAULT else field.default
        else:
            return None, None
    return hint, default


def _parts(hint: Any) -> list[Any]:
    """The types of a union without None; any other type alone."""
    several = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    return [part for part in several if part is not type(None)]


def options(hint: Any) -> tuple[str | int, ...]:
    """The words that a value, or each of a list's values, may be."""
    parts = _parts(hint)
    inner = [typing.get_args(part)[0] for part in parts if typing.get_origin(part) is tuple]
    return next((typing.get_args(part) for part in (*parts, *inner) if typing.get_origin(part) is Literal), ())


def _words(hint: Any) -> str:
    return " or ".join(_kind(part) for part in _parts(hint))


def _kind(part: Any) -> str:
    if typing.get_origin(part) is Annotated:
        base, meta = typing.get_args(part)[:2]
        return f"{_KINDS[base]} from {meta.ge:,} to {meta.le:,}" if meta.le is not None else f"{_KINDS[base]} of at least {meta.ge:,}"
    if typing.get_origin(part) is tuple:
        return f"a list, each item {_words(typing.get_args(part)[0])}"
    return _KINDS.get(typing.get_origin(part) or part, "a section")


def _at(tree: Any, steps: list[str]) -> Any:
    for step in steps:
        try:
            tree = tree[int(step) if step.isdigit() else step]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _short(value: object) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _near(value: object, options: tuple[str | int, ...]) -> str:
    near = UnknownName("value", value, map(str, options)).near if isinstance(value, str) else []
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _files(path: str) -> str:
    return ', or the path of a ".csv" file' if path == "parallel.schedule" else ""
