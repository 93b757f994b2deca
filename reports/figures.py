"""Figures: functions from data to a Plotly figure, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from reports.palette import WORDS, colour
from sim.align import Comparison
from sim.trace import Trace


def breakdown_bar(split: Mapping[str, float], title: str = "") -> go.Figure:
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
    figure.update_layout(barmode="stack", height=170, title=title, xaxis_title="ms", yaxis={"visible": False}, legend={"orientation": "h"})
    return figure


def class_errors(found: Comparison) -> go.Figure:
    """Seconds per step and rank by class of op, predicted beside measured."""
    rows = [row for row in found.classes if max(row.predicted, row.measured) > 0][:16][::-1]
    names = [row.cls for row in rows]
    figure = go.Figure()
    figure.add_trace(
        go.Bar(y=names, x=[r.measured * 1e3 for r in rows], orientation="h", name=f"measured ({found.origin})", marker_color="#7f8c9b")
    )
    labels = [f"{row.error:+.0%}" if row.error is not None else "not measured" for row in rows]
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
        height=120 + 42 * len(rows),
        xaxis_title="ms per step and rank",
        yaxis={"automargin": True},
        legend={"orientation": "h"},
    )
    return figure


def waterfall(found: Comparison) -> go.Figure:
    """From the predicted step to the measured one, class by class; `rest` is what overlaps or belongs to no op."""
    ranked = sorted(found.classes, key=lambda row: -abs(row.predicted - row.measured))[:8]
    steps = [(row.cls, (row.measured - row.predicted) * 1e3) for row in ranked]
    gap = (found.measured_step.median - found.predicted_step) * 1e3 - sum(value for _, value in steps)
    figure = go.Figure(
        go.Waterfall(
            x=["predicted", *(name for name, _ in steps), "rest", "measured"],
            y=[found.predicted_step * 1e3, *(value for _, value in steps), gap, 0],
            measure=["absolute", *("relative" for _ in steps), "relative", "total"],
            text=[
                f"{found.predicted_step * 1e3:.2f}",
                *(f"{v:+.2f}" for _, v in steps),
                f"{gap:+.2f}",
                f"{found.measured_step.median * 1e3:.2f}",
            ],
            increasing={"marker": {"color": "#D55E00"}},
            decreasing={"marker": {"color": "#009E73"}},
            totals={"marker": {"color": "#0072B2"}},
        )
    )
    figure.update_layout(height=380, yaxis_title="ms")
    return figure


def step_times(times: Mapping[str, Sequence[float]], predicted: float) -> go.Figure:
    """Each measured step as a point, with the prediction as a line."""
    figure = go.Figure()
    for name, values in times.items():
        figure.add_trace(go.Scatter(y=[v * 1e3 for v in values], mode="markers+lines", name=name, line={"width": 1}))
    figure.add_hline(y=predicted * 1e3, line_dash="dash", line_color="#D55E00", annotation_text="predicted")
    figure.update_layout(height=300, xaxis_title="step", yaxis_title="ms", yaxis_rangemode="tozero", legend={"orientation": "h"})
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
                name=cls,
                text=[p.id for p in mine],
                marker={"color": colour(cls), "size": 6},
                hovertemplate="%{text}<br>measured %{x:.1f} us, predicted %{y:.1f} us<extra></extra>",
            )
        )
    if points:
        low = min(min(p.predicted, p.measured) for p in points) * 1e6
        high = max(max(p.predicted, p.measured) for p in points) * 1e6
        figure.add_trace(go.Scatter(x=[low, high], y=[low, high], mode="lines", name="equal", line={"dash": "dot", "color": "#888"}))
    figure.update_layout(height=460, xaxis={"type": "log", "title": "measured, us"}, yaxis={"type": "log", "title": "predicted, us"})
    return figure


def memory_line(trace: Trace, capacity: int | None = None) -> go.Figure:
    """Device memory over time, a line for each simulated rank, in GiB."""
    figure = go.Figure()
    for rank, line in sorted(trace.memory.items())[:8]:
        every = max(1, len(line) // 2000)
        figure.add_trace(
            go.Scatter(
                x=[t * 1e3 for t, _ in line[::every]],
                y=[b / 2**30 for _, b in line[::every]],
                mode="lines",
                line={"shape": "hv"},
                name=f"rank {rank}",
            )
        )
    if capacity:
        figure.add_hline(y=capacity / 2**30, line_dash="dash", line_color="#D55E00", annotation_text="capacity")
    figure.update_layout(height=300, xaxis_title="ms", yaxis_title="GiB")
    return figure


def sources_bar(shares: Mapping[str, float]) -> go.Figure:
    """On what the costs rest: measured here, fitted on published data, or assumed."""
    figure = go.Figure()
    for name, share in shares.items():
        figure.add_trace(go.Bar(y=["costs"], x=[share * 100], orientation="h", name=name, marker_color=colour(name), text=[f"{share:.0%}"]))
    figure.update_layout(
        barmode="stack",
        height=150,
        xaxis={"title": "% of the time in ops", "range": [0, 100]},
        yaxis={"visible": False},
        legend={"orientation": "h"},
    )
    return figure
