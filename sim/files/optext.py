"""One op as one line of text, and an exact way back.

    collective comm.tp L0.gather name=all_gather bytes=4096 group=tp
    compute compute L0.qkv gemm(m=8,n=8,k=8) cls=gemm alloc=128

Kind, lane and id, then the works, then `field=value` for what is not the default (a flag stands alone: `blocking`).
Words with blanks, quotes, brackets or `=` are JSON strings.
"""

from __future__ import annotations

import json
import re

import msgspec

from sim.program import KINDS, Op
from sim.work import parse_work
from topologies.errors import BadInput, UnknownName

_BARE = re.compile(r"[^\s\"=()#\\]+\Z")
_TOKEN = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+')
_WORK = re.compile(r"[a-z]+\(.*\)\Z")
_DEFAULTS = dict(zip(Op.__struct_fields__[3:], Op.__struct_defaults__, strict=True))
_NUMBERS = ("bytes", "peer", "shift", "alloc", "free")
_TEXTS = ("name", "group", "event", "cls", "how")


def show_op(op: Op) -> str:
    """The op as one line; `parse_op` reads it back exactly."""
    words = [op.kind, quote(op.lane), quote(op.id), *map(str, op.works)]
    for field, default in _DEFAULTS.items():
        value = getattr(op, field)
        if field == "works" or value == default:
            continue
        if field == "blocking":
            words.append(field)
        else:
            words.append(f"{field}={quote(value) if isinstance(value, str) else value}")
    return " ".join(words)


def parse_op(line: str) -> Op:
    """The inverse of `show_op`. Raises `BadInput` that quotes the line."""
    words = split(line)
    if len(words) < 3:
        raise BadInput(f"cannot read op {line[:80]!r}: write kind, lane and id, e.g. compute compute L0.qkv gemm(m=8,n=8,k=8)")
    if words[0] not in KINDS:
        raise UnknownName("op kind", words[0], KINDS, f"op {line[:80]!r}")
    works = tuple(parse_work(word) for word in words[3:] if _is_work(word))
    fields: dict[str, object] = {}
    for word in words[3:]:
        if _is_work(word):
            continue
        key, _, text = word.partition("=")
        if key in fields:
            raise BadInput(f"{key} stands twice in op {line[:80]!r}")
        fields[key] = _value(key, text, line)
    return msgspec.convert({"kind": words[0], "lane": unquote(words[1]), "id": unquote(words[2]), "works": works} | fields, Op)


def _is_work(word: str) -> bool:
    return _WORK.match(word) is not None


def _value(key: str, text: str, line: str) -> object:
    if key == "blocking" and not text:
        return True
    if key in _TEXTS:
        return unquote(text)
    if key not in _NUMBERS:
        raise UnknownName("op field", key, (*_NUMBERS, *_TEXTS, "blocking"), f"op {line[:80]!r}")
    return number(text, f"{key} of op {line[:80]!r}")


def quote(text: str) -> str:
    """The text itself where it is one plain word, else a JSON string."""
    return text if _BARE.match(text) else json.dumps(text)


def unquote(word: str) -> str:
    """The inverse of `quote`."""
    if not word.startswith('"'):
        return word
    try:
        text = json.loads(word)
    except json.JSONDecodeError:
        raise BadInput(f"cannot read the text {word[:80]}: quotes are closed as in JSON") from None
    assert isinstance(text, str)
    return text


def split(line: str) -> list[str]:
    """Words of a line; blanks inside quotes do not part them. Raises `BadInput` for quotes left open."""
    if _TOKEN.sub("", line).strip():
        raise BadInput(f"cannot read {line[:80]!r}: quotes are closed as in JSON")
    return _TOKEN.findall(line)


def number(text: str, what: str) -> int:
    """A whole number; `what` names it in the error."""
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"{what} must be a whole number, got {text[:40]!r}") from None
