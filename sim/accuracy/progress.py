"""One line on a terminal that tells how far a long run is; nothing where the output is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[int, int], None]
_EVERY = 0.2
"""Seconds between two lines."""


def on_terminal(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Progress | None:
    """A hook for (done, all) that keeps one line up to date: counts, rate, time left. None unless `stream` (stderr) is a terminal."""
    to = stream or sys.stderr
    if not to.isatty():
        return None
    began, last = clock(), [-1.0]

    def tell(done: int, total: int) -> None:
        now = clock()
        if done < total and now - last[0] < _EVERY:
            return
        last[0] = now
        to.write("\r" + line(done, total, now - began) + "\x1b[K" + ("\n" if done >= total else ""))
        to.flush()

    return tell


def line(done: int, total: int, seconds: float) -> str:
    """`plans 120 of 818, 4.2 a second, 2 min 46 s left`."""
    rate = done / seconds if seconds > 0 else 0.0
    if done >= total:
        return f"plans {done} of {total} in {_words(seconds)}"
    left = f", {_words((total - done) / rate)} left" if rate > 0 else ""
    return f"plans {done} of {total}, {rate:.1f} a second{left}"


def _words(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
