"""Where each part of a machine is drawn: devices side by side, memory below, switches and the network above."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Spot = tuple[float, float]
"""Where something is drawn: (x, y)."""


def places_of(graph: Any) -> dict[str, Spot]:
    """(x, y) of each vertex: PCIe leaves side by side in tree order, each parent over the middle of its children."""
    kinds: Mapping[str, str] = {name: data["kind"] for name, data in graph.nodes(data=True)}
    below: dict[str, list[str]] = {}
    for a, b, data in graph.edges(data=True):
        if (data["kind"] in ("pcie", "c2c", "numa") and _depth(kinds[a]) < _depth(kinds[b])) or (
            kinds[a] == kinds[b] == "sw" and a not in below.get(b, [])
        ):
            below.setdefault(a, []).append(b)
    places: dict[str, Spot] = {}
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
        places[name] = (x, 5.0 + (0.5 if kinds[name] == "gpu" else 0.0) if device else 1.0 + 0.9 * depth)
        return x

    for name in [name for name in kinds if kinds[name] == "socket"]:
        place(name, 0)
        width[0] += 0.6
    _place_rest(kinds, graph, places)
    return places


def _depth(kind: str) -> int:
    return {"socket": 0, "numa": 1, "root": 2, "sw": 3, "gpu": 4, "nic": 4}.get(kind, 9)


def _place_rest(kinds: Mapping[str, str], graph: Any, places: dict[str, Spot]) -> None:
    """Places the remaining parts: memory below its owner; NVSwitches, leaves and spines above the middle of what they join."""
    for kind, y in (("dram", 0.0), ("gpu", 5.5), ("nic", 5.0), ("nvswitch", 7.0), ("leaf", 8.0), ("spine", 9.2), ("core", 10.4)):
        names = [name for name, found in kinds.items() if found == kind and name not in places]
        for i, name in enumerate(names):
            xs = [places[n][0] for n in graph.predecessors(name) if n in places]
            middle = sum(xs) / len(xs) if xs else float(i)
            places[name] = (middle if kind not in ("spine", "core") else _aside(places, i, len(names)), y)


def _aside(places: Mapping[str, Spot], at: int, number: int) -> float:
    """x of the `at`-th of `number` spines or core switches, which are spread over the width of the drawing."""
    xs = [x for x, _ in places.values()] or [0.0]
    return min(xs) + (max(xs) - min(xs)) * (at + 0.5) / number
