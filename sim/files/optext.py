"""One op read back from the line that it prints as.

    collective comm.tp L0.gather name=all_gather bytes=4096 group=tp
    compute compute L0.qkv gemm(m=8,n=8,k=8) cls=gemm alloc=128

Kind, lane and id, then the works, then `field=value` for what is not the default (a flag stands alone: `blocking`).
Words with blanks, quotes, brackets or `=` are JSON strings.
"""

from __future__ import annotations

import re

import msgspec

from sim.program import KINDS, Op
from sim.words import number, split, unquote
from sim.work import parse_work
from topologies.errors import BadInput, UnknownName

_WORK = re.compile(r"[a-z]+\(.*\)\Z")
_NUMBERS = ("bytes", "peer", "shift", "alloc", "free")
_TEXTS = ("name", "group", "event", "cls", "how")


def parse_op(line: str) -> Op:
    """The inverse of `str(op)`. Raises `BadInput` that quotes the line."""
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
