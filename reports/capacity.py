"""The capacity page: how a training run scales, what becomes progress, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from reports.page import Card, Page
from reports.words import count, seconds
from sim.planning.capacity.capacity import Capacity
from topologies.units import show_energy

_STRONG, _WEAK, _IDEAL = "#0072B2", "#009E73", "#8a97a6"
_MISS = "#D55E00"


def capacity_page(title: str, found: Capacity, strong: Sequence[Capacity] = (), weak: Sequence[Capacity] = (), unit: str = "") -> str:
    """The file's text.

    `found`: the run that was asked for. `strong` and `weak`: `sim.planning.capacity.scaling.scaling` of it, with the same and with a
    growing global batch. `unit`: of the prices ("USD").
    """
    page = Page(title, f"{found.gpus:,} GPUs, {found.topology}: {found.steps:,} steps of {seconds(found.step_time_s)} each, predicted.")
    page.cards(_cards(found, unit))
    if not found.fits:
        page.warnings(["This plan does not fit into the memory of one GPU; the figures are what it would take if it did."])
    page.section("Where the days go", "Progress, and what checkpoints, failures and restarts take (median of simulated runs).")
    page.figure(days(found))
    curves = [curve for curve in (strong, weak) if len(curve) > 1]
    if curves:
        page.section("Scaling", "Training speed against the smallest cluster, failures left aside; the dotted line is perfect scaling.")
        page.figure(scaling(strong, weak))
        page.section("Goodput", "Share of the elapsed time that becomes progress: larger clusters fail more often.")
        page.figure(goodput(strong, weak))
        page.section(
            "Time against expense", "Faster or cheaper: each point is a size of the cluster. Hollow points do not fit into memory."
        )
        page.figure(expense(strong, weak, unit))
    rows = list(strong) or [found]
    few = "Larger clusters cannot split this global batch." if len(strong) == 1 < len(weak) else ""
    page.section("Same global batch" if strong else "The run", few)
    _table(page, rows, unit)
    if weak:
        page.section("Global batch grows with the cluster")
        _table(page, weak, unit)
    return page.text(
        "Made by StepTwin. Days are of 24 hours; GPU-hours count failures and restarts; energy is of GPUs, hosts, network and cooling."
    )


_FAR = 5.0
"""The dearest size of a cluster over the cheapest from which on their expense is drawn by decades."""
_HEAD = ("GPUs", "step", "days", "goodput", "failures", "checkpoint every", "GPU-hours", "energy", "money", "memory")


def _table(page: Page, runs: Sequence[Capacity], unit: str) -> None:
    """A row for each run; without prices there is no column for money."""
    kept = [at for at, name in enumerate(_HEAD) if name != "money" or any(one.money is not None for one in runs)]
    page.table([_HEAD[at] for at in kept], [[_row(one, unit)[at] for at in kept] for one in runs])


def _row(one: Capacity, unit: str) -> tuple[str, ...]:
    return (
        f"{one.gpus:,}",
        seconds(one.step_time_s),
        f"{one.days:,.2f}",
        f"{one.goodput:.1%}",
        f"{one.failures:,}",
        seconds(one.checkpoint_interval_s),
        count(one.gpu_hours),
        _energy(one),
        _money(one, unit),
        "fits" if one.fits else "does NOT fit",
    )


def _failures(one: Capacity) -> str:
    return f"{one.failures:,} failure{'' if one.failures == 1 else 's'}"


def _energy(one: Capacity) -> str:
    return show_energy(one.energy_j) if one.energy_j is not None else "-"


def _money(one: Capacity, unit: str) -> str:
    return f"{count(one.money)} {unit}".strip() if one.money is not None else "-"


def _cards(found: Capacity, unit: str) -> list[Card]:
    cards: list[Card] = [
        (seconds(found.elapsed_s), "elapsed", "80 % interval {:,.4g} to {:,.4g} days".format(*found.days_interval)),
        (f"{found.goodput:.1%}", "goodput", f"{_failures(found)}, checkpoint every {seconds(found.checkpoint_interval_s)}"),
        (count(found.gpu_hours), "GPU-hours", f"on {found.gpus:,} GPUs"),
        (_energy(found), "energy", "GPUs, hosts, network and cooling"),
    ]
    if found.money is not None:
        cards.append((_money(found, unit), "money", "at the prices given"))
    return cards


def days(found: Capacity) -> go.Figure:
    """One bar: days of progress and days of everything else."""
    parts = [
        ("steps that count", found.productive_s, _STRONG),
        ("checkpoints, failures, restarts", found.elapsed_s - found.productive_s, _MISS),
    ]
    figure = go.Figure()
    for name, value, colour in parts:
        share = value / found.elapsed_s if found.elapsed_s else 0.0
        figure.add_trace(
            go.Bar(
                y=["run"],
                x=[value / 86400],
                orientation="h",
                name=name,
                marker_color=colour,
                text=[f"{share:.1%}" if share > 0.04 else ""],
                hovertemplate=f"{name}: %{{x:.2f}} days<extra></extra>",
            )
        )
    figure.update_layout(
        barmode="stack",
        height=200,
        margin={"b": 90},
        xaxis={"title": "days", "range": [0, found.days]},
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
    """Work per hour over GPUs, log-log: relative to the smallest cluster, productive time only, with perfect scaling dotted."""
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
                text=[_failures(one) for one in rows],
                hovertemplate="%{x} GPUs: %{y:.1f} %, %{text}<extra></extra>",
            )
        )
    low = min([100 * one.goodput for one in (*strong, *weak)], default=0.0)
    axis = {"title": "goodput, %", "range": [max(0.0, low - 5), 100.5]}
    figure.update_layout(
        height=360, margin={"b": 100}, xaxis=_sizes(strong, weak), yaxis=axis, legend={"orientation": "h"}, showlegend=True
    )
    return figure


def _decades(values: Sequence[float]) -> dict[str, object]:
    """Marks of a logarithmic axis at 1, 2, 5 of each decade, written out."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    ends = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) if low > 0 else range(1)
    marks = [step * 10.0**power for power in ends for step in (1, 2, 5) if 0.5 * low <= step * 10.0**power <= 2 * high]
    return {"tickvals": marks, "ticktext": [f"{mark:,.10g}" for mark in marks]}


def expense(strong: Sequence[Capacity], weak: Sequence[Capacity], unit: str) -> go.Figure:
    """Days against money, or GPU-hours where no prices are given."""
    money = all(one.money is not None for one in (*strong, *weak))
    figure = go.Figure()
    heights = [(one.money or 0.0) if money else one.gpu_hours for one in (*strong, *weak)] or [0.0]
    labelled: set[tuple[int, float]] = set()
    for (name, rows, line), where in zip(_kinds(strong, weak), ("top center", "bottom center"), strict=False):
        # Fewer GPU-hours lie below; both curves begin at the same point.
        labels = ["" if (one.gpus, one.days) in labelled else f"{one.gpus:,}" for one in rows]
        labelled |= {(one.gpus, one.days) for one in rows}
        figure.add_trace(
            go.Scatter(
                x=[one.days for one in rows],
                y=[one.money if money else one.gpu_hours for one in rows],
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
        yaxis={"title": y} | ({"type": "log"} | _decades(heights) if max(heights) > _FAR * min(heights) > 0 else {"rangemode": "tozero"}),
        legend={"orientation": "h"},
        showlegend=True,
    )
    return figure
