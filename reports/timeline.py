"""The timeline: every lane of a rank as a row, predicted above measured, zoomable.

Large traces are thinned before drawing: spans narrower than a pixel of the whole width are merged with neighbours of
their class, so that a page stays small; the full trace file is for Perfetto.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from reports.palette import colour
from sim.metrics import window
from sim.trace import Span, Trace

_PIXELS = 1600
_QUIET = ("record", "wait")
_ORDER = ("host", "loader", "copy", "compute", "comm")


def timeline(traces: Sequence[Trace], ranks: Sequence[int] | None = None, limit: int = 12000) -> go.Figure:
    """Bars of the last step of each trace (predicted, played, ...) for `ranks` (default: first and last), times in ms from the step's begin.

    At most `limit` bars are drawn in all.
    """
    chosen = list(ranks) if ranks is not None else representative(traces[0])
    figure = go.Figure()
    rows: list[str] = []
    seen: set[str] = set()
    share = max(200, limit // max(1, len(traces) * len(chosen)))
    for rank in chosen:
        for trace in traces:
            begin, end = window(trace)
            spans = [s for s in trace.spans if s.rank == rank and s.end > begin and s.start < end and s.kind not in _QUIET]
            for lane in sorted({s.lane for s in spans}, key=_lane_key):
                row = f"r{rank} {lane} · {trace.origin}"
                rows.append(row)
                thin = merge([s for s in spans if s.lane == lane], (end - begin) / _PIXELS, share)
                for cls in sorted({s.cls or s.kind for s in thin}):
                    _bars(figure, row, cls, [s for s in thin if (s.cls or s.kind) == cls], begin, cls not in seen)
                    seen.add(cls)
    figure.update_layout(
        barmode="overlay",
        bargap=0.25,
        height=140 + 26 * len(rows),
        margin={"l": 10, "r": 10, "t": 30, "b": 40},
        xaxis={"title": "milliseconds from the beginning of the step"},
        yaxis={"categoryorder": "array", "categoryarray": rows[::-1], "automargin": True, "tickfont": {"size": 11}},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        hovermode="closest",
    )
    return figure


def representative(trace: Trace, most: int = 4) -> list[int]:
    """First, last and slowest rank (by time in compute)."""
    ranks = trace.ranks
    if len(ranks) <= most:
        return ranks
    work: dict[int, float] = {}
    for span in trace.spans:
        if span.kind == "compute":
            work[span.rank] = work.get(span.rank, 0.0) + span.seconds
    slowest = max(work, key=lambda rank: work[rank], default=ranks[0])
    return sorted({ranks[0], ranks[-1], ranks[len(ranks) // 2], slowest})


def merge(spans: list[Span], pixel: float, most: int) -> list[Span]:
    """Neighbours of one class closer than a pixel become one bar; the pixel grows until at most `most` are left."""
    spans = sorted(spans, key=lambda s: s.start)
    while True:
        kept: list[Span] = []
        for span in spans:
            last = kept[-1] if kept else None
            same = last is not None and (last.cls or last.kind) == (span.cls or span.kind)
            if last is not None and same and span.start - last.end < pixel and min(span.seconds, last.seconds) < pixel:
                count = last.name if last.name.endswith(" ops") else "1 ops"
                total = int(count.split()[0]) + 1
                kept[-1] = Span(
                    last.rank,
                    last.lane,
                    f"{last.id.split(' … ')[0]} … {span.id}",
                    last.start,
                    max(last.end, span.end),
                    last.kind,
                    last.cls,
                    last.step,
                    name=f"{total} ops",
                    bytes=last.bytes + span.bytes,
                    flops=last.flops + span.flops,
                    source=last.source,
                )
            else:
                kept.append(span)
        if len(kept) <= most or pixel <= 0:
            return kept[: most * 2]
        pixel *= 2


def _lane_key(lane: str) -> tuple[int, str]:
    return next((i for i, prefix in enumerate(_ORDER) if lane.startswith(prefix)), len(_ORDER)), lane


def _bars(figure: go.Figure, row: str, cls: str, spans: list[Span], begin: float, legend: bool) -> None:
    figure.add_trace(
        go.Bar(
            base=[round((s.start - begin) * 1e3, 6) for s in spans],
            x=[round(s.seconds * 1e3, 6) for s in spans],
            y=[row] * len(spans),
            orientation="h",
            name=cls,
            legendgroup=cls,
            showlegend=legend,
            marker={"color": colour(cls), "line": {"width": 0}},
            text=[_hover(s) for s in spans],
            hovertemplate="%{text}<extra></extra>",
            textposition="none",
        )
    )


def _hover(span: Span) -> str:
    lines = [f"<b>{span.id}</b>", f"{span.kind} on {span.lane}, {span.seconds * 1e6:,.1f} us"]
    if span.name:
        lines.append(span.name)
    if span.bytes:
        lines.append(f"{span.bytes / 1e6:,.3f} MB")
    if span.flops:
        lines.append(f"{span.flops / 1e9:,.3f} GFLOP")
    if span.wait:
        lines.append(f"waits {span.wait * 1e6:,.1f} us for peers")
    if span.source:
        lines.append(f"cost: {span.source}")
    return "<br>".join(lines)
