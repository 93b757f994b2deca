"""How far a long study is, for a person who waits: what is done, how fast, and how long the rest takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Say = Callable[[str], None]
_EVERY = 2.0
"""Seconds between two lines, at least."""


def watched(say: Say) -> Say | None:
    """`say` if stderr is a terminal, else None."""
    return say if sys.stderr.isatty() else None


_SELDOM = 30.0
"""Seconds between two lines, at least, where stderr is not a terminal but, for example, a log file."""


def logged(say: Say) -> Say:
    """`say` if stderr is a terminal, else a function that passes on the first line and later at most one line every `_SELDOM` seconds."""
    if sys.stderr.isatty():
        return say
    told = float("-inf")

    def seldom(text: str) -> None:
        nonlocal told
        if time.monotonic() - told > _SELDOM:
            told = time.monotonic()
            say(text)

    return seldom


class Progress:
    """Tells `say` at most every two seconds how many of `total` things are done, the rate and the time left; None: tells nobody.

    `what` names the things, e.g. "plans screened".
    """

    def __init__(self, total: int, what: str, say: Say | None) -> None:
        self._total, self._what, self._say, self._done = total, what, say, 0
        self._begun = self._told = time.monotonic()

    def more(self, count: int = 1) -> None:
        """Counts `count` more things as done."""
        self._done += count
        now = time.monotonic()
        if self._say and self._done and now - self._told > _EVERY:
            rate = self._done / (now - self._begun)
            speed = f"{rate:.0f} a second" if rate >= 1 else f"{1 / rate:.0f} s each"
            self._say(f"{self._done}/{self._total} {self._what}, {speed}, {(self._total - self._done) / rate:.0f} s left")
            self._told = now
