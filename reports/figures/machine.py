"""The machine as a figure: which parts are linked, and the rates of the links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from reports.figures.layout import Spot, places_of
from reports.figures.links import group_of
from reports.figures.palette import BLUE, VERMILION
from reports.page import no_narrower
from reports.words import ranks, safe
from topologies.graph import Topology
from topologies.units import show_duration, show_rate

COLOURS = {"nvlink": "#5a9f00", "xgmi": "#c0392b", "c2c": "#2e8b57", "pcie": BLUE, "numa": "#8e6fbf", "upi": "#8e6fbf"}
COLOURS |= {"dram": "#999999", "net": VERMILION, "spine": "#b8860b"}
_SHAPES = {"gpu": ("square", "#5a9f00", 26), "nic": ("diamond", VERMILION, 20), "sw": ("circle", BLUE, 18)}
_SHAPES |= {"root": ("circle-open", BLUE, 18), "numa": ("hexagon", "#8e6fbf", 22), "socket": ("hexagon2", "#5b4a91", 28)}
_SHAPES |= {"dram": ("square-open", "#777777", 18), "nvswitch": ("star-diamond", "#3d6d00", 30)}
_SHAPES |= {
    "leaf": ("triangle-up", "#b8860b", 22),
    "spine": ("triangle-up-open", "#b8860b", 22),
    "core": ("star-triangle-up", "#b8860b", 22),
}
_PARTS = {"sw": "PCIe switch", "root": "PCIe root", "gpu": "GPU", "nic": "NIC", "dram": "host memory", "nvswitch": "NVSwitch"}
_PARTS |= {"numa": "NUMA node", "leaf": "leaf switch", "spine": "spine switch", "core": "core switches"}
_CROWD = 100
"""If there are more links of one kind, they are drawn thin, and only the legend and the hover text show their rate."""
_NAMES = 24
"""If there are more parts of one kind, their names are only in the hover text."""
_APART = 38
"""Least pixels between neighbouring parts, so that their names fit in."""
_SIDES = {"gpu": "middle left", "nic": "middle right", "dram": "bottom center", "sw": "middle left", "root": "middle left"}
_SIDES |= {"socket": "bottom left", "numa": "middle left"}


def machine(topology: Topology, nodes: int = 1, use: Mapping[str, float] | None = None) -> go.Figure:
    """The first `nodes` nodes with their network: host memory at the bottom, devices in the middle, switches on top.

    Every edge carries the rate of one direction (both where they differ) and, on hover, its latency. `use`: share of the step
    (0 to 1) for which links are busy, by `reports.figures.links.group_of`; used links are drawn thick.
    """
    graph = topology.graph(nodes)
    graph.remove_nodes_from([name for name, data in graph.nodes(data=True) if data["kind"] == "engine"])
    places = places_of(graph)
    left, right = (side(x for x, _ in places.values()) for side in (min, max))
    figure = go.Figure()
    for kind in dict.fromkeys(data["kind"] for _, _, data in graph.edges(data=True)):
        _edges(figure, graph, kind, places, use)
    for kind in dict.fromkeys(data["kind"] for _, data in graph.nodes(data=True)):
        _vertices(figure, graph, kind, places)
    shown = f", {min(nodes, topology.nodes)} of {topology.nodes} nodes shown" if topology.nodes > nodes else ""
    figure.update_layout(
        title={"text": safe(f"{topology.name}: {ranks(topology.gpus)}{shown}"), "font": {"size": 15}, "x": 0, "xref": "paper"},
        height=620,
        xaxis={"visible": False, "range": [left - 1, right + 1]},
        yaxis={"visible": False},
        legend={"orientation": "h"},
        margin={"l": 30, "r": 30, "t": 60, "b": 60},
    )
    return no_narrower(figure, 60 + round(_APART * (right - left + 2)))


def _edges(figure: go.Figure, graph: Any, kind: str, places: Mapping[str, Spot], use: Mapping[str, float] | None) -> None:
    """Adds the links of a kind: lines, thicker if they are used more, and labels. Of equal labels only the first is shown, but all have
    hover text."""
    pairs = {tuple(sorted((a, b))): data for a, b, data in graph.edges(data=True) if data["kind"] == kind}
    lines: dict[float, list[Spot | None]] = {}
    labels: list[tuple[Spot, str, str]] = []
    rates: dict[str, int] = {}
    seen: set[str] = set()
    for a, b in pairs:
        points = _curve(places[a], places[b])
        busy = max((use or {}).get(group_of(f"{x}>{y}"), 0.0) for x, y in ((a, b), (b, a)))
        lines.setdefault(busy, []).extend([*points, None])
        text = _rates(graph, a, b)
        rates[text] = rates.get(text, 0) + 1
        told = text if use is None else (f"{busy:.0%} busy" if busy >= 0.005 else "")
        hover = f"{safe(a)} <-> {safe(b)}<br>{kind}: {text}, {show_duration(pairs[a, b]['latency'])}" + (
            f"<br>{busy:.1%} busy" if busy else ""
        )
        labels.append((points[len(points) // 2], "" if told in seen or len(pairs) > _CROWD else told, hover))
        seen.add(told)
    colour = COLOURS.get(kind, "#7f8c9b")
    named = f"{kind}: " + ", ".join(f"{number} x {text}" for text, number in rates.items()) if len(rates) <= 2 else kind
    for number, (busy, spots) in enumerate(lines.items()):
        _line(figure, spots, colour, _thickness(busy, use is not None, len(pairs)), named if number == 0 else "", kind)
    _labels(figure, labels, colour)


def _thickness(busy: float, used: bool, number: int) -> tuple[float, float]:
    """(pixels, opacity) of an edge: thin if there are many; if use is shown (`used`), idle links are thin and faint."""
    if used:
        return (2.5 + 7 * busy, 1.0) if busy else (1.2, 0.45)
    return (2.0, 1.0) if number <= _CROWD else (0.7, 0.35)


def _line(figure: go.Figure, spots: list[Spot | None], colour: str, look: tuple[float, float], name: str, kind: str) -> None:
    figure.add_trace(
        go.Scatter(
            x=[spot and spot[0] for spot in spots],
            y=[spot and spot[1] for spot in spots],
            mode="lines",
            line={"color": colour, "width": look[0]},
            opacity=look[1],
            hoverinfo="skip",
            name=safe(name),
            legendgroup=kind,
            showlegend=bool(name),
        )
    )


def _labels(figure: go.Figure, labels: list[tuple[Spot, str, str]], colour: str) -> None:
    figure.add_trace(
        go.Scatter(
            x=[spot[0] for spot, *_ in labels],
            y=[spot[1] for spot, *_ in labels],
            mode="text+markers",
            marker={"size": 5 if len(labels) <= _CROWD else 3, "color": colour},
            text=[text for _, text, _ in labels],
            textfont={"size": 12, "shadow": "auto"},  # the page's colour with a halo, readable over any line
            textposition="middle right",
            hovertext=[hover for *_, hover in labels],
            hoverinfo="text",
            showlegend=False,
        )
    )


def _rates(graph: Any, a: str, b: str) -> str:
    found: list[float] = [graph.edges[pair]["rate"] for pair in ((a, b), (b, a)) if graph.has_edge(*pair)]
    if len(found) == 1:
        return f"{show_rate(found[0])} one way"
    there, back = found
    return show_rate(there) if math.isclose(there, back) else f"{show_rate(there)} / {show_rate(back)}"


def _curve(a: Spot, b: Spot) -> list[Spot]:
    """Points of a straight line, or of an arc between vertices of the same row (NVLink between GPUs, links between sockets)."""
    if abs(a[1] - b[1]) > 0.2:
        return [a, ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2), b]
    height = 0.25 + 0.16 * abs(a[0] - b[0])
    steps = [i / 12 for i in range(13)]
    return [(a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t + 4 * height * t * (1 - t)) for t in steps]


def _vertices(figure: go.Figure, graph: Any, kind: str, places: Mapping[str, Spot]) -> None:
    names = [name for name, data in graph.nodes(data=True) if data["kind"] == kind]
    symbol, colour, size = _SHAPES.get(kind, ("circle", "#7f8c9b", 16))
    crowd = len(names) > _NAMES or (kind in ("spine", "core") and len(names) > 8)
    figure.add_trace(
        go.Scatter(
            x=[places[name][0] for name in names],
            y=[places[name][1] for name in names],
            mode="markers" if crowd else "markers+text",
            marker={"symbol": symbol, "color": colour, "size": size * (0.6 if crowd else 1), "line": {"width": 1, "color": "white"}},
            text=[safe(name.split("/", 1)[-1]) for name in names],
            textposition=_SIDES.get(kind, "top center"),
            textfont={"size": 11, "shadow": "auto"},
            cliponaxis=False,
            hovertext=[f"{safe(name)}<br>{safe(graph.nodes[name]['label'])}" for name in names],
            hoverinfo="text",
            name=f"{_PARTS.get(kind, kind)} ({len(names)})" if len(names) > 1 else _PARTS.get(kind, kind),
        )
    )
