"""A collective's bandwidth and time over its size, as figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from reports.figures.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from reports.words import safe, seconds
from topologies.units import show_size

COLOURS = {
    "ring": BLUE,
    "tree": GREEN,
    "nvls": PURPLE,
    "collnet": "#8C6BB1",
    "hierarchical": ORANGE,
    "direct": SKY,
    "pat": VERMILION,
}
"""Algorithm of `sim.cost.collective` -> its colour."""
_REST = ("#7f8c9b", "#A6761D", "#5F7FA8")
_SYMBOLS = {"simple": "circle", "ll": "diamond", "ll128": "square"}
_LINE = GREY


def bandwidth(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """busbw (solid) and algbw (dotted) in GB/s over bytes; points coloured by the algorithm."""
    figure = go.Figure()
    _curve(figure, rows, "algbw_GBps", "algbw", "dot")
    _curve(figure, rows, "busbw_GBps", "busbw", "solid")
    _points(figure, rows, "busbw_GBps", "GB/s busbw")
    figure.update_layout(
        height=440, margin={"b": 100}, xaxis=_sizes(rows), yaxis={"title": "GB/s", "rangemode": "tozero"}, legend={"orientation": "h"}
    )
    return figure


def times(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Time in microseconds over bytes, both logarithmic."""
    figure = go.Figure()
    _curve(figure, rows, "time_us", "time", "solid")
    _points(figure, rows, "time_us", "us")
    figure.update_layout(
        height=400,
        margin={"b": 100},
        xaxis=_sizes(rows),
        yaxis={"title": "microseconds", "type": "log", "dtick": 1},
        legend={"orientation": "h"},
    )
    return figure


def _sizes(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A logarithmic axis with marks at some of the rows' sizes, as text with units."""
    every = max(1, -(-len(rows) // 12))
    marks = [r["bytes"] for r in rows][::every]
    return {"type": "log", "title": "size", "tickvals": marks, "ticktext": [show_size(mark) for mark in marks]}


def _curve(figure: go.Figure, rows: Sequence[Mapping[str, Any]], key: str, name: str, dash: str) -> None:
    figure.add_trace(
        go.Scatter(
            x=[r["bytes"] for r in rows],
            y=[r[key] for r in rows],
            mode="lines",
            name=name,
            line={"color": _LINE, "width": 1.0, "dash": dash},
            hoverinfo="skip",
        )
    )


def _points(figure: go.Figure, rows: Sequence[Mapping[str, Any]], key: str, unit: str) -> None:
    names = list(dict.fromkeys(r["algorithm"] for r in rows))
    for number, name in enumerate(names):
        mine = [r for r in rows if r["algorithm"] == name]
        figure.add_trace(
            go.Scatter(
                x=[r["bytes"] for r in mine],
                y=[r[key] for r in mine],
                mode="markers",
                name=safe(name),
                marker={
                    "color": COLOURS.get(str(name).lower(), _REST[number % len(_REST)]),
                    "size": 9,
                    "symbol": [_SYMBOLS.get(str(r["protocol"]).lower(), "circle") for r in mine],
                },
                text=[f"{safe(r['size'])}: {seconds(r['time_us'] * 1e-6)}, {safe(r['algorithm'])} {safe(r['protocol'])}" for r in mine],
                hovertemplate=f"%{{text}}<br>%{{y:.2f}} {unit}<extra></extra>",
            )
        )
