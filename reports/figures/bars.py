"""Bars of a timeline's row if there are too many ops: a bar can stand for several ops, and shows the share of each class of op."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reports.figures.palette import WAITS
from sim.trace import Span

_LEAST = 0.02
"""Share of a bar below which a class is not drawn: it would be less than half a pixel high."""
_LOWEST = 0.1
"""Least height of a bar that is almost all idle, as a share of a full one, so that it is still visible."""
_FINEST = 1e-12
"""Least pixel as a share of a lane's length: a much smaller one would not grow, because of rounding."""
_GROWTH = 1.2
"""Factor by which the pixel grows from one round of merging to the next. A smaller factor takes longer; a larger one merges more than
needed."""


class Bar(msgspec.Struct, frozen=True):
    """One op, or several neighbouring ops of a lane."""

    first: Span
    last: Span
    end: float
    """The end of the op that ends last; all times are in seconds."""
    ops: int
    parts: dict[str, float]
    """Class of op -> seconds; waits for peers have the class `WAITS`."""

    @property
    def start(self) -> float:
        return self.first.start

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def stacked(self) -> bool:
        """True if it stands for several ops, and is drawn by `shares`."""
        return self.ops > 1

    def shares(self) -> dict[str, float]:
        """Class -> its share of the bar's length; the rest to 1 is idle. Classes that are too small to be visible are left out."""
        whole = max(self.seconds, sum(self.parts.values())) or 1.0
        found = {cls: lasts / whole for cls, lasts in self.parts.items()}
        seen = {cls: share for cls, share in found.items() if share >= _LEAST}
        if not seen:
            most = max(found, key=lambda cls: found[cls])
            seen = {most: found[most] or 1.0}
        if sum(seen.values()) > 1 - _LEAST:
            whole = sum(seen.values())
            return {cls: share / whole for cls, share in seen.items()}
        low = max(1.0, _LOWEST / sum(seen.values()))
        return {cls: share * low for cls, share in seen.items()}


def merge(spans: Sequence[Span], pixel: float, most: int) -> list[Bar]:
    """Bars with at most `most` parts in all (or one bar), from left to right.

    First, neighbours of one class are merged if that hides less than a `pixel` (in seconds) of idling and waiting. If that is not enough,
    neighbours of any class are merged if their bar is shorter than a pixel, and the pixel grows until there are few enough.
    """
    bars = [_alone(span) for span in sorted(spans, key=lambda s: s.start)]
    kept = joined(bars, pixel)
    reach = max((bar.end for bar in kept), default=0.0) - min((bar.start for bar in kept), default=0.0)
    pixel = max(pixel, _FINEST * reach)
    while parts(kept) > most and pixel < 4 * reach:
        kept = _mixed(kept, pixel)
        pixel *= _GROWTH
    return kept


def parts(bars: Sequence[Bar]) -> int:
    """The number of pieces of which the bars are drawn."""
    return sum(len(bar.shares()) if bar.stacked else 1 for bar in bars)


def level(wanted: Sequence[int], limit: int) -> int:
    """The most pieces that each row may have, so that all rows have at most `limit` together; rows that want fewer leave the rest to
    others."""
    left = limit
    for at, number in enumerate(sorted(wanted)):
        most = left // (len(wanted) - at)
        if number > most:
            return most
        left -= number
    return max(wanted, default=0)


def _alone(span: Span) -> Bar:
    parts = {span.cls or span.kind: span.seconds - span.wait}
    return Bar(span, span, span.end, 1, parts | ({WAITS: span.wait} if span.wait > 0 else {}))


def joined(bars: Sequence[Bar], pixel: float) -> list[Bar]:
    """Merges neighbours of one class if one of them is shorter than a pixel and the merged bar idles and waits for less than a pixel."""
    kept: list[Bar] = []
    for bar in bars:
        if kept and _class(kept[-1]) == _class(bar) and min(kept[-1].seconds, bar.seconds) < pixel:
            both = _both(kept[-1], bar)
            if both.seconds - both.parts[_class(bar)] < pixel:
                kept[-1] = both
                continue
        kept.append(bar)
    return kept


def _mixed(bars: Sequence[Bar], pixel: float) -> list[Bar]:
    """Merges neighbours of any class if the merged bar is shorter than a pixel."""
    kept: list[Bar] = []
    for bar in bars:
        if kept and max(kept[-1].end, bar.end) - kept[-1].start < pixel:
            kept[-1] = _both(kept[-1], bar)
        else:
            kept.append(bar)
    return kept


def _class(bar: Bar) -> str:
    return bar.first.cls or bar.first.kind


def _both(one: Bar, two: Bar) -> Bar:
    parts = dict(one.parts)
    for cls, lasts in two.parts.items():
        parts[cls] = parts.get(cls, 0.0) + lasts
    return Bar(one.first, two.last, max(one.end, two.end), one.ops + two.ops, parts)
