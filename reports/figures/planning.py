"""Figures of what the planning functions return: explanations, capacities, faults, jobs and spreads.

The pages of sweeps and of capacity have files of their own; these are the short forms that a notebook shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from reports.figures.palette import PREDICTED, colour
from reports.page import no_narrower
from reports.words import safe

if TYPE_CHECKING:
    from sim.planning.disturbed.faults import Faults
    from sim.planning.disturbed.jobs import Jobs
    from sim.planning.explain.explanation import Explanation
    from sim.planning.montecarlo import Spread

_NOW = "#0072B2"
_MOST = 12


def critical_path(found: Explanation) -> go.Figure:
    """Milliseconds of the step on its critical path by class of op, longest at the top."""
    rows = [(name, time) for name, time in found.path if time > 0][:_MOST]
    shares = [f"{time / found.step_time_s:.1%}" for _, time in rows]
    return _bars([name for name, _ in rows], {"": [time for _, time in rows]}, shares, [[colour(name) for name, _ in rows]])


def without_limit(found: Explanation) -> go.Figure:
    """The step, in ms, if one resource were infinitely fast: each bar a resource, the dashed line the step as it is."""
    rows = found.sensitivities
    labels = [f"elasticity {row.elasticity:+z.2f}" for row in rows]
    figure = _bars([row.resource for row in rows], {"": [row.infinitely_fast for row in rows]}, labels)
    return _marked(figure, found.step_time_s, "now")


def changes(found: Explanation) -> go.Figure:
    """The step, in ms, with each of the best changes of plan; the dashed line is the step as it is."""
    rows = found.changes
    figure = _bars(
        [" ".join(row.overrides) for row in rows], {"": [row.step_time_s for row in rows]}, [f"{-row.gain:+.1%}" for row in rows]
    )
    return _marked(figure, found.step_time_s, "now")


def faults(found: Faults) -> go.Figure:
    """The step, in ms, under each fault; the dashed line is the step of the whole machine."""
    rows = found.rows
    figure = _bars([row.fault for row in rows], {"": [row.step_time_s for row in rows]}, [f"{row.slowdown:.3f} x" for row in rows])
    return _marked(figure, found.step_time_s, "nothing broken")


def jobs(found: Jobs) -> go.Figure:
    """Each job's step in each placement, in ms: alone, and beside the others."""
    names = [f"{row.job} {row.plan}, {row.placement}" for row in found.rows]
    times = {"alone": [row.alone_s for row in found.rows], "beside the others": [row.together_s for row in found.rows]}
    return _bars(names, times, [f"{row.slowdown:.3f} x" for row in found.rows], ["#8a97a6", _NOW])


def spread(found: Spread) -> go.Figure:
    """How often each step time was drawn, in ms; dashed lines at the median, P95 and P99."""
    figure = go.Figure(go.Histogram(x=[1e3 * time for time in found.samples], marker_color=_NOW, nbinsx=40, name="draws"))
    # The three may lie close together: their words stand at three heights, above the bars and below the buttons.
    for height, (name, at) in zip((1.0, 1.08, 1.16), (("P50", found.p50), ("P95", found.p95), ("P99", found.p99)), strict=True):
        figure.add_vline(x=1e3 * at, line_dash="dash", line_color=PREDICTED)
        figure.add_annotation(x=1e3 * at, y=height, yref="paper", text=name, showarrow=False, xanchor="left", yanchor="bottom")
    return figure.update_layout(height=380, margin={"t": 90}, xaxis_title="ms per step", yaxis_title="draws", showlegend=False)


def _bars(
    names: Sequence[str],
    times: Mapping[str, Sequence[float]],
    labels: Sequence[str] = (),
    tints: Sequence[str | Sequence[str]] = (_NOW,),
) -> go.Figure:
    """Horizontal bars in ms from seconds: a group for each name, a bar in it for each series; labels stand behind the last series."""
    figure = go.Figure()
    last = list(times)[-1]
    for tint, (series, values) in zip(tints, times.items(), strict=True):
        bar = go.Bar(
            y=[safe(name) for name in names],
            x=[1e3 * value for value in values],
            orientation="h",
            name=series,
            marker_color=tint,
            text=list(labels) if series == last else None,
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{x:.3f} ms<extra></extra>",
        )
        figure.add_trace(bar)
    most = 1e3 * max((value for values in times.values() for value in values), default=1e-3)
    no_narrower(figure, 220 + 7 * max(map(len, names), default=0))
    return figure.update_layout(
        barmode="group",
        height=150 + 34 * len(names) * len(times),
        margin={"b": 90},
        xaxis={"title": "ms per step", "range": [0, 1.2 * most]},
        yaxis={"autorange": "reversed"},
        legend={"orientation": "h"},
        showlegend=len(times) > 1,
    )


def _marked(figure: go.Figure, at: float, word: str) -> go.Figure:
    """With a dashed line at `at` seconds, named `word`."""
    high = figure.layout.xaxis.range[1]
    figure.add_vline(x=1e3 * at, line_dash="dash", line_color=PREDICTED, annotation_text=word, annotation_position="top")
    # Labels behind the bars would stand on the line.
    figure.update_traces(textposition="inside", insidetextanchor="start")
    # The word stands above the plot, and below the bar with the buttons.
    return figure.update_layout(xaxis_range=[0, max(high, 1.1e3 * at)], margin_t=64, height=figure.layout.height + 24)
