"""Parts of a whole as one stacked bar: the step by class, and the costs by their source."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from reports.figures.palette import WORDS, colour
from reports.words import clock, safe


def breakdown_bar(split: Mapping[str, float]) -> go.Figure:
    """Where the step goes: one stacked bar of classes that sum to the step, in ms (s for long steps). `split`: class -> seconds."""
    total = sum(split.values()) or 1.0
    time = clock(total)
    parts = [
        _part("step", name, seconds * time.scale, seconds / total, WORDS.get(name, name), f"%{{x:.3f}} {time.unit}")
        for name, seconds in split.items()
        if seconds > 0
    ]
    return _bar(parts, 210, f"{time.title} of the step", total * time.scale)


def sources_bar(shares: Mapping[str, float]) -> go.Figure:
    """Shares of the costs by source: measured here, fitted on published data, or assumed."""
    parts = [_part("costs", name, share * 100, share, safe(name), "%{x:.1f} %") for name, share in shares.items()]
    return _bar(parts, 200, "% of the time in ops", 100)


def _part(whole: str, name: str, length: float, share: float, words: str, told: str) -> go.Bar:
    return go.Bar(
        y=[whole],
        x=[length],
        orientation="h",
        name=words,
        marker_color=colour(name),
        text=[f"{share:.0%}" if share > 0.03 else ""],
        hovertemplate=f"{words}: {told}<extra></extra>",
    )


def _bar(parts: list[go.Bar], height: int, title: str, end: float) -> go.Figure:
    figure = go.Figure(parts)
    figure.update_layout(
        barmode="stack",
        height=height,
        xaxis={"title": title, "range": [0, end]},
        yaxis={"visible": False},
        legend={"orientation": "h"},
        margin={"b": 90},
    )
    return figure
