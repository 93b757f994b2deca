"""The words of a line of text: plain where they can be, else JSON strings.

Programs print as such lines (`str(op)`, `sim.files.text`), and are read back from them.
"""

from __future__ import annotations

import json
import re

from topologies.errors import BadInput

_BARE = re.compile(r"[^\s\"=()#\\]+\Z")
_TOKEN = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+')


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
