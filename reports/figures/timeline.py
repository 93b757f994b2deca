"""The timeline: every lane of a rank as a row, predicted above measured, zoomable.

Large traces are thinned before drawing: spans narrower than a pixel of the whole width are merged with neighbours of
their class, so that a page stays small; the full trace file is for Perfetto.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from reports.figures.palette import WAITS, colour
from reports.words import Clock, clock, safe, seconds, short
from sim.timeline.metrics import window
from sim.trace import Span, Trace

_PIXELS = 1600
_QUIET = ("record", "wait")
_TO = " … "
_ORDER = ("host", "loader", "copy", "compute", "comm")


Window = tuple[float, float]
"""Begin and end of a step, in seconds."""


def timeline(traces: Sequence[Trace], ranks: Sequence[int] | None = None, limit: int = 8000) -> go.Figure:
    """Bars of the reported step of each trace (predicted, played, ...), lane by lane one trace under the other, from its begin.

    `ranks`: unsaid, the `representative` ones. At most `limit` bars are drawn in all.
    """
    chosen = list(ranks) if ranks is not None else [rank for rank, _ in representative(traces[0])]
    windows = [window(trace) for trace in traces]
    rows = _rows(traces, windows, chosen)
    share = max(60, limit // max(1, len(rows)))
    step = max((end - begin for begin, end in windows), default=0.0)
    time, figure = clock(step), go.Figure()
    seen: set[str] = set()
    for name, (begin, end), spans in rows:
        thin = merge(spans, (end - begin) / _PIXELS, share)
        _waits(figure, name, [s for s in thin if s.wait > (end - begin) / _PIXELS], begin, time, WAITS not in seen)
        seen |= {WAITS} if any(s.wait > (end - begin) / _PIXELS for s in thin) else set()
        for cls in sorted({s.cls or s.kind for s in thin}):
            _bars(figure, name, cls, [s for s in thin if (s.cls or s.kind) == cls], begin, time, cls not in seen)
            seen.add(cls)
    legend = 20 * (len(seen) // 8)
    figure.update_layout(
        barmode="overlay",
        bargap=0.25,
        height=170 + 26 * len(rows) + legend,
        margin={"b": 90 + legend},
        xaxis={"title": f"{time.title} from the beginning of the step", "range": [-0.004 * step * time.scale, 1.004 * step * time.scale]},
        yaxis={"categoryorder": "array", "categoryarray": [name for name, *_ in rows][::-1], "tickfont": {"size": 11}, "fixedrange": True},
        legend={"orientation": "h"},
        hovermode="closest",
    )
    return figure


def _rows(traces: Sequence[Trace], windows: Sequence[Window], ranks: Sequence[int]) -> list[tuple[str, Window, list[Span]]]:
    """(label, window, spans) of each row: rank by rank, lane by lane, the traces one under the other."""
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
    """Spans of the reported step by rank and lane."""
    begin, end = inside
    found: dict[tuple[int, str], list[Span]] = {}
    for span in trace.spans:
        if span.end > begin and span.start < end and span.kind not in _QUIET:
            found.setdefault((span.rank, span.lane), []).append(span)
    return found


def representative(trace: Trace, worst: int | None = None, most: int = 4) -> list[tuple[int, str]]:
    """Ranks to draw, with why: all where there are few, else first, last, slowest (computes longest) and worst.

    `worst`: the rank that a comparison finds furthest off; unsaid, the one that waits longest for its peers.
    """
    ranks = trace.ranks
    if len(ranks) <= most:
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
    """A sentence on which ranks are drawn, and for whom they stand."""
    parts = []
    if len(chosen) < len(trace.ranks):
        parts.append(
            f"{len(chosen)} of {len(trace.ranks)} simulated ranks are drawn: " + ", ".join(f"r{rank} ({why})" for rank, why in chosen) + "."
        )
    folded = [f"r{rank} stands for {trace.weight[rank]} equal ranks" for rank, _ in chosen if trace.weight.get(rank, 1) > 1]
    if folded:
        parts.append("; ".join(folded) + ".")
    return " ".join(parts)


def merge(spans: list[Span], pixel: float, most: int) -> list[Span]:
    """At most `most` bars: neighbours of one class closer than a pixel become one; if that is not enough, those of any class.

    The pixel grows until it is enough. A bar has the class that lasts longest in it, or is `WAITS`: of messages that mostly wait.
    """
    kept = _joined(sorted(spans, key=lambda s: s.start), pixel, False)
    reach = max((s.end for s in kept), default=0.0) - min((s.start for s in kept), default=0.0)
    while len(kept) > most and pixel < 4 * reach:
        kept = _joined(kept, pixel, True)
        pixel *= 2
    return kept


def _joined(spans: list[Span], pixel: float, mixed: bool) -> list[Span]:
    """One pass from left to right over spans in order of start."""
    kept: list[Span] = []
    inside: list[dict[str, float]] = []
    own = ""
    """The class of the last bar's first span."""
    for span in spans:
        last, cls = kept[-1] if kept else None, span.cls or span.kind
        if (
            last is not None
            and span.start - last.end < pixel
            and (_close(last, span, pixel) if mixed else own == cls and _small(last, span, pixel))
        ):
            _add(inside[-1], span)
            kept[-1] = _both(last, span, max(inside[-1], key=lambda name: inside[-1][name]))
        else:
            kept.append(span)
            inside.append({})
            _add(inside[-1], span)
            own = cls
    return kept


