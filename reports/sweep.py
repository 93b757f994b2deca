"""The sweep page: which plans are worth having, what made them so, and the best beside the runner-up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from reports.page import Card, Page
from reports.palette import WORDS, colour
from reports.words import count, gib, safe, seconds, short
from sim.planning.store import Row
from sim.planning.sweep import Sweep

_MOST_POINTS, _MOST_LINES, _MOST_ROWS = 6000, 2000, 15
_SCALE = "Viridis"


def sweep_page(title: str, found: Sweep) -> str:
    """The file's text. `found`: what `sim.planning.sweep.sweep` returns; it holds at least one plan that fits."""
    ranked = sorted(found.feasible, key=per_gpu, reverse=True)
    tried = sum(found.counts.values())
    page = Page(title, f"{tried:,} plans: {found.counts['done']:,} simulated, {found.counts['memory']:,} do not fit into memory, "
                f"{found.counts['refused']:,} cannot be built, {found.counts['failed']:,} failed.")  # fmt: skip
    page.cards(_cards(ranked, found.front))
    page.section("The best beside the runner-up", "Best: most samples per second and GPU, among the plans that fit.")
    page.table(("", "best", "runner-up"), _beside(ranked))
    page.figure(breakdowns(ranked[:5]))
    page.section("Time, memory" + (" and cost" if any(row.cost for row in ranked) else ""),
                 "Each point is a plan that fits. No other plan beats those on the line in everything; hover for the plan.")  # fmt: skip
    page.figure(pareto_figure(ranked, found.front))
    if len(ranked) > 1:
        page.section("What made them so", "One line a plan, from its settings to what they give. Drag along an axis to keep a range.")
        page.figure(coordinates(ranked))
    page.section("Plans that nothing beats")
    page.table(
        ("plan", "step", "GPU-time per sample", "MFU", "memory", "cost per million samples"),
        [_row(row) for row in found.front[:_MOST_ROWS]],
    )
    _rejected(page, found)
    return page.text("Made by StepTwin. Memory is the peak on the fullest GPU; GPU-time per sample is GPUs over samples per second.")


def per_gpu(row: Row) -> float:
    """Samples per second and GPU."""
    return (row.rate or 0.0) / (row.gpus or 1)


def settings(row: Row) -> dict[str, str]:
    """What the plan changes, by key; `on` is the machine."""
    overrides, _, machine = row.key.rpartition(" on=")
    if not overrides and row.key.startswith("on="):
        machine = row.key[3:]
    pairs = [word.partition("=") for word in overrides.split(" ") if "=" in word]
    return {key: value for key, _, value in pairs} | {"on": machine}


def _cards(ranked: Sequence[Row], front: Sequence[Row]) -> list[Card]:
    best = ranked[0]
    cards: list[Card] = [
        (seconds(best.step_time or 0.0), "step of the best plan", short(best.key, 90)),
        (f"{per_gpu(best):,.4g}", "samples / s / GPU", f"{best.gpus:,} GPUs" + (f", MFU {best.mfu:.1%}" if best.mfu is not None else "")),
        (gib(best.memory or 0), "peak memory per GPU", "of the best plan"),
    ]
    if len(ranked) > 1:
        cards.append(
            (f"{per_gpu(best) / per_gpu(ranked[-1]):.2f} x", "best over worst that fits", f"{len(front)} plans that nothing beats")
        )
    return cards


def _beside(ranked: Sequence[Row]) -> list[tuple[str, str, str]]:
    """What differs between the first two, then their figures."""
    pair = [*ranked[:2], None][:2]
    sides = [settings(row) if row else {} for row in pair]
    keys = list(dict.fromkeys(key for side in sides for key in side))
    rows = [
        (key, sides[0].get(key, "-"), sides[1].get(key, "-")) for key in keys if len(ranked) < 2 or sides[0].get(key) != sides[1].get(key)
    ]
    for name, show in _FIGURES:
        rows.append((name, *(show(row) if row else "-" for row in pair)))  # type: ignore[arg-type]
    return rows


_FIGURES: tuple[tuple[str, Any], ...] = (
    ("step time", lambda row: seconds(row.step_time or 0.0)),
    ("samples / s / GPU", lambda row: f"{per_gpu(row):,.4g}"),
    ("MFU", lambda row: f"{row.mfu:.1%}" if row.mfu is not None else "-"),
    ("peak memory", lambda row: gib(row.memory or 0)),
    ("GPUs", lambda row: f"{row.gpus:,}"),
    ("cost per million samples", lambda row: count(row.cost) if row.cost else "-"),
)


