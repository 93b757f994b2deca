"""What a value of a plan, a model or a framework must be, in words: the key, what was written, what is allowed, and an example."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

import msgspec

from topologies.errors import UnknownName

_EXAMPLES: dict[str, object] = {
    "seq_len": 4096,
    "batch.global": 64,
    "parallel.etp": 1,
    "parallel.stages": [8, 8],
    "memory.recompute_modules": ["op"],
    "model": "llama3-8b",
    "noise.stragglers": "r3: 1.3x",
    "noise.imbalance": "lognormal(0.05)",
}
"""Of keys without a default that would be one."""
_OTHERWISE = {
    ("task", "qlora"): 'lora, with lora = { base = "nf4" } in the [model] table',
    ("task", "sft"): "finetune",
    ("task", "pretrain"): "train",
    ("precision", "float32"): "fp32",
    ("precision", "float16"): "fp16",
    ("precision", "bfloat16"): "bf16",
    ("data.source", "s3"): "object-store",
    ("data.source", "gcs"): "object-store",
    ("data.source", "synthetic"): "device",
    **{("lora.targets", f"{letter}_proj"): f"{letter} (qkv: queries, keys and values)" for letter in "qkv"},
    **dict.fromkeys((("lora.targets", name) for name in ("query_key_value", "qkv_proj")), "qkv (queries, keys and values together)"),
    ("lora.targets", "o_proj"): "proj",
    **dict.fromkeys((("lora.targets", name) for name in ("gate_proj", "up_proj", "gate_up_proj")), "up (with a gated MLP's gate)"),
    ("lora.targets", "down_proj"): "down",
}
"""(key, what other programs call a value of it): the word for it here."""
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes", dict: "a table"}
_LONGEST = 60


def wrong_value(message: str, tree: Mapping[str, Any], struct: type[msgspec.Struct], prefix: str = "") -> str:
    """msgspec's `message` about `tree`, a table of `struct`'s fields in the file's form that lies at `prefix`, as one of ours. What it says of the
    whole is left as it is, and so is what a struct says of itself."""
    text, _, path = message.partition(" - at `$")
    steps = re.findall(r"[^.\[\]]+", path.rstrip("`"))
    missing = re.fullmatch(r"Object missing required field `(\w+)`", text)
    if missing:
        return _incomplete(missing.group(1), _at(tree, steps), _field(steps, struct)[0], prefix + ".".join(steps))
    if not steps or not text.startswith(("Expected", "Invalid")):
        return message
    hint, default = _field(steps, struct)
    if hint is None:
        return message
    path = prefix + path.rstrip("`").removeprefix(".")
    told = f"{path} = {_short(_at(tree, steps))}"
    words = options(hint)
    if words and not text.startswith("Expected `array`"):
        return f"{told} is none of its values.{_near(path, _at(tree, steps), words)} Allowed: {', '.join(map(str, words))}{_files(path)}"
    example = _EXAMPLES.get(path, default)
    shown = "" if example is None or isinstance(example, msgspec.Struct) else f", e.g. {path} = {_short(example)}"
    return f"{told} must be {_words(hint)}{shown}"


def is_list(steps: list[str], struct: type[msgspec.Struct]) -> bool:
    """Does the key of `struct` that `steps` lead to hold a list?"""
    return any(typing.get_origin(_bare(part)) is tuple for part in _parts(_field(steps, struct)[0]))


def _incomplete(first: str, given: object, hint: Any, path: str) -> str:
    """Which keys a table needs that it has not."""
    struct = struct_of(hint)
    fields = [one for one in msgspec.structs.fields(struct) if one.required] if struct else []
    kinds = typing.get_type_hints(struct, include_extras=True) if struct else {}
    named = [one for one in fields if not isinstance(given, Mapping) or one.encode_name not in given]
    lacking = [f"{one.encode_name} ({_words(kinds[one.name])})" for one in named] or [first]
    return f"{path or 'the table'} is missing {', '.join(lacking)}"


def _field(steps: list[str], struct: type[msgspec.Struct]) -> tuple[Any, object]:
    """(type, default) of the key that `steps` lead to; (None, None) where there is none such: inside of a model's table."""
    hint: Any = struct
    default: object = None
    for step in steps:
        table = struct_of(hint)
        if step.isdigit() or step == "...":
            inner = [typing.get_args(_bare(part))[0] for part in _parts(hint) if typing.get_origin(_bare(part)) is tuple]
            hint, default = (inner[0], None) if inner else (None, None)
        elif table is not None:
            hint, default = _keys(table).get(step, (None, None))
        else:
            return None, None
    return hint, default


@cache  # a sweep asks for the same few tables at each of its points
def _keys(table: type[msgspec.Struct]) -> dict[str, tuple[Any, object]]:
    """(type, default) of each key of a table."""
    hints = typing.get_type_hints(table, include_extras=True)
    return {
        one.encode_name: (hints[one.name], None if one.default is msgspec.NODEFAULT else one.default)
        for one in msgspec.structs.fields(table)
    }


def struct_of(hint: Any) -> type[msgspec.Struct] | None:
    """The struct that a value of this type is, if it is one."""
    return next((part for part in _parts(hint) if isinstance(part, type) and issubclass(part, msgspec.Struct)), None)


def _parts(hint: Any) -> list[Any]:
    """The types of a union without None; any other type alone."""
    several = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    return [part for part in several if part is not type(None)]


def _bare(part: Any) -> Any:
    """A type without its bounds."""
    return typing.get_args(part)[0] if typing.get_origin(part) is Annotated else part


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
        return f"{_kind(base)}{_bounds(meta)}"
    if typing.get_origin(part) is tuple:
        return f"a list, each item {_words(typing.get_args(part)[0])}"
    if typing.get_origin(part) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(part)))}"
    return _KINDS.get(typing.get_origin(part) or part, "a section")


def _bounds(meta: msgspec.Meta) -> str:
    if meta.min_length is not None:
        return f", at least {meta.min_length} of them"
    least = meta.ge if meta.ge is not None else meta.gt
    above = "above " if meta.ge is None else ""
    if meta.lt is not None:
        return f" from {above}{least:,} to below {meta.lt:,}"
    if meta.le is not None:
        return f" from {above}{least:,} to {meta.le:,}"
    return f" above {least:,}" if above else f" of at least {least:,}"


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


def _near(path: str, value: object, options: tuple[str | int, ...]) -> str:
    if not isinstance(value, str):
        return ""
    known = _OTHERWISE.get((path.partition("[")[0], value.lower()))
    near = [known] if known else UnknownName("value", value, map(str, options)).near
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _files(path: str) -> str:
    return ', or the path of a ".csv" file' if path == "parallel.schedule" else ""