def _add(sums: dict[str, float], span: Span) -> None:
    """Seconds of a span by class, what it waits apart."""
    for cls, lasts in ((span.cls or span.kind, span.seconds - span.wait), (WAITS, span.wait)):
        if lasts > 0 or not sums:
            sums[cls] = sums.get(cls, 0.0) + lasts


def _close(last: Span, span: Span, pixel: float) -> bool:
    return max(last.end, span.end) - last.start < pixel


def _small(last: Span, span: Span, pixel: float) -> bool:
    """Neither of two bars can be seen apart. A wait that can be seen is drawn as one."""
    return max(last.wait, span.wait) < pixel and min(span.seconds, last.seconds) < pixel


def _both(last: Span, span: Span, cls: str) -> Span:
    return Span(
        last.rank,
        last.lane,
        f"{last.id.split(_TO)[0]}{_TO}{span.id.split(_TO)[-1]}",
        last.start,
        max(last.end, span.end),
        last.kind,
        cls,
        last.step,
        name=f"{_ops(last) + _ops(span)} ops",
        bytes=last.bytes + span.bytes,
        flops=last.flops + span.flops,
        source=last.source,
    )


def _ops(span: Span) -> int:
    """How many ops a bar stands for."""
    return int(span.name.split()[0]) if _TO in span.id else 1


def _lane_key(lane: str) -> tuple[int, str]:
    return next((i for i, prefix in enumerate(_ORDER) if lane.startswith(prefix)), len(_ORDER)), lane


def _waits(figure: go.Figure, row: str, spans: list[Span], begin: float, time: Clock, legend: bool) -> None:
    """The waiting part of transfers, pale."""
    if spans:
        figure.add_trace(
            go.Bar(
                base=[round((s.start - begin) * time.scale, 6) for s in spans],
                x=[round(s.wait * time.scale, 6) for s in spans],
                y=[row] * len(spans),
                orientation="h",
                name=WAITS,
                legendgroup=WAITS,
                showlegend=legend,
                marker={"color": colour(WAITS), "line": {"width": 0}},
                text=[_hover(s) for s in spans],
                hovertemplate="%{text}<extra></extra>",
                textposition="none",
            )
        )


def _bars(figure: go.Figure, row: str, cls: str, spans: list[Span], begin: float, time: Clock, legend: bool) -> None:
    figure.add_trace(
        go.Bar(
            base=[round((s.start + s.wait - begin) * time.scale, 6) for s in spans],
            x=[round((s.seconds - s.wait) * time.scale, 6) for s in spans],
            y=[row] * len(spans),
            orientation="h",
            name=safe(cls),
            legendgroup=cls,
            showlegend=legend,
            marker={"color": colour(cls), "line": {"width": 0}},
            text=[_hover(s) for s in spans],
            hovertemplate="%{text}<extra></extra>",
            textposition="none",
        )
    )


def _hover(span: Span) -> str:
    lines = [f"<b>{safe(short(span.id, 90))}</b>", f"{span.kind} on {safe(span.lane)}, {seconds(span.seconds)}"]
    if span.name:
        lines.append(safe(short(span.name, 90)))
    if span.bytes:
        lines.append(f"{span.bytes / 1e6:,.3f} MB")
    if span.flops:
        lines.append(f"{span.flops / 1e9:,.3f} GFLOP")
    if span.wait:
        lines.append(f"waits {seconds(span.wait)} for peers")
    if span.source:
        lines.append(f"cost: {span.source}")
    return "<br>".join(lines)
