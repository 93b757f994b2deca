"""Figures: functions from data to a Plotly figure, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from reports.palette import WORDS, colour
from reports.words import safe
from sim.align import Comparison

PREDICTED = "#D55E00"
"""Lines that say what was predicted, or what may not be passed."""
_RUNS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00")


def breakdown_bar(split: Mapping[str, float]) -> go.Figure:
    """Where the step goes: one stacked bar, classes that sum to the step, in ms."""
    figure = go.Figure()
    total = sum(split.values()) or 1.0
    for name, seconds in split.items():
        if seconds > 0:
            figure.add_trace(
                go.Bar(
                    y=["step"],
                    x=[seconds * 1e3],
                    orientation="h",
                    name=WORDS.get(name, name),
                    marker_color=colour(name),
                    text=[f"{seconds / total:.0%}" if seconds / total > 0.03 else ""],
                    hovertemplate=f"{WORDS.get(name, name)}: %{{x:.3f}} ms<extra></extra>",
                )
            )
    figure.update_layout(
        barmode="stack",
        height=210,
        xaxis={"title": "milliseconds of the step", "range": [0, total * 1e3]},
        yaxis={"visible": False},
        legend={"orientation": "h"},
        margin={"b": 90},
    )
    return figure


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
            marker_color="#0072B2",
            text=labels,
            textposition="outside",
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
    """From the predicted step to the measured one, class by class, in ms.

    `predicted` and `measured`: breakdowns of a step of each (`sim.timeline.metrics.breakdown`), whose classes sum to the step; without them
    the time of ops by class, which overlaps. `rest`: what is left to the median of the measured steps.
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
            increasing={"marker": {"color": "#D55E00"}},
            decreasing={"marker": {"color": "#009E73"}},
            totals={"marker": {"color": "#0072B2"}},
        )
    )
    figure.update_layout(height=400, yaxis={"title": "ms per step", "range": _room(found, steps, gap)}, showlegend=False)
    figure.update_traces(textposition="outside", cliponaxis=False, connector={"line": {"color": "#8a97a6", "width": 1}})
    return figure


def _room(found: Comparison, steps: Sequence[tuple[str, float]], gap: float) -> list[float]:
    """The range of a waterfall's axis with room for the labels: levels that it passes, in ms."""
    level = found.predicted_step * 1e3
    levels = [level, found.measured_step.median * 1e3]
    for value in (*(value for _, value in steps), gap):
        level += value
        levels.append(level)
    low, high = min(0.0, *levels), max(levels)
    return [low * 1.1, high + 0.12 * (high - low)]


def step_times(times: Mapping[str, Sequence[float]], predicted: float) -> go.Figure:
    """Each measured step as a point beside the box of its run (median, quartiles), in ms; the prediction is the dashed line."""
    figure = go.Figure()
    for number, (name, values) in enumerate(times.items()):
        tint = _RUNS[number % len(_RUNS)]
        figure.add_trace(
            go.Scatter(
                y=[v * 1e3 for v in values],
                x=list(range(len(values))),
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
    longest = max((len(values) for values in times.values()), default=1)
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


def memory_line(
    lines: Mapping[int, Sequence[tuple[float, int]]], capacity: int | None = None, within: tuple[float, float] | None = None
) -> go.Figure:
    """Device memory over time in GiB (MiB where that is more than enough), a line for each of at most eight ranks; ms from the beginning of `within` (begin, end)."""
    begin, end = within or (0.0, max((t for line in lines.values() for t, _ in line), default=0.0))
    most = max((used for line in lines.values() for _, used in line), default=0)
    unit, name = (2**30, "GiB") if most >= 0.2 * 2**30 else (2**20, "MiB")
    figure = go.Figure()
    for rank, line in sorted(lines.items())[:8]:
        shown = envelope(clip(line, begin, end))
        figure.add_trace(
            go.Scatter(
                x=[round((t - begin) * 1e3, 6) for t, _ in shown],
                y=[round(b / unit, 6) for _, b in shown],
                mode="lines",
                line={"shape": "hv", "width": 1.5},
                name=f"rank {rank}",
                hovertemplate=f"rank {rank}: %{{y:.3f}} {name} at %{{x:.2f}} ms<extra></extra>",
            )
        )
    high = most / unit
    limit = capacity / unit if capacity is not None and capacity < 4 * most else 0.0
    if limit:
        label = f"device memory {limit:.0f} {name}"
        figure.add_hline(y=limit, line_dash="dash", line_color=PREDICTED, annotation_text=label, annotation_position="bottom left")
    top = 1.08 * max(high, limit)
    figure.update_layout(
        height=330 if len(lines) > 1 else 290,
        margin={"b": 80 if len(lines) > 1 else 40},
        xaxis={"title": "milliseconds from the beginning of the step", "range": [0, (end - begin) * 1e3]},
        yaxis={"title": name, "range": [0, top or 1.0]},
        legend={"orientation": "h"},
        showlegend=len(lines) > 1,
    )
    return figure


def clip(line: Sequence[tuple[float, int]], begin: float, end: float) -> list[tuple[float, int]]:
    """The part of a step line between `begin` and `end`, with its value at both ends."""
    before = [used for t, used in line if t <= begin]
    inside = [(t, used) for t, used in line if begin < t <= end]
    found = [(begin, before[-1])] if before else []
    found += inside
    return [*found, (end, found[-1][1])] if found else []


def envelope(line: Sequence[tuple[float, int]], most: int = 3000) -> list[tuple[float, int]]:
    """At most about `most` points: of each stretch its lowest and highest, so that no peak is lost."""
    if len(line) <= most:
        return list(line)
    every = -(-2 * len(line) // most)
    found: list[tuple[float, int]] = []
    for at in range(0, len(line), every):
        part = line[at : at + every]
        ends = {min(range(len(part)), key=lambda i: part[i][1]), max(range(len(part)), key=lambda i: part[i][1])}
        found += [part[i] for i in sorted(ends)]
    return found


def sources_bar(shares: Mapping[str, float]) -> go.Figure:
    """On what the costs rest: measured here, fitted on published data, or assumed."""
    figure = go.Figure()
    for name, share in shares.items():
        figure.add_trace(
            go.Bar(
                y=["costs"],
                x=[share * 100],
                orientation="h",
                name=safe(name),
                marker_color=colour(name),
                text=[f"{share:.0%}" if share > 0.03 else ""],
                hovertemplate=f"{safe(name)}: %{{x:.1f}} %<extra></extra>",
            )
        )
    figure.update_layout(
        barmode="stack",
        height=200,
        xaxis={"title": "% of the time in ops", "range": [0, 100]},
        yaxis={"visible": False},
        legend={"orientation": "h"},
        margin={"b": 90},
    )
    return figure
