"""What a row of the timeline draws where ops are too many: bars that stand for several, and say how much of them each class takes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reports.figures.palette import WAITS
from sim.trace import Span

_LEAST = 0.02
"""Share of a bar below which a class is not drawn: less than half a pixel of its height."""
_LOWEST = 0.1
"""Height of a bar that is nearly all idle, as a share of a full one: it is still seen."""
_FINEST = 1e-12
"""Share of a lane's length that a pixel is at least: one that is nearly nothing would not grow, for it is rounded back to what it was."""
_GROWTH = 1.2
"""From one round of merging to the next. Smaller, it takes longer; larger, more is merged than there has to be."""


class Bar(msgspec.Struct, frozen=True):
    """One op, or several neighbours of a lane."""

    first: Span
    last: Span
    end: float
    """Of whichever op ends last, in seconds as all times here."""
    ops: int
    parts: dict[str, float]
    """Seconds by class of op, of which none is more than `WAITS` for peers."""

    @property
    def start(self) -> float:
        return self.first.start

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def stacked(self) -> bool:
        """Stands for several ops; `shares` is how it is drawn."""
        return self.ops > 1

    def shares(self) -> dict[str, float]:
        """Of the bar's length, what each class takes; the rest to 1 is idle. Classes too small to be seen are left out."""
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

    First neighbours of one class become one, as long as that covers less than a `pixel` (in seconds) of idling and waiting. If that is not
    enough, neighbours of any class do, as long as their bar is shorter than a pixel, and the pixel grows until it is enough.
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
    """How many pieces bars are drawn of."""
    return sum(len(bar.shares()) if bar.stacked else 1 for bar in bars)


def level(wanted: Sequence[int], limit: int) -> int:
    """The most that each may have, so that all of them together have at most `limit`: who wants less leaves the rest to others."""
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
    """Neighbours of one class as one, where neither can be seen apart and what they do not work is less than a pixel."""
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
    """Neighbours of any class as one, where it is shorter than a pixel."""
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
