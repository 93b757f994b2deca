"""Device memory over time, as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from reports.figures.palette import PREDICTED
from reports.words import clock


def memory_line(
    lines: Mapping[int, Sequence[tuple[float, int]]], rooms: Mapping[int, int] | None = None, within: tuple[float, float] | None = None
) -> go.Figure:
    """Device memory over time in GiB (MiB if there is little), a line for each of the `drawn` ranks. `within`: (begin, end) of the time
    that is shown, which counts from its begin; None: all. `rooms`: bytes of each rank's device, drawn as dashed lines; if there are several
    sizes, each says from which rank on."""
    begin, end = within or (0.0, max((t for line in lines.values() for t, _ in line), default=0.0))
    most = max((used for line in lines.values() for _, used in line), default=0)
    unit, name = (2**30, "GiB") if most >= 0.2 * 2**30 else (2**20, "MiB")
    time, figure = clock(end - begin), go.Figure()
    for rank in drawn(lines):
        shown = envelope(clip(lines[rank], begin, end))
        figure.add_trace(
            go.Scatter(
                x=[round((t - begin) * time.scale, 6) for t, _ in shown],
                y=[round(b / unit, 6) for _, b in shown],
                mode="lines",
                line={"shape": "hv", "width": 1.5},
                name=f"rank {rank}",
                hovertemplate=f"rank {rank}: %{{y:.3f}} {name} at %{{x:.2f}} {time.unit}<extra></extra>",
            )
        )
    first: dict[int, int] = {}
    for rank in sorted(rooms or {}):
        first.setdefault((rooms or {})[rank], rank)
    limits = [size for size in first if size < 4 * most]  # one far above would flatten the lines
    for size in limits:
        label = f"device memory {size / unit:.0f} {name}" + (f", from rank {first[size]} on" if len(first) > 1 else "")
        figure.add_hline(y=size / unit, line_dash="dash", line_color=PREDICTED, annotation_text=label, annotation_position="bottom left")
    top = 1.08 * max([most, *limits]) / unit
    figure.update_layout(
        height=330 if len(lines) > 1 else 290,
        margin={"b": 80 if len(lines) > 1 else 40},
        xaxis={"title": f"{time.unit} into the step", "range": [0, (end - begin) * time.scale]},
        yaxis={"title": name, "range": [0, top or 1.0]},
        legend={"orientation": "h"},
        showlegend=len(lines) > 1,
    )
    return figure


def drawn(lines: Mapping[int, Sequence[tuple[float, int]]], most: int = 8) -> list[int]:
    """At most `most` ranks: all, or the fullest one and others spread from the first to the last."""
    ranks = sorted(lines)
    if len(ranks) <= most:
        return ranks
    fullest = max(ranks, key=lambda rank: max((used for _, used in lines[rank]), default=0))
    return sorted({fullest, *(ranks[at * (len(ranks) - 1) // (most - 2)] for at in range(most - 1))})


def clip(line: Sequence[tuple[float, int]], begin: float, end: float) -> list[tuple[float, int]]:
    """The part of a step line between `begin` and `end`, with its value at both ends."""
    before = [used for t, used in line if t <= begin]
    inside = [(t, used) for t, used in line if begin < t <= end]
    found = [(begin, before[-1])] if before else []
    found += inside
    return [*found, (end, found[-1][1])] if found else []


def envelope(line: Sequence[tuple[float, int]], most: int = 3000) -> list[tuple[float, int]]:
    """At most about `most` points: the lowest and the highest point of each stretch, so that no peak is lost."""
    if len(line) <= most:
        return list(line)
    every = -(-2 * len(line) // most)
    found: list[tuple[float, int]] = []
    for at in range(0, len(line), every):
        part = line[at : at + every]
        ends = {min(range(len(part)), key=lambda i: part[i][1]), max(range(len(part)), key=lambda i: part[i][1])}
        found += [part[i] for i in sorted(ends)]
    return found