def breakdowns(rows: Sequence[Row]) -> go.Figure:
    """Where the steps of the first few plans go: stacked bars in ms, the best on top."""
    figure = go.Figure()
    splits = [json.loads(row.detail).get("breakdown", {}) for row in rows]
    names = [safe(f"{place}. {short(_changes(row), 60)}") for place, row in enumerate(rows, 1)]
    for key in dict.fromkeys(key for split in splits for key in split):
        values = [split.get(key, 0.0) * 1e3 for split in splits]
        if any(values):
            word = WORDS.get(key, safe(key))
            figure.add_trace(
                go.Bar(
                    y=names,
                    x=values,
                    orientation="h",
                    name=word,
                    marker_color=colour(key),
                    hovertemplate=f"{word}: %{{x:.2f}} ms<extra></extra>",
                )
            )
    figure.update_layout(
        barmode="stack",
        height=170 + 34 * len(rows),
        margin={"b": 90},
        xaxis={"title": "ms per step"},
        yaxis={"autorange": "reversed"},
        legend={"orientation": "h"},
    )
    return figure


def _changes(row: Row) -> str:
    """The settings without the words that every key repeats."""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings(row).items())


def pareto_figure(ranked: Sequence[Row], front: Sequence[Row]) -> go.Figure:
    """GPU-seconds per sample against peak memory; colour is the cost where prices are known; the front is a line."""
    shown = list(ranked[:_MOST_POINTS])
    cost = any(row.cost for row in shown)
    marker: dict[str, Any] = {"size": 7, "color": "#8a97a6", "opacity": 0.75}
    if cost:
        title = {"text": "cost per<br>million samples"}
        marker |= {"color": [row.cost for row in shown], "colorscale": _SCALE, "colorbar": {"title": title, "thickness": 12}}
    figure = go.Figure(_points(shown, "plans that fit", "markers", marker))
    edge = sorted(front, key=lambda row: row.memory or 0)
    line = _points(edge, "nothing beats these", "lines+markers", {"size": 10, "color": "#0072B2", "symbol": "diamond"})
    figure.add_trace(line.update(line={"color": "#0072B2", "width": 1.5, "shape": "linear" if cost else "hv"}))
    best = _points(list(ranked[:1]), "best", "markers", {"size": 16, "color": "#D55E00", "symbol": "star"})
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
        text=[f"{safe(short(row.key, 120))}<br>step {seconds(row.step_time or 0.0)}, {row.gpus} GPUs" for row in rows],
        hovertemplate="%{text}<br>%{x:.2f} GiB, %{y:.4g} GPU-seconds per sample<extra></extra>",
    )


def coordinates(ranked: Sequence[Row]) -> go.Figure:
    """Parallel coordinates: settings that differ, then step time, memory and samples per second and GPU; colour is the last."""
    rows = list(ranked[:_MOST_LINES])
    found = [settings(row) for row in rows]
    axes = [_axis(key, [one.get(key, "-") for one in found]) for key in dict.fromkeys(key for one in found for key in one)]
    rate = [per_gpu(row) for row in rows]
    axes = [axis for axis in axes if axis is not None]
    axes += [
        {"label": "step, s", "values": [row.step_time for row in rows]},
        {"label": "memory, GiB", "values": [(row.memory or 0) / 2**30 for row in rows]},
        {"label": "samples/s/GPU", "values": rate},
    ]
    line = {"color": rate, "colorscale": _SCALE, "showscale": False}
    figure = go.Figure(
        go.Parcoords(dimensions=axes, line=line, labelangle=0, labelfont={"size": 12}, unselected={"line": {"opacity": 0.05}})
    )
    figure.update_layout(height=440, margin={"l": 70, "r": 70, "t": 80, "b": 30})
    return figure


def _axis(key: str, values: Sequence[str]) -> dict[str, Any] | None:
    """An axis of a setting, its values as marks in their order; None where all plans agree."""
    marks = sorted(set(values), key=lambda value: (0, float(value), "") if _number(value) else (1, 0.0, value))
    if len(marks) < 2:
        return None
    place = {mark: at for at, mark in enumerate(marks)}
    return {
        "label": safe(short(key.rpartition(".")[2], 16)),
        "values": [place[value] for value in values],
        "tickvals": list(range(len(marks))),
        "ticktext": [safe(short(mark, 14)) for mark in marks],
    }


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _row(row: Row) -> tuple[str, ...]:
    rate = per_gpu(row)
    return (
        row.key,
        seconds(row.step_time or 0.0),
        seconds(1.0 / rate) if rate else "-",
        f"{row.mfu:.1%}" if row.mfu is not None else "-",
        gib(row.memory or 0),
        count(row.cost) if row.cost else "-",
    )


def _rejected(page: Page, found: Sweep) -> None:
    """Why the others are out: the closest that did not fit, and each reason once."""
    out = [row for row in found.rows if row.outcome != "done"]
    if not out:
        return
    page.section("Plans that are out", "Those that come closest to fitting first, then each other reason once.")
    tight = sorted((row for row in out if row.outcome == "memory"), key=lambda row: row.memory or 0)[:5]
    once = {row.reason: row for row in out if row.outcome != "memory"}
    words = {"memory": "does not fit", "refused": "cannot be built", "failed": "failed"}
    page.table(
        ("plan", "outcome", "why"),
        [(row.key, words.get(row.outcome, row.outcome), row.reason) for row in [*tight, *list(once.values())[:8]]],
    )
