"""Damaged copies of a text: bytes flipped, pieces cut, doubled and swapped, numbers made hostile, nesting made deep. By seed."""

from __future__ import annotations

import random
import re

_HOSTILE = (
    "0",
    "-1",
    "1e999",
    "nan",
    "9" * 400,
    "1000000000",
    "18446744073709551616",
    "-0",
    "1e-320",
    '""',
    "null",
    "true",
    "[]",
    "{}",
    "1 YB",
    "٣",
)
_PIECES = (
    "\x00",
    "\ufeff",
    "\r",
    "&a;",
    "<!DOCTYPE x [<!ENTITY a 'b'>]>",
    "]]>",
    '"""',
    "\\u0000",
    "../../etc/passwd",
    "=",
    "[",
    "{",
    ",",
    "\t" * 50,
    "é",
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def mutate(text: str, draw: random.Random) -> str:
    """One to four damages, drawn at random."""
    for _ in range(draw.randint(1, 4)):
        text = draw.choice(_DAMAGES)(text, draw)
    return text[:200_000]


def _flip(text: str, draw: random.Random) -> str:
    if not text:
        return chr(draw.randrange(256))
    at = draw.randrange(len(text))
    return text[:at] + chr(draw.randrange(0x250)) + text[at + 1 :]


def _cut(text: str, draw: random.Random) -> str:
    a, b = sorted(draw.randrange(len(text) + 1) for _ in range(2))
    return text[:a] + text[b:]


def _double(text: str, draw: random.Random) -> str:
    a, b = sorted(draw.randrange(len(text) + 1) for _ in range(2))
    return text[:b] + text[a:b] * draw.choice((1, 2, 30)) + text[b:]


def _number(text: str, draw: random.Random) -> str:
    hits = list(_NUMBER.finditer(text))
    if not hits:
        return text + draw.choice(_HOSTILE)
    hit = draw.choice(hits)
    return text[: hit.start()] + draw.choice(_HOSTILE) + text[hit.end() :]


def _insert(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice(_PIECES) + text[at:]


def _deep(text: str, draw: random.Random) -> str:
    at, pair = draw.randrange(len(text) + 1), draw.choice(("[]", "{}", "()"))
    depth = draw.choice((5, 300, 20_000))
    return text[:at] + pair[0] * depth + pair[1] * depth + text[at:]


def _swap(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    draw.shuffle(lines)
    return "\n".join(lines)


_DAMAGES = (_flip, _flip, _cut, _double, _number, _number, _insert, _deep, _swap)
