"""Figures of how a run scales: its days, speed, goodput and expense over the size of the cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from reports.figures.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION
from reports.page import no_narrower
from reports.words import counted
from sim.planning.capacity.capacity import Capacity

_STRONG, _WEAK, _IDEAL = BLUE, GREEN, GREY
_MISS = VERMILION
_NAMED = {"restarts": "from failures to restarts", "repeats": "steps done again", "checkpoints": "checkpoints"}
_COLOURS = {"restarts": _MISS, "repeats": ORANGE, "checkpoints": PURPLE}
"""Colours of the kinds of lost time (`Capacity.lost_s`)."""
_FAR = 5.0
"""If the most expensive size of a cluster costs more than this factor over the cheapest, the axis of expense is logarithmic."""

_PLOT = (480, 230)
"""Least (width, height) of the plot of expense in pixels. Letters of its labels are `_LETTER` wide and `_LINE` high."""
_LETTER, _LINE = 7, 15


def failures(one: Capacity) -> str:
    """`3 failures`."""
    return counted(one.failures, "failure")


_UNITS = ((86400, "days"), (3600, "hours"), (1, "seconds"))


def days(found: Capacity) -> go.Figure:
    """One bar: days of progress and of each kind of lost time (in hours or seconds for short runs)."""
    scale, unit = next((one for one in _UNITS if found.elapsed_s >= 2 * one[0]), _UNITS[-1])
    parts = [
        ("steps that count", found.productive_s, _STRONG),
        *((_NAMED[name], seconds, _COLOURS[name]) for name, seconds in found.lost_s.items()),
    ]
    figure = go.Figure()
    for name, value, colour in parts:
        share = value / found.elapsed_s if found.elapsed_s else 0.0
        figure.add_trace(
            go.Bar(
                y=["run"],
                x=[value / scale],
                orientation="h",
                name=name,
                marker_color=colour,
                text=[f"{share:.1%}" if share > 0.04 else ""],
                hovertemplate=f"{name}: %{{x:.2f}} {unit}<extra></extra>",
            )
        )
    figure.update_layout(
        barmode="stack",
        height=200,
        margin={"b": 90},
        xaxis={"title": unit, "range": [0, found.elapsed_s / scale]},
        yaxis={"visible": False},
        legend={"orientation": "h"},
    )
    return figure


def _kinds(strong: Sequence[Capacity], weak: Sequence[Capacity]) -> list[tuple[str, Sequence[Capacity], dict[str, str]]]:
    named = (("same global batch (strong)", strong, {"color": _STRONG}), ("batch grows (weak)", weak, {"color": _WEAK, "dash": "dash"}))
    return [(name, rows, line) for name, rows, line in named if len(rows) > 1]


def _sizes(strong: Sequence[Capacity], weak: Sequence[Capacity]) -> dict[str, object]:
    marks = sorted({one.gpus for one in (*strong, *weak)})
    return {"type": "log", "title": "GPUs", "tickvals": marks, "ticktext": [f"{mark:,}" for mark in marks]}


def scaling(strong: Sequence[Capacity], weak: Sequence[Capacity]) -> go.Figure:
    """Training speed over GPUs, both axes logarithmic: relative to the smallest cluster, from productive time only; perfect scaling is
    dotted."""
    figure = go.Figure()
    for name, rows, line in _kinds(strong, weak):
        base = rows[0]
        speed = [base.productive_s / one.productive_s for one in rows]
        fits = ["circle" if one.fits else "circle-open" for one in rows]
        share = [f"{found * base.gpus / one.gpus:.1%} of perfect" for found, one in zip(speed, rows, strict=True)]
        figure.add_trace(
            go.Scatter(
                x=[one.gpus for one in rows],
                y=speed,
                mode="lines+markers",
                name=name,
                line=line,
                marker={"symbol": fits, "size": 9},
                text=share,
                hovertemplate="%{x} GPUs: %{y:.2f} x as fast, %{text}<extra></extra>",
            )
        )
    sizes = sorted({one.gpus for one in (*strong, *weak)})
    ideal = {"color": _IDEAL, "dash": "dot"}
    figure.add_trace(go.Scatter(x=sizes, y=[size / sizes[0] for size in sizes], mode="lines", name="perfect", line=ideal, hoverinfo="skip"))
    doubled = [size / sizes[0] for size in sizes]
    y = {"type": "log", "title": "times as fast as the smallest", "tickvals": doubled, "ticktext": [f"{mark:g}" for mark in doubled]}
    figure.update_layout(height=420, margin={"b": 100}, xaxis=_sizes(strong, weak), yaxis=y, legend={"orientation": "h"})
    return figure


def goodput(strong: Sequence[Capacity], weak: Sequence[Capacity]) -> go.Figure:
    """Goodput in % over GPUs."""
    figure = go.Figure()
    for name, rows, line in _kinds(strong, weak):
        figure.add_trace(
            go.Scatter(
                x=[one.gpus for one in rows],
                y=[100 * one.goodput for one in rows],
                mode="lines+markers",
                name=name,
                line=line,
                text=[failures(one) for one in rows],
                hovertemplate="%{x} GPUs: %{y:.1f} %, %{text}<extra></extra>",
            )
        )
    low = min([100 * one.goodput for one in (*strong, *weak)], default=0.0)
    axis = {"title": "goodput, %", "range": [max(0.0, low - 5), 100.5]}
    figure.update_layout(
        height=360, margin={"b": 100}, xaxis=_sizes(strong, weak), yaxis=axis, legend={"orientation": "h"}, showlegend=True
    )
    return figure


_MARKS = 3
"""Least number of marks on an axis whose values differ."""


def _decades(values: Sequence[float]) -> dict[str, object]:
    """Marks of a logarithmic axis at 1, 2 and 5 of each decade, as plain numbers; evenly spaced marks if fewer than `_MARKS` are in the
    values' range."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    ends = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) if low > 0 else range(1)
    marks = [step * 10.0**power for power in ends for step in (1, 2, 5) if 0.5 * low <= step * 10.0**power <= 2 * high]
    if high > low > 0 and sum(low <= mark <= high for mark in marks) < _MARKS:
        size = 10.0 ** math.floor(math.log10((high - low) / _MARKS))
        step = max(size * times for times in (1, 2, 5) if _MARKS * size * times <= high - low)
        marks = [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return {"tickvals": marks, "ticktext": [f"{mark:,.10g}" for mark in marks]}


def legible(spots: Sequence[tuple[float, float, str]]) -> list[str]:
    """The texts of `spots`, "" for those that would overlap another in the narrowest plot. x and y are shares of the plot. The first and
    the last text have priority."""
    taken: list[tuple[float, float, float]] = []
    found = [""] * len(spots)
    for at in dict.fromkeys([0, len(spots) - 1, *range(len(spots))] if spots else []):
        x, y, text = spots[at]
        middle, height, half = x * _PLOT[0], y * _PLOT[1], _LETTER * len(text) / 2
        if text and all(abs(middle - other) >= half + its or abs(height - level) >= _LINE for other, level, its in taken):
            taken.append((middle, height, half))
            found[at] = text
    return found


def _share(values: Sequence[float], log: bool) -> Callable[[float], float]:
    """A function from a value to its place between the least and the largest of `values`, 0 to 1. `log`: on a logarithmic axis."""
    size = math.log if log and min(values, default=0.0) > 0 else float
    low, high = size(min(values, default=0.0)), size(max(values, default=0.0))
    return lambda value: (size(value) - low) / ((high - low) or 1.0)


def expense(strong: Sequence[Capacity], weak: Sequence[Capacity], unit: str) -> go.Figure:
    """Money over days; GPU-hours over days if no prices are given. `unit`: of the prices."""
    money = all(one.money is not None for one in (*strong, *weak))
    figure = go.Figure()
    heights = [(one.money or 0.0) if money else one.gpu_hours for one in (*strong, *weak)] or [0.0]
    steep = max(heights) > _FAR * min(heights) > 0
    across, up = _share([one.days for one in (*strong, *weak)], True), _share(heights if steep else [0.0, *heights], steep)
    labelled: set[tuple[int, float]] = set()
    for (name, rows, line), where in zip(_kinds(strong, weak), ("top center", "bottom center"), strict=False):
        # Labels of the curve with fewer GPU-hours are below it; both curves begin at the same point.
        costs = [(one.money or 0.0) if money else one.gpu_hours for one in rows]
        labels = legible(
            [
                (across(one.days), up(cost), "" if (one.gpus, one.days) in labelled else f"{one.gpus:,}")
                for one, cost in zip(rows, costs, strict=True)
            ]
        )
        labelled |= {(one.gpus, one.days) for one in rows}
        figure.add_trace(
            go.Scatter(
                x=[one.days for one in rows],
                y=costs,
                cliponaxis=False,
                mode="lines+markers+text",
                name=name,
                line=line | {"width": 1},
                marker={"symbol": ["circle" if one.fits else "circle-open" for one in rows], "size": 9},
                text=labels,
                textposition=where,
                customdata=[one.gpus for one in rows],
                hovertemplate="%{customdata:,} GPUs: %{x:.2f} days, %{y:,.0f}<extra></extra>",
            )
        )
    y = f"money{', ' + unit if unit else ''}" if money else "GPU-hours"
    figure.update_layout(
        height=420,
        margin={"b": 100},
        xaxis={"title": "days", "type": "log"} | _decades([one.days for one in (*strong, *weak)]),
        yaxis={"title": y} | ({"type": "log"} | _decades(heights) if steep else {"rangemode": "tozero"}),
        legend={"orientation": "h"},
        showlegend=True,
    )
    return no_narrower(figure, _PLOT[0] + 130)
