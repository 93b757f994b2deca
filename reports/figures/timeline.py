"""The timeline: every lane of a rank as a row, predicted above measured, zoomable.

Large traces are thinned before drawing (`reports.figures.bars`), so that a page stays small; the full trace file is for Perfetto.
A bar of several ops is a stack of their classes; the height of each is its share of the bar's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from reports.figures.bars import Bar, level, merge, parts
from reports.figures.palette import WAITS, colour
from reports.words import Clock, clock, natural, safe, seconds, short, volume
from sim.program import EVENTS, HOST, PINNER
from sim.timeline.asynchrony import step_shown
from sim.trace import Span, Trace

_PIXELS = 1600
_FEWEST = 60
"""Pieces of bars that each row may have, even if there are many rows."""
_ALL_DRAWN = 4
"""Up to so many ranks all are drawn; of more ranks, those that `representative` chooses."""
_HEIGHT = 0.75
"""Height of a bar as a share of its row."""
MERGED = (
    "Ops too short to be drawn one by one share a bar: as high as each class of op takes of the bar's time, what is blank is idle; hover for how "
    "many they are."
)
"""A note on how to read bars of several ops."""
_ORDER = ("host", "loader", PINNER, "copy", "compute", "comm")


Window = tuple[float, float]
"""Begin and end of a step, in seconds."""


def timeline(traces: Sequence[Trace], ranks: Sequence[int] | None = None, limit: int = 8000) -> go.Figure:
    """Bars of the reported step of each trace (predicted, played, ...), from the step's begin; for each lane the traces are below each
    other.

    `ranks`: None for the `representative` ones. At most about `limit` pieces of bars are drawn in all.
    """
    chosen = list(ranks) if ranks is not None else [rank for rank, _ in representative(traces[0])]
    windows = [step_shown(trace) for trace in traces]
    rows = _rows(traces, windows, chosen)
    pixels = [(end - begin) / _PIXELS for _, (begin, end), _ in rows]
    whole = [merge(spans, pixel, len(spans)) for pixel, (*_, spans) in zip(pixels, rows, strict=True)]
    share = max(_FEWEST, level([parts(bars) for bars in whole], limit))
    step = max((end - begin for begin, end in windows), default=0.0)
    time, figure = clock(step), go.Figure()
    seen: set[str] = set()
    for (name, (begin, _), spans), pixel in zip(rows, pixels, strict=True):
        for cls, found in pieces(merge(spans, pixel, share), pixel).items():
            figure.add_trace(_drawn(name, cls, found, begin, time, cls not in seen))
            seen.add(cls)
    legend = 20 * (len(seen) // 8)
    figure.update_layout(
        barmode="overlay",
        bargap=1 - _HEIGHT,
        height=170 + 26 * len(rows) + legend,
        margin={"b": 90 + legend},
        xaxis={"title": f"{time.unit} into the step", "range": [-0.004 * step * time.scale, 1.004 * step * time.scale]},
        yaxis={"categoryorder": "array", "categoryarray": [name for name, *_ in rows][::-1], "tickfont": {"size": 11}, "fixedrange": True},
        legend={"orientation": "h"},
        hovermode="closest",
    )
    return figure


def _rows(traces: Sequence[Trace], windows: Sequence[Window], ranks: Sequence[int]) -> list[tuple[str, Window, list[Span]]]:
    """(label, window, spans) of each row: rank by rank, lane by lane, then trace by trace."""
    found = []
    every = [_lanes(trace, inside) for trace, inside in zip(traces, windows, strict=True)]
    for rank in ranks:
        for lane in sorted({lane for lanes in every for at, lane in lanes if at == rank}, key=_lane_key):
            for trace, inside, lanes in zip(traces, windows, every, strict=True):
                if (rank, lane) in lanes:
                    name = f"r{rank} {lane} · {trace.origin}" if len(traces) > 1 else f"r{rank} {lane}"
                    found.append((safe(name), inside, lanes[rank, lane]))
    return found


def _lanes(trace: Trace, inside: Window) -> dict[tuple[int, str], list[Span]]:
    """(rank, lane) -> spans of the reported step."""
    begin, end = inside
    found: dict[tuple[int, str], list[Span]] = {}
    for span in trace.spans:
        if span.end > begin and span.start < end and span.kind not in EVENTS:
            found.setdefault((span.rank, span.lane), []).append(span)
    return found


def representative(trace: Trace, worst: int | None = None) -> list[tuple[int, str]]:
    """(rank, reason) of the ranks to draw: all if there are few, else the first, the last, the slowest (computes longest) and the worst.

    `worst`: the rank with the largest error in a comparison; None: the one that waits longest for its peers.
    """
    ranks = trace.ranks
    if len(ranks) <= _ALL_DRAWN:
        return [(rank, "") for rank in ranks]
    work: dict[int, float] = dict.fromkeys(ranks, 0.0)
    waits: dict[int, float] = dict.fromkeys(ranks, 0.0)
    for span in trace.spans:
        waits[span.rank] += span.wait
        if span.kind == "compute":
            work[span.rank] += span.seconds
    named = [(ranks[0], "first"), (ranks[-1], "last"), (max(ranks, key=lambda rank: work[rank]), "slowest: computes longest")]
    if worst is None:
        named.append((max(ranks, key=lambda rank: waits[rank]), "worst: waits longest for its peers"))
    else:
        named.append((worst, "worst: furthest from the measurement"))
    why: dict[int, str] = {}
    for rank, reason in named:
        why[rank] = f"{why[rank]}; {reason}" if rank in why else reason
    return sorted(why.items())


def told(chosen: Sequence[tuple[int, str]], trace: Trace) -> str:
    """Sentences that say which ranks are drawn, for how many ranks they stand, and whose host has no lane and why."""
    parts = []
    if len(chosen) < len(trace.ranks):
        parts.append(
            f"{len(chosen)} of {len(trace.ranks)} simulated ranks are drawn: " + ", ".join(f"r{rank} ({why})" for rank, why in chosen) + "."
        )
    folded = [f"r{rank} stands for {trace.weight[rank]} equal ranks" for rank, _ in chosen if trace.weight.get(rank, 1) > 1]
    if folded:
        parts.append("; ".join(folded) + ".")
    early = {rank: lead for rank, _ in chosen if (lead := _early(trace, rank)) > 0.0}
    if early:
        who = "The host" if len(early) == len(chosen) else f"The host of {', '.join(f'r{rank}' for rank in early)}"
        parts.append(
            f"{who} has no lane: all of this step was launched at least {seconds(min(early.values()))} before it begins here, and nothing waits for "
            "the host."
        )
    return " ".join(parts)


def _early(trace: Trace, rank: int) -> float:
    """For a rank whose host has no op in the reported step: seconds before the step's begin at which the host had launched all of it; else
    0."""
    (begin, end), number = step_shown(trace), trace.steps + trace.reported
    mine = [span for span in trace.spans if span.rank == rank]
    if any(span.lane == HOST and span.end > begin and span.start < end for span in mine):
        return 0.0
    done = [max(span.issued + span.launch, span.end if span.lane == HOST else 0.0) for span in mine if span.step == number]
    return max(0.0, begin - max(done, default=begin))


def _lane_key(lane: str) -> tuple[int, str]:
    return next((i for i, prefix in enumerate(_ORDER) if lane.startswith(prefix)), len(_ORDER)), natural(lane)


class Piece(NamedTuple):
    """A rectangle of a row: times in seconds, heights as shares of a full bar, and hover text."""

    start: float
    seconds: float
    below: float
    height: float
    text: str


def pieces(bars: Sequence[Bar], least: float) -> dict[str, list[Piece]]:
    """Class -> pieces of a row, the class with most time first. The wait of a single op is drawn before it if it is longer than `least`
    seconds."""
    whole: dict[str, float] = {}
    for bar in bars:
        for cls, lasts in bar.parts.items():
            whole[cls] = whole.get(cls, 0.0) + lasts
    found: dict[str, list[Piece]] = {cls: [] for cls in sorted(whole, key=lambda cls: (-whole[cls], cls))}
    for bar in bars:
        span = bar.first
        if bar.stacked:
            below, shares = 0.0, bar.shares()
            for cls in (cls for cls in found if cls in shares):
                found[cls].append(Piece(bar.start, bar.seconds, below, shares[cls], _of_many(bar, cls)))
                below += shares[cls]
        else:
            if span.wait > least:
                found[WAITS].append(Piece(span.start, span.wait, 0.0, 1.0, _hover(span)))
            found[span.cls or span.kind].append(Piece(span.start + span.wait, span.seconds - span.wait, 0.0, 1.0, _hover(span)))
    return {cls: row for cls, row in found.items() if row}


def _drawn(row: str, cls: str, found: Sequence[Piece], begin: float, time: Clock, legend: bool) -> go.Bar:
    """The pieces of one class in one row."""
    bar = go.Bar(
        base=[round((one.start - begin) * time.scale, 6) for one in found],
        x=[round(one.seconds * time.scale, 6) for one in found],
        y=[row] * len(found),
        orientation="h",
        name=safe(cls),
        legendgroup=cls,
        showlegend=legend,
        marker={"color": colour(cls), "line": {"width": 0}},
        text=[one.text for one in found],
        hovertemplate="%{text}<extra></extra>",
        textposition="none",
    )
    if any(one.height < 1 for one in found):
        bar.update(width=[round(_HEIGHT * one.height, 3) for one in found], offset=[round(_HEIGHT * (one.below - 0.5), 3) for one in found])
    return bar


def _of_many(bar: Bar, cls: str) -> str:
    """Hover text of one class in a bar of several ops; that of the class with most time also names the first and the last op."""
    lasts = bar.parts[cls]
    told = f"{safe(short(cls, 60))}: {lasts / (bar.seconds or 1.0):.0%} of {bar.ops:,} ops, {seconds(lasts)}"
    if cls != max(bar.parts, key=lambda name: bar.parts[name]):
        return told
    return f"{told}<br>{safe(short(bar.first.id, 60))} … {safe(short(bar.last.id, 60))}"


def _hover(span: Span) -> str:
    """Hover text of an op in two lines, without the lane, which is at the row. It has few tags, as there are thousands of such texts in a
    page."""
    told = [span.kind, seconds(span.seconds)]
    if span.name:
        told.append(safe(short(span.name, 90)))
    if span.bytes:
        told.append(volume(span.bytes))
    if span.flops:
        told.append(f"{span.flops / 1e9:,.3f} GFLOP")
    if span.wait:
        told.append(f"waits {seconds(span.wait)} for peers")
    if span.source:
        told.append(f"cost: {span.source}")
    return f"{safe(short(span.id, 90))}<br>{', '.join(told)}"
