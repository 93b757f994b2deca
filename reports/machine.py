"""The machine at one glance: who hangs on what, and the rates on the edges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from topologies.graph import Topology
from topologies.units import show_duration, show_rate

COLOURS = {"nvlink": "#5a9f00", "xgmi": "#c0392b", "c2c": "#2e8b57", "pcie": "#0072B2", "numa": "#8e6fbf", "upi": "#8e6fbf"}
COLOURS |= {"dram": "#999999", "net": "#D55E00", "spine": "#b8860b"}
_SHAPES = {"gpu": ("square", "#5a9f00", 26), "nic": ("diamond", "#D55E00", 20), "sw": ("circle", "#0072B2", 18)}
_SHAPES |= {"root": ("circle-open", "#0072B2", 18), "numa": ("hexagon", "#8e6fbf", 22), "socket": ("hexagon2", "#5b4a91", 28)}
_SHAPES |= {"dram": ("square-open", "#777777", 18), "nvswitch": ("star-diamond", "#3d6d00", 30)}
_SHAPES |= {"leaf": ("triangle-up", "#b8860b", 22), "spine": ("triangle-up-open", "#b8860b", 22)}
_MANY = 40
"""Edges of one kind beyond which only differing rates are written out; the rest is in the hover text."""


def machine(topology: Topology, nodes: int = 1) -> go.Figure:
    """The first `nodes` nodes with their network: host memory at the bottom, devices in the middle, switches on top.

    Every edge carries the rate of one direction (both where they differ) and, on hover, its latency.
    """
    graph = topology.graph(nodes)
    graph.remove_nodes_from([name for name, data in graph.nodes(data=True) if data["kind"] == "engine"])
    places = _places(graph)
    figure = go.Figure()
    for kind in dict.fromkeys(data["kind"] for _, _, data in graph.edges(data=True)):
        _edges(figure, graph, kind, places)
    for kind in dict.fromkeys(data["kind"] for _, data in graph.nodes(data=True)):
        _vertices(figure, graph, kind, places)
    shown = f", {min(nodes, topology.nodes)} of {topology.nodes} nodes shown" if topology.nodes > nodes else ""
    figure.update_layout(
        title=f"{topology.name}: {topology.gpus} ranks{shown}",
        height=620,
        plot_bgcolor="white",
        xaxis={"visible": False},
        yaxis={"visible": False},
        legend={"orientation": "h", "y": -0.05},
        margin={"l": 20, "r": 20, "t": 60, "b": 20},
    )
    return figure


def _places(graph: Any) -> dict[str, tuple[float, float]]:
    """(x, y) of each vertex: PCIe leaves side by side in tree order, each parent over the middle of its children."""
    kinds: Mapping[str, str] = {name: data["kind"] for name, data in graph.nodes(data=True)}
    below: dict[str, list[str]] = {}
    for a, b, data in graph.edges(data=True):
        if (data["kind"] in ("pcie", "c2c", "numa") and _depth(kinds[a]) < _depth(kinds[b])) or (
            kinds[a] == kinds[b] == "sw" and a not in below.get(b, [])
        ):
            below.setdefault(a, []).append(b)
    places: dict[str, tuple[float, float]] = {}
    width = [0.0]

    def place(name: str, depth: int) -> float:
        children = [child for child in below.get(name, []) if child not in places]
        if not children:
            x = width[0]
            width[0] += 1
        else:
            xs = [place(child, depth + 1) for child in children]
            x = sum(xs) / len(xs)
        device = kinds[name] in ("gpu", "nic")
        places[name] = (x, 5.0 + (0.35 if kinds[name] == "gpu" else 0.0) if device else 1.0 + 0.9 * depth)
        return x

    for name in [name for name in kinds if kinds[name] == "socket"]:
        place(name, 0)
        width[0] += 0.6
    _place_rest(kinds, graph, places)
    return places


def _depth(kind: str) -> int:
    return {"socket": 0, "numa": 1, "root": 2, "sw": 3, "gpu": 4, "nic": 4}.get(kind, 9)


def _place_rest(kinds: Mapping[str, str], graph: Any, places: dict[str, tuple[float, float]]) -> None:
    """Memory below its owner; NVSwitches, leaves and spines above the middle of what they join."""
    for kind, y in (("dram", 0.0), ("gpu", 5.35), ("nic", 5.0), ("nvswitch", 7.0), ("leaf", 8.0), ("spine", 9.2)):
        names = [name for name, found in kinds.items() if found == kind and name not in places]
        for i, name in enumerate(names):
            xs = [places[n][0] for n in graph.predecessors(name) if n in places]
            middle = sum(xs) / len(xs) if xs else float(i)
            places[name] = (middle if kind != "spine" else middle + i - (len(names) - 1) / 2, y)


def _edges(figure: go.Figure, graph: Any, kind: str, places: Mapping[str, tuple[float, float]]) -> None:
    """One line trace and one trace of labels for a kind of link."""
    pairs = {tuple(sorted((a, b))): data for a, b, data in graph.edges(data=True) if data["kind"] == kind}
    xs: list[float | None] = []
    ys: list[float | None] = []
    labels: list[tuple[float, float, str, str]] = []
    seen: set[str] = set()
    for a, b in pairs:
        points = _curve(places[a], places[b])
        xs += [*(x for x, _ in points), None]
        ys += [*(y for _, y in points), None]
        text = _rates(graph, a, b)
        middle = points[len(points) // 2]
        short = text if len(pairs) <= _MANY or text not in seen else ""
        seen.add(text)
        latency = show_duration(pairs[a, b]["latency"])
        labels.append((*middle, short, f"{a} <-> {b}<br>{kind}: {text}, {latency}"))
    colour = COLOURS.get(kind, "#555555")
    figure.add_trace(go.Scatter(x=xs, y=ys, mode="lines", line={"color": colour, "width": 2}, hoverinfo="skip", name=kind))
    figure.add_trace(
        go.Scatter(
            x=[x for x, *_ in labels],
            y=[y for _, y, *_ in labels],
            mode="text+markers",
            marker={"size": 5, "color": colour},
            text=[short for *_, short, _ in labels],
            textfont={"size": 10, "color": colour},
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


def _curve(a: tuple[float, float], b: tuple[float, float]) -> list[tuple[float, float]]:
    """A straight line, or an arc above vertices of one row (NVLink between GPUs, links between sockets)."""
    if abs(a[1] - b[1]) > 0.2:
        return [a, ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2), b]
    height = 0.25 + 0.16 * abs(a[0] - b[0])
    steps = [i / 12 for i in range(13)]
    return [(a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t + 4 * height * t * (1 - t)) for t in steps]


def _vertices(figure: go.Figure, graph: Any, kind: str, places: Mapping[str, tuple[float, float]]) -> None:
    names = [name for name, data in graph.nodes(data=True) if data["kind"] == kind]
    symbol, colour, size = _SHAPES.get(kind, ("circle", "#555555", 16))
    figure.add_trace(
        go.Scatter(
            x=[places[name][0] for name in names],
            y=[places[name][1] for name in names],
            mode="markers+text" if len(names) <= 2 * _MANY else "markers",
            marker={"symbol": symbol, "color": colour, "size": size, "line": {"width": 1, "color": "white"}},
            text=[name.split("/", 1)[-1] for name in names],
            textposition="top center",
            textfont={"size": 10},
            hovertext=[f"{name}<br>{graph.nodes[name]['label']}" for name in names],
            hoverinfo="text",
            name=kind,
        )
    )
