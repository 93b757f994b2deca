"""Numbers and names as text for people, the same on every page and in every figure."""

from __future__ import annotations

import html
import re
from typing import NamedTuple

from topologies.edits import is_edit
from topologies.units import show_size


def seconds(value: float) -> str:
    """`0.0123` -> `"12.30 ms"`; microseconds below 1 ms, seconds from 1 s, minutes, hours and days for whole runs."""
    size = abs(value)
    if size >= 2 * 86400:
        return f"{value / 86400:,.1f} days"
    if size >= 2 * 3600:
        return f"{value / 3600:,.1f} h"
    if size >= 1000:
        return f"{value / 60:,.1f} min"
    if size >= 1:
        return f"{value:,.3f} s" if size < 100 else f"{value:,.1f} s"
    if size >= 1e-3 or value == 0:
        return f"{value * 1e3:,.2f} ms"
    return f"{value * 1e6:,.2f} us"


def setting(key: str) -> str:
    """A short form of a key: `parallel.tp` -> `tp`; a key of the machine keeps its part, `link.net.rate` -> `net.rate`."""
    return key.removeprefix("link.") if is_edit(key) else key.rpartition(".")[2]


class Clock(NamedTuple):
    """The unit of an axis of time."""

    scale: float
    """Units in a second."""
    unit: str
    title: str


def clock(most: float) -> Clock:
    """The unit of an axis that ends at `most` seconds: milliseconds, or seconds from ten seconds on."""
    return Clock(1.0, "s", "seconds") if most >= 10 else Clock(1e3, "ms", "milliseconds")


def count(value: float) -> str:
    """`12345678` -> `"12.3 M"`: three digits with a unit prefix, for axes and cards."""
    few = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return _scaled(value, (("T", 1e12), ("G", 1e9), ("M", 1e6))) or few


def rate(value: float) -> str:
    """Tokens, images or samples per second: whole numbers from 100 on, else three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def gib(value: float) -> str:
    """Bytes as text: `"30.36 GiB"`, in smaller units below 0.1 GiB."""
    return f"{value / 2**30:,.2f} GiB" if value >= 0.1 * 2**30 else show_size(value)


def volume(value: float) -> str:
    """Bytes that links move, in decimal units like the links' rates: `"54.4 GB"`."""
    return _scaled(value, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))) or f"{value:.0f} B"


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """Three digits in the largest unit in which the value rounds to at least 1 (more digits in the largest of all); "" if there is none."""
    for name, scale in units:
        if abs(value) >= 0.9995 * scale:
            return f"{value / scale:,.0f} {name}" if abs(value) >= 100 * scale else f"{value / scale:.3g} {name}"
    return ""


def safe(text: object) -> str:
    """A name, escaped for use inside a figure: Plotly interprets tags such as <b> and <a> in its texts."""
    return html.escape(str(text), quote=False)


def counted(number: int, what: str) -> str:
    """`"1 step"`, `"1,024 steps"`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ranks(number: int) -> str:
    """`"1 rank"`, `"8 ranks"`."""
    return counted(number, "rank")


def natural(text: str) -> str:
    """A sort key in which numbers count as numbers: `stream 7` comes before `stream 10`."""
    return re.sub(r"\d+", lambda found: found[0].zfill(20), text)


def short(text: str, most: int) -> str:
    """At most `most` letters; the middle is left out, since the ends of ids are the most useful."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2) :]}"
