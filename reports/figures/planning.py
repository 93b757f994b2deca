"""Figures of what the planning functions return: explanations, faults, jobs and spreads, for their pages and for notebooks.

Figures of sweeps and of capacity are in other files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from reports.figures.palette import BLUE, GREY, PREDICTED, colour
from reports.page import no_narrower
from reports.words import clock, safe

if TYPE_CHECKING:
    from sim.planning.disturbed.faults import Faults
    from sim.planning.disturbed.jobs import Jobs
    from sim.planning.explain.explanation import Explanation
    from sim.planning.montecarlo import Spread

_NOW = BLUE
_MOST = 12


def critical_path(found: Explanation) -> go.Figure:
    """Time of the step on its critical path by class of op, longest at the top."""
    rows = [(name, time) for name, time in found.path if time > 0][:_MOST]
    shares = [f"{time / found.step_time_s:.1%}" for _, time in rows]
    return _bars([name for name, _ in rows], {"": [time for _, time in rows]}, shares, [[colour(name) for name, _ in rows]])


def without_limit(found: Explanation) -> go.Figure:
    """The step if one resource were infinitely fast, a bar for each resource; the dashed line is the step as it is."""
    rows = found.sensitivities
    labels = [f"elasticity {row.elasticity:+z.2f}" for row in rows]
    times = {"": [row.infinitely_fast for row in rows]}
    return _bars([row.resource for row in rows], times, labels, line=(found.step_time_s, "now"))


def changes(found: Explanation) -> go.Figure:
    """The step with each of the best changes of plan; the dashed line is the step as it is."""
    rows = found.changes
    names, times = [" ".join(row.overrides) for row in rows], {"": [row.step_time_s for row in rows]}
    return _bars(names, times, [f"{-row.gain:+.1%}" for row in rows], line=(found.step_time_s, "now"))


def faults(found: Faults) -> go.Figure:
    """The step under each fault; the dashed line is the step of the whole machine."""
    rows = found.rows
    names, times = [row.fault for row in rows], {"": [row.step_time_s for row in rows]}
    return _bars(names, times, [f"{row.slowdown:.3f} x" for row in rows], line=(found.step_time_s, "nothing broken"))


def jobs(found: Jobs) -> go.Figure:
    """Each job's step in each placement: alone, and beside the others."""
    names = [f"{row.job} {row.plan}, {row.placement}" for row in found.rows]
    times = {"alone": [row.alone_s for row in found.rows], "beside the others": [row.together_s for row in found.rows]}
    return _bars(names, times, [f"{row.slowdown:.3f} x" for row in found.rows], [GREY, _NOW])


def spread(found: Spread) -> go.Figure:
    """How often each step time was drawn; dashed lines at the median, P95 and P99."""
    scale, unit, _ = clock(max(found.samples))
    figure = go.Figure(go.Histogram(x=[scale * time for time in found.samples], marker_color=_NOW, nbinsx=40, name="draws"))
    # The three lines may be close together: so their labels have three heights, above the bars and below the buttons.
    for height, (name, at) in zip((1.0, 1.08, 1.16), (("P50", found.p50), ("P95", found.p95), ("P99", found.p99)), strict=True):
        figure.add_vline(x=scale * at, line_dash="dash", line_color=PREDICTED)
        figure.add_annotation(x=scale * at, y=height, yref="paper", text=name, showarrow=False, xanchor="left", yanchor="bottom")
    return figure.update_layout(height=380, margin={"t": 90}, xaxis_title=f"{unit} per step", yaxis_title="draws", showlegend=False)


def _bars(
    names: Sequence[str],
    times: Mapping[str, Sequence[float]],
    labels: Sequence[str],
    tints: Sequence[str | Sequence[str]] = (_NOW,),
    line: tuple[float, str] | None = None,
) -> go.Figure:
    """Horizontal bars in ms (s for long steps); `times` are in seconds. There is a group for each name, and in it a bar for each series;
    labels are at the bars of the last series. `tints`: colours of the series. `line`: (seconds, label) of a dashed line."""
    figure = go.Figure()
    last = list(times)[-1]
    high = max([1.2 * max((value for values in times.values() for value in values), default=1e-3), *([1.1 * line[0]] if line else [])])
    scale, unit, _ = clock(high)
    for tint, (series, values) in zip(tints, times.items(), strict=True):
        bar = go.Bar(
            y=[safe(name) for name in names],
            x=[scale * value for value in values],
            orientation="h",
            name=series,
            marker_color=tint,
            text=list(labels) if series == last else None,
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"%{{y}}: %{{x:.3f}} {unit}<extra></extra>",
        )
        figure.add_trace(bar)
    no_narrower(figure, 220 + 7 * max(map(len, names), default=0))
    figure.update_layout(
        barmode="group",
        height=150 + 34 * len(names) * len(times),
        margin={"b": 90},
        xaxis={"title": f"{unit} per step", "range": [0, scale * high]},
        yaxis={"autorange": "reversed"},
        legend={"orientation": "h"},
        showlegend=len(times) > 1,
    )
    if line:
        figure.add_vline(x=scale * line[0], line_dash="dash", line_color=PREDICTED, annotation_text=line[1], annotation_position="top")
        # Labels outside the bars could be on the line.
        figure.update_traces(textposition="inside", insidetextanchor="start")
        # The line's label is above the plot, and below the bar with the buttons.
        figure.update_layout(margin_t=64, height=figure.layout.height + 24)
    return figure
