"""Figures of predictions against published steps: each row, and the distribution of the errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from reports.figures.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from reports.words import safe

_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, "#8C6BB1", "#7F8C9B", "#A6761D")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross")
_LINE = GREY


def scatter(predictions: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """Predicted against measured seconds, both axes logarithmic, with a colour and symbol for each source."""
    figure = go.Figure()
    times = [row[key] for row in predictions.values() for key in ("measured_s", "predicted_s")] or [1.0]
    ends = [min(times) / 1.3, max(times) * 1.3]
    for factor, dash, name in ((1.0, "solid", "equal"), (1.2, "dot", "20 % off"), (1 / 1.2, "dot", "")):
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=[end * factor for end in ends],
                mode="lines",
                line={"color": _LINE, "width": 1, "dash": dash},
                name=name,
                showlegend=bool(name),
                hoverinfo="skip",
            )
        )
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for row_id, row in predictions.items():
        groups.setdefault(row["source"], []).append((row_id, row))
    for index, (source, rows) in enumerate(sorted(groups.items(), key=lambda item: -len(item[1]))):
        figure.add_trace(
            go.Scatter(
                x=[row["measured_s"] for _, row in rows],
                y=[row["predicted_s"] for _, row in rows],
                mode="markers",
                name=safe(f"{source} ({len(rows)})"),
                marker={"size": 6, "opacity": 0.75, "color": _COLOURS[index % len(_COLOURS)], "symbol": _SYMBOLS[index % len(_SYMBOLS)]},
                text=[_hover(row_id, row) for row_id, row in rows],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    axis = {"type": "log", "dtick": 1, "exponentformat": "none"}
    figure.update_layout(
        height=620, xaxis={**axis, "title": "measured, s"}, yaxis={**axis, "title": "predicted, s"}, legend={"itemsizing": "constant"}
    )
    return figure


def _hover(row_id: str, row: Mapping[str, Any]) -> str:
    error = row["predicted_s"] / row["measured_s"] - 1.0
    return (
        f"<b>{safe(row_id)}</b><br>{safe(row['model'])} on {safe(row['gpu'])}<br>{safe(row['what'])}<br>"
        f"measured {row['measured_s']:.4g} s, predicted {row['predicted_s']:.4g} s ({error:+.1%})<br>"
        f"80 %: {row['low_s']:.4g} to {row['high_s']:.4g} s, {row['mark']}"
    )


def distribution(summary: Mapping[str, Any]) -> go.Figure:
    """Histograms of the signed errors in %, ours in front of the baseline's; errors beyond -100 .. +100 % count at the edge."""
    rows, mfu = summary["predictions"].values(), summary["baseline_constant_mfu"]["mfu"]
    ours = [row["predicted_s"] / row["measured_s"] - 1.0 for row in rows]
    base = [row["ideal_s"] / mfu / row["measured_s"] - 1.0 for row in rows if row["ideal_s"] > 0 and mfu > 0]
    figure = go.Figure()
    for name, errors, colour in (("one MFU for everything", base, "#C9A25F"), ("StepTwin", ours, BLUE)):
        figure.add_trace(
            go.Histogram(
                x=[max(-99.0, min(99.0, 100 * error)) for error in errors],
                xbins={"start": -100, "end": 100, "size": 4},
                name=name,
                marker_color=colour,
                opacity=0.65,
                hovertemplate="%{x} %: %{y} rows<extra>" + name + "</extra>",
            )
        )
    figure.update_layout(
        barmode="overlay", height=320, xaxis_title="error, %", yaxis_title="rows", legend={"orientation": "h", "y": 1.1}, bargap=0.04
    )
    return figure
