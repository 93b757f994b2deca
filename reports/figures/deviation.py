"""Figures of predicted beside measured times: by class of op, op by op, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from reports.figures.palette import BLUE, GREEN, GREY, ORANGE, PREDICTED, PURPLE, VERMILION, WORDS, colour
from reports.words import safe
from sim.align import Comparison

_RUNS = (BLUE, GREEN, PURPLE, ORANGE)


def class_errors(found: Comparison) -> go.Figure:
    """Seconds per step and rank by class of op, predicted beside measured."""
    rows = [row for row in found.classes if max(row.predicted, row.measured) > 0][:16][::-1]
    names = [safe(row.cls) for row in rows]
    figure = go.Figure()
    figure.add_trace(
        go.Bar(y=names, x=[r.measured * 1e3 for r in rows], orientation="h", name=f"measured ({found.origin})", marker_color="#7f8c9b")
    )
    labels = [f"{row.error:+z.0%}" if row.error is not None else "not measured" for row in rows]
    figure.add_trace(
        go.Bar(
            y=names,
            x=[r.predicted * 1e3 for r in rows],
            orientation="h",
            name="predicted",
            marker_color=BLUE,
            text=labels,
            textposition="outside",
            cliponaxis=False,
        )
    )
    figure.update_layout(
        barmode="group",
        height=170 + 42 * len(rows),
        xaxis={"title": "ms per step and rank", "range": [0, 1.12e3 * max([max(r.predicted, r.measured) for r in rows], default=1e-3)]},
        legend={"orientation": "h"},
        margin={"b": 90},
    )
    return figure


def waterfall(found: Comparison, predicted: Mapping[str, float] | None = None, measured: Mapping[str, float] | None = None) -> go.Figure:
    """A waterfall from the predicted step to the measured one, class by class, in ms.

    `predicted` and `measured`: breakdowns of a step of each (`sim.align.breakdowns`), whose classes sum to the step; without them, times of
    ops by class, which can overlap. The bar `rest` is the difference that remains to the median of the measured steps.
    """
    if predicted is not None and measured is not None:
        steps = [
            (WORDS.get(name, safe(name)), (measured[name] - predicted[name]) * 1e3)
            for name in predicted
            if measured[name] or predicted[name]
        ]
        steps.sort(key=lambda pair: -abs(pair[1]))
    else:
        ranked = sorted(found.classes, key=lambda row: -abs(row.predicted - row.measured))[:8]
        steps = [(safe(row.cls), (row.measured - row.predicted) * 1e3) for row in ranked]
    gap = (found.measured_step.median - found.predicted_step) * 1e3 - sum(value for _, value in steps)
    figure = go.Figure(
        go.Waterfall(
            x=["predicted", *(name.replace(" ", "<br>") for name, _ in steps), "rest", "measured"],
            y=[found.predicted_step * 1e3, *(value for _, value in steps), gap, 0],
            measure=["absolute", *("relative" for _ in steps), "relative", "total"],
            text=[
                f"{found.predicted_step * 1e3:.2f}",
                *(f"{v:+z.2f}" for _, v in steps),
                f"{gap:+z.2f}",
                f"{found.measured_step.median * 1e3:.2f}",
            ],
            increasing={"marker": {"color": VERMILION}},
            decreasing={"marker": {"color": GREEN}},
            totals={"marker": {"color": BLUE}},
        )
    )
    figure.update_layout(height=400, yaxis={"title": "ms per step", "range": _room(found, steps, gap)}, showlegend=False)
    figure.update_traces(textposition="outside", cliponaxis=False, connector={"line": {"color": GREY, "width": 1}})
    return figure


def _room(found: Comparison, steps: Sequence[tuple[str, float]], gap: float) -> list[float]:
    """The range of a waterfall's axis in ms: all levels that it reaches, and room for labels."""
    level = found.predicted_step * 1e3
    levels = [level, found.measured_step.median * 1e3]
    for value in (*(value for _, value in steps), gap):
        level += value
        levels.append(level)
    low, high = min(0.0, *levels), max(levels)
    return [low * 1.1, high + 0.12 * (high - low)]


def scatter(found: Comparison) -> go.Figure:
    """Every op: measured against predicted, log axes, with the line where they are equal."""
    points = [p for p in found.pairs if p.predicted > 0 and p.measured > 0]
    figure = go.Figure()
    for cls in sorted({p.cls or p.kind for p in points}):
        mine = [p for p in points if (p.cls or p.kind) == cls]
        figure.add_trace(
            go.Scatter(
                x=[p.measured * 1e6 for p in mine],
                y=[p.predicted * 1e6 for p in mine],
                mode="markers",
                name=safe(cls),
                text=[safe(p.id) for p in mine],
                marker={"color": colour(cls), "size": 6},
                hovertemplate="%{text}<br>measured %{x:.1f} us, predicted %{y:.1f} us<extra></extra>",
            )
        )
    if points:
        low = min(min(p.predicted, p.measured) for p in points) * 1e6
        high = max(max(p.predicted, p.measured) for p in points) * 1e6
        figure.add_trace(go.Scatter(x=[low, high], y=[low, high], mode="lines", name="equal", line={"dash": "dot", "color": "#888"}))
    axis = {"type": "log", "dtick": 1, "exponentformat": "power"}
    figure.update_layout(height=480, xaxis=axis | {"title": "measured, us"}, yaxis=axis | {"title": "predicted, us"})
    return figure


def step_times(times: Mapping[str, Sequence[float]], predicted: float, numbers: Mapping[str, Sequence[int]] | None = None) -> go.Figure:
    """Each measured step as a point beside the box of its run (median, quartiles), in ms; the prediction is the dashed line. `numbers`: of the steps
    of runs that say them; others count from 0."""
    figure = go.Figure()
    steps = {name: list((numbers or {}).get(name, range(len(values)))) for name, values in times.items()}
    for number, (name, values) in enumerate(times.items()):
        tint = _RUNS[number % len(_RUNS)]
        figure.add_trace(
            go.Scatter(
                y=[v * 1e3 for v in values],
                x=steps[name],
                mode="markers+lines",
                name=safe(name),
                legendgroup=safe(name),
                line={"width": 1, "color": tint},
                hovertemplate=f"{safe(name)}, step %{{x}}: %{{y:.2f}} ms<extra></extra>",
            )
        )
        box = go.Box(
            y=[v * 1e3 for v in values], name=safe(name), xaxis="x2", marker_color=tint, boxpoints="all", jitter=0.5, pointpos=-1.6
        )
        figure.add_trace(box.update(showlegend=False, legendgroup=safe(name), marker_size=3))
    figure.add_hline(y=predicted * 1e3, line_dash="dash", line_color=PREDICTED)
    figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name="predicted", line={"dash": "dash", "color": PREDICTED}))
    told = [number for of_run in steps.values() for number in of_run]
    longest = 1 + max(told, default=0) - min(told, default=0)
    high = max([predicted, *(v for values in times.values() for v in values)]) * 1e3
    figure.update_layout(
        height=340,
        margin={"b": 90},
        xaxis={"title": "number of the step", "domain": [0, 0.68], "tickformat": "d", "dtick": max(1, -(-longest // 10))},
        xaxis2={"title": "distribution", "domain": [0.72, 1], "anchor": "y"},
        yaxis={"title": "ms per step", "range": [0, 1.08 * high]},
        legend={"orientation": "h"},
    )
    return figure
