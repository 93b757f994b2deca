"""A machine's document as TOML text that a person can edit; `topologies.table.parse_toml` reads the same document back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
_SHORT = 100


def dump(document: Mapping[str, object], notes: Sequence[str] = ()) -> str:
    """`document` (texts, numbers, booleans, lists and tables) as TOML: plain keys first, then one table each."""
    lines = [f"# {' '.join(note.split())}" for note in notes]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in document.items() if not isinstance(value, Mapping)]
    for key, value in document.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(key)}]"]
            lines += [f"{_key(str(name))} = {_value(item)}" for name, item in value.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(value: str) -> str:
    body = "".join(_ESCAPES.get(c) or (c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in value)
    return f'"{body}"'


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(k))} = {_value(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, (list, tuple)):
        items = [_value(item) for item in value]
        flat = f"[{', '.join(items)}]"
        if len(flat) <= _SHORT or not any(isinstance(item, (list, tuple)) for item in value):
            return flat
        return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
    return repr(value)
