"""The collective page: bandwidth over size as nccl-tests prints it, predicted, with the algorithm that was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from reports.page import Card, Page
from reports.words import ranks, safe, seconds
from topologies.units import show_size

_COLOURS = {
    "ring": "#0072B2",
    "tree": "#009E73",
    "nvls": "#CC79A7",
    "nvls_tree": "#8C6BB1",
    "hierarchical": "#E69F00",
    "pairwise": "#56B4E9",
}
_REST = ("#7f8c9b", "#A6761D", "#5F7FA8")
_SYMBOLS = {"simple": "circle", "ll": "diamond", "ll128": "square"}
_LINE = "#8a97a6"


def collective_page(found: Mapping[str, Any]) -> str:
    """The file's text. `found`: what `sim.cost.collective.table.collective_table` returns."""
    rows: Sequence[Mapping[str, Any]] = found["rows"]
    page = Page(
        f"{found['collective']} on {ranks(found['ranks'])} of {found['topology']}",
        "Predicted, in the words of nccl-tests: algbw is size over time; busbw counts what each rank's link carries, so that it compares to the hardware.",
    )
    page.cards(_cards(rows))
    page.section(
        "Bandwidth over size",
        "Colours name the algorithm, signs the protocol (circle Simple, square LL128, diamond LL: NCCL's ways to send, the later ones for ever smaller messages). "
        "Hover for times.",
    )
    page.figure(bandwidth(rows))
    page.section("Time over size", "Flat where latency counts, straight where bandwidth does. Both axes are logarithmic.")
    page.figure(times(rows))
    page.section("Table")
    page.table(
        ("size", "time", "algbw", "busbw", "algorithm", "protocol"),
        [
            (
                r["size"],
                seconds(r["time_us"] * 1e-6),
                _rate(r["algbw_GBps"]),
                _rate(r["busbw_GBps"]),
                r["algorithm"],
                r["protocol"],
            )
            for r in rows
        ],
    )
    return page.text("Made by StepTwin. GB/s = 1e9 bytes per second; sizes count the whole array, as nccl-tests does; KiB = 2^10 bytes.")


def _rate(value: float) -> str:
    """GB/s; smaller units where two decimals would say nothing."""
    return f"{value:,.2f} GB/s" if value >= 1 else f"{value * 1e3:,.2f} MB/s"


def _cards(rows: Sequence[Mapping[str, Any]]) -> list[Card]:
    first, last = rows[0], rows[-1]
    best = max(rows, key=lambda r: r["busbw_GBps"])
    half = next(r for r in rows if r["busbw_GBps"] >= best["busbw_GBps"] / 2)
    return [
        (f"{best['busbw_GBps']:,.1f} GB/s", "best busbw", f"at {best['size']}, {best['algorithm']} {best['protocol']}"),
        (seconds(first["time_us"] * 1e-6), f"time of {first['size']}", f"latency; {first['algorithm']} {first['protocol']}"),
        (seconds(last["time_us"] * 1e-6), f"time of {last['size']}", f"{last['algbw_GBps']:,.1f} GB/s algbw"),
        (str(half["size"]), "half of the best busbw from here on", f"{half['busbw_GBps']:,.1f} GB/s"),
    ]


def bandwidth(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """busbw (solid) and algbw (dotted) in GB/s over bytes; points coloured by the algorithm."""
    figure = go.Figure()
    _curve(figure, rows, "algbw_GBps", "algbw", "dot")
    _curve(figure, rows, "busbw_GBps", "busbw", "solid")
    _points(figure, rows, "busbw_GBps", "GB/s busbw")
    figure.update_layout(
        height=440, margin={"b": 100}, xaxis=_sizes(rows), yaxis={"title": "GB/s", "rangemode": "tozero"}, legend={"orientation": "h"}
    )
    return figure


def times(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Time in microseconds over bytes, both logarithmic."""
    figure = go.Figure()
    _curve(figure, rows, "time_us", "time", "solid")
    _points(figure, rows, "time_us", "us")
    figure.update_layout(
        height=400,
        margin={"b": 100},
        xaxis=_sizes(rows),
        yaxis={"title": "microseconds", "type": "log", "dtick": 1},
        legend={"orientation": "h"},
    )
    return figure


def _sizes(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A logarithmic axis that is marked at sizes that people say."""
    every = max(1, -(-len(rows) // 12))
    marks = [r["bytes"] for r in rows][::every]
    return {"type": "log", "title": "size", "tickvals": marks, "ticktext": [show_size(mark) for mark in marks]}


def _curve(figure: go.Figure, rows: Sequence[Mapping[str, Any]], key: str, name: str, dash: str) -> None:
    figure.add_trace(
        go.Scatter(
            x=[r["bytes"] for r in rows],
            y=[r[key] for r in rows],
            mode="lines",
            name=name,
            line={"color": _LINE, "width": 1.0, "dash": dash},
            hoverinfo="skip",
        )
    )


def _points(figure: go.Figure, rows: Sequence[Mapping[str, Any]], key: str, unit: str) -> None:
    names = list(dict.fromkeys(r["algorithm"] for r in rows))
    for number, name in enumerate(names):
        mine = [r for r in rows if r["algorithm"] == name]
        figure.add_trace(
            go.Scatter(
                x=[r["bytes"] for r in mine],
                y=[r[key] for r in mine],
                mode="markers",
                name=safe(name),
                marker={
                    "color": _COLOURS.get(str(name).lower(), _REST[number % len(_REST)]),
                    "size": 9,
                    "symbol": [_SYMBOLS.get(str(r["protocol"]).lower(), "circle") for r in mine],
                },
                text=[f"{safe(r['size'])}: {seconds(r['time_us'] * 1e-6)}, {safe(r['algorithm'])} {safe(r['protocol'])}" for r in mine],
                hovertemplate=f"%{{text}}<br>%{{y:.2f}} {unit}<extra></extra>",
            )
        )
