"""Parallel coordinates of a sweep: one line for each plan, through its settings and its results.

The lines are a few SVG paths, one for each band of plans. Plotly's own `parcoords` is a WebGL trace: without a GPU it takes over two
seconds for ten lines, it does not print, and its labels are hard to read over its lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from reports.figures.palette import GREEN, GREY, PURPLE, SKY, VERMILION
from reports.page import no_narrower
from reports.words import safe, seconds, setting, short
from sim.planning.sweeps.space import settings_of
from sim.planning.sweeps.store import Row

MOST = 2000
"""The most lines that are drawn, of the best plans."""
_BANDS = (("best 10 %", 0.10, GREEN), ("next 15 %", 0.25, SKY), ("next 25 %", 0.50, PURPLE), ("slower half", 1.0, "#9aa5b1"))
_BEST = VERMILION
_APART = 84
"""Least pixels between axes, so that values fit in."""
_MARKS = 5
"""Number of values that are written along an axis of numbers."""


class Axis(NamedTuple):
    """One vertical axis; places on it are between 0 (bottom) and 1 (top)."""

    label: str
    places: list[float]
    """The place of each plan, in the order of the plans."""
    marks: list[tuple[float, str]]
    """(place, text) of the values that are written beside the axis."""


def per_gpu(row: Row) -> float:
    """Samples per second and GPU."""
    return (row.rate or 0.0) / (row.gpus or 1)


def coordinates(ranked: Sequence[Row]) -> go.Figure:
    """Parallel coordinates: axes of the settings that differ, then of step time, memory, and samples per second and GPU. `ranked`: the best
    plan first."""
    rows = list(ranked[:MOST])
    every = axes(rows)
    figure = go.Figure()
    _rails(figure, every)
    found = bands(len(rows))
    for name, lines, colour in reversed(found):
        _lines(figure, every, lines, name, {"color": colour, "width": 1.2}, 0.9 if len(rows) <= 60 else 0.45)
    _lines(figure, every, range(1), "best", {"color": _BEST, "width": 3.5}, 1.0)
    for name, colour in (("best", _BEST), *((name, colour) for name, _, colour in found)):
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name=name, legendgroup=name, line={"color": colour, "width": 3}))
    _ends(figure, every, rows)
    _written(figure, every)
    figure.update_layout(
        height=470,
        margin={"l": 60, "r": 60, "t": 60, "b": 70},
        xaxis={
            "tickvals": list(range(len(every))),
            "ticktext": [axis.label for axis in every],
            "side": "top",
            "showgrid": False,
            "zeroline": False,
            "range": [-0.55, len(every) - 0.45],
        },
        yaxis={"visible": False, "range": [-0.06, 1.06]},
        legend={"orientation": "h"},
        hovermode="closest",
    )
    longest = max(len(text) for axis in every for _, text in axis.marks)
    return no_narrower(figure, 130 + max(_APART, 7 * longest) * len(every))


def axes(rows: Sequence[Row]) -> list[Axis]:
    """Axes of the settings in which the plans differ, then of the plans' results."""
    found = [settings_of(row.key) for row in rows]
    keys = dict.fromkeys(key for one in found for key in one)
    chosen = [_choices(key, [one.get(key, "-") for one in found]) for key in keys]
    return [
        *(axis for axis in chosen if axis is not None),
        _numbers("step", [row.step_time or 0.0 for row in rows], seconds),
        _numbers("memory", [(row.memory or 0) / 2**30 for row in rows], lambda value: f"{value:.3g} GiB"),
        _numbers("samples<br>/s/GPU", [per_gpu(row) for row in rows], lambda value: f"{value:.3g}"),
    ]


def bands(number: int) -> list[tuple[str, range, str]]:
    """(name, numbers of its plans, colour) of each band of `number` plans, best first; empty bands are left out."""
    found, begin = [], 0
    for name, upto, colour in _BANDS:
        end = max(begin, round(upto * number))
        if end > begin:
            found.append((name, range(begin, end), colour))
        begin = end
    return found


def _choices(key: str, values: Sequence[str]) -> Axis | None:
    """An axis of a setting, with its values sorted; None if all plans have the same value."""
    marks = sorted(set(values), key=lambda value: (0, float(value), "") if _number(value) else (1, 0.0, value))
    if len(marks) < 2:
        return None
    place = {mark: at / (len(marks) - 1) for at, mark in enumerate(marks)}
    shown = marks if len(marks) <= 12 else [marks[0], marks[len(marks) // 2], marks[-1]]
    return Axis(
        safe(short(setting(key), 16)),
        [place[value] for value in values],
        [(place[mark], safe(short(mark, 14))) for mark in shown],
    )


def _numbers(label: str, values: Sequence[float], show: Any) -> Axis:
    """An axis of figures from the least to the most."""
    low, high = min(values), max(values)
    width = high - low or 1.0
    steps = [at / (_MARKS - 1) for at in range(_MARKS)] if high > low else [0.0]
    return Axis(label, [(value - low) / width for value in values], [(at, show(low + at * width)) for at in steps])


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rails(figure: go.Figure, every: Sequence[Axis]) -> None:
    """Draws the axes."""
    x = [value for at in range(len(every)) for value in (at, at, None)]
    y = [value for _ in every for value in (0.0, 1.0, None)]
    rail = {"color": GREY, "width": 1}
    figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line=rail, hoverinfo="skip", showlegend=False))


def _lines(figure: go.Figure, every: Sequence[Axis], plans: Sequence[int], name: str, line: dict[str, Any], opacity: float) -> None:
    """Draws the lines of some plans as one path with gaps."""
    x: list[int | None] = []
    y: list[float | None] = []
    for plan in plans:
        x += [*range(len(every)), None]
        y += [*(round(axis.places[plan], 4) for axis in every), None]
    figure.add_trace(go.Scatter(x=x, y=y, mode="lines", legendgroup=name, line=line, opacity=opacity, hoverinfo="skip", showlegend=False))


def _ends(figure: go.Figure, every: Sequence[Axis], rows: Sequence[Row]) -> None:
    """Draws a point at each plan's end on the last axis; its hover text names the plan."""
    words = [f"{safe(short(row.key, 120))}<br>step {seconds(row.step_time or 0.0)}, {row.gpus} GPUs" for row in rows]
    colours = [colour for _, plans, colour in bands(len(rows)) for _ in plans]
    figure.add_trace(
        go.Scatter(
            x=[len(every) - 1] * len(rows),
            y=[round(place, 4) for place in every[-1].places],
            mode="markers",
            marker={"size": 7, "color": [_BEST, *colours[1:]]},
            text=words,
            hovertemplate="%{text}<extra></extra>",
            showlegend=False,
        )
    )


def _written(figure: go.Figure, every: Sequence[Axis]) -> None:
    """Writes values to the left of their axes (to the right of the last one), with a halo in the page's colour, since lines run behind
    them."""
    last = len(every) - 1
    spots = [(at, place, text) for at, axis in enumerate(every) for place, text in axis.marks]
    figure.add_trace(
        go.Scatter(
            x=[at + (0.08 if at == last else -0.03) for at, *_ in spots],
            y=[place for _, place, _ in spots],
            mode="text",
            text=[text for *_, text in spots],
            textposition=["middle right" if at == last else "middle left" for at, *_ in spots],
            textfont={"size": 11, "shadow": "auto"},
            hoverinfo="skip",
            showlegend=False,
            cliponaxis=False,
        )
    )
