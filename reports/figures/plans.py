"""Figures of a sweep's plans: time against memory and cost, and where the steps of the best plans go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from reports.figures.coordinates import per_gpu
from reports.figures.palette import BLUE, GREY, VERMILION, WORDS, colour
from reports.page import no_narrower
from reports.words import clock, safe, seconds, setting, short
from sim.planning.sweeps.front import kind
from sim.planning.sweeps.space import settings_of
from sim.planning.sweeps.store import Row
from sim.planning.sweeps.tables import unit_of

_MOST_POINTS = 6000
_SCALE = "Viridis"
_WIDE = 44
"""Letters in a line of a plan's label, which has at most three lines."""


def breakdowns(rows: Sequence[Row]) -> go.Figure:
    """Where the steps of the given plans go: stacked bars in ms (s for long steps), the first plan on top."""
    figure = go.Figure()
    scale, unit, _ = clock(max((row.step_time or 0.0 for row in rows), default=0.0))
    splits = [json.loads(row.detail).get("breakdown", {}) for row in rows]
    lines = [wrap(f"{place}. {short(words, 3 * _WIDE)}", _WIDE) for place, words in enumerate(_differences(rows), 1)]
    names = ["<br>".join(map(safe, some)) for some in lines]
    for key in dict.fromkeys(key for split in splits for key in split):
        values = [split.get(key, 0.0) * scale for split in splits]
        if any(values):
            word = WORDS.get(key, safe(key))
            figure.add_trace(
                go.Bar(
                    y=names,
                    x=values,
                    orientation="h",
                    name=word,
                    marker_color=colour(key),
                    hovertemplate=f"{word}: %{{x:.2f}} {unit}<extra></extra>",
                )
            )
    figure.update_layout(
        barmode="stack",
        height=170 + sum(max(34, 17 * len(some)) for some in lines),
        margin={"b": 90},
        xaxis={"title": f"{unit} per step"},
        yaxis={"autorange": "reversed"},
        legend={"orientation": "h"},
    )
    return no_narrower(figure, 220 + 7 * max((len(line) for some in lines for line in some), default=0))


def _differences(rows: Sequence[Row]) -> list[str]:
    """A label for each plan: the settings in which these plans differ, `tp=2 recompute=none`."""
    found = [settings_of(row.key) for row in rows]
    keys = [key for key in dict.fromkeys(key for one in found for key in one) if len({one.get(key) for one in found}) > 1]
    return [" ".join(f"{setting(key)}={one[key]}" for key in keys if key in one) for one in found]


def pareto_figure(ranked: Sequence[Row], front: Sequence[Row]) -> go.Figure:
    """GPU-seconds per sample against peak memory. The colour is the cost, if prices are known; the Pareto front is a line."""
    shown = list(ranked[:_MOST_POINTS])
    cost = any(row.cost for row in shown)
    marker, scale = {"size": 7, "color": GREY, "opacity": 0.75}, dict[str, Any]()
    if cost:
        title = {"text": f"cost per<br>million {unit_of(shown)}"}
        costs = [row.cost or 0.0 for row in shown]
        scale = {"colorscale": _SCALE, "cmin": min(costs), "cmax": max(costs)}
        marker |= scale | {"color": costs, "colorbar": {"title": title, "thickness": 12}}
    figure = go.Figure(_points(shown, "plans that fit", "markers", marker))
    for at, same in enumerate(dict.fromkeys(map(kind, front))):  # one line for each machine, model and sequence length
        edge = sorted((row for row in front if kind(row) == same), key=lambda row: row.memory or 0)
        colours = scale | {"color": [row.cost or 0.0 for row in edge], "line": {"color": BLUE, "width": 1.5}} if cost else {"color": BLUE}
        line = _points(edge, "nothing beats these", "lines+markers", {"size": 10, "symbol": "diamond"} | colours)
        look = {"color": BLUE, "width": 1.5, "shape": "linear" if cost else "hv"}
        figure.add_trace(line.update(line=look, showlegend=not at, legendgroup="front"))
    best = _points(list(ranked[:1]), "best", "markers", {"size": 16, "color": VERMILION, "symbol": "star"})
    figure.add_trace(best)
    figure.update_layout(
        height=460,
        margin={"b": 100},
        xaxis={"title": "peak memory per GPU, GiB"},
        yaxis={"title": "GPU-seconds per sample", "type": "log", "exponentformat": "SI"},
        legend={"orientation": "h"},
    )
    return figure


def _points(rows: Sequence[Row], name: str, mode: str, marker: dict[str, Any]) -> go.Scatter:
    return go.Scatter(
        x=[round((row.memory or 0) / 2**30, 4) for row in rows],
        y=[1.0 / per_gpu(row) if per_gpu(row) else None for row in rows],
        mode=mode,
        name=name,
        marker=marker,
        text=[
            f"{safe(short(row.key, 120))}<br>step {seconds(row.step_time or 0.0)}, {row.gpus} GPUs{', nearly full' if row.nearly_full else ''}"
            for row in rows
        ],
        hovertemplate="%{text}<br>%{x:.2f} GiB, %{y:.4g} GPU-seconds per sample<extra></extra>",
    )
