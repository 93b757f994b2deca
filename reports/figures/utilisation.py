"""Use of cores, CPU threads, device lanes and copy engines over time, as in a system monitor: one strip for each, 0 to 100 %."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.figures.palette import BLUE, GREEN, ORANGE, PURPLE, SKY
from reports.words import clock, natural, safe
from sim.timeline.utilisation import Use, Utilisation

_MOST = 16
_LEAST, _PEAK = 0.005, 0.1
"""Shares. Except for the busiest of each kind, a strip with a mean below `_LEAST` and no peak of `_PEAK` is left out: it would look
empty."""
_COLOURS = {"cores": BLUE, "thread": SKY, "compute": GREEN, "copy": ORANGE, "comm": PURPLE}
_ORDER = tuple(_COLOURS)


def chosen(found: Utilisation) -> list[Use]:
    """The uses that get a strip, in the order of kinds: the busiest of each kind, `_MOST` in all; those that are almost never busy are left
    out."""
    active = [use for use in found.uses if any(use.busy)]
    picked: list[Use] = []
    for rank in range(len(active)):  # in turns, so that many threads do not crowd out the lanes
        for kind in _ORDER:
            of = sorted((use for use in active if use.kind == kind), key=lambda use: (-use.mean, natural(use.name)))
            if rank < len(of) and len(picked) < _MOST and (rank == 0 or _worth(of[rank])):
                picked.append(of[rank])
    return sorted(picked, key=lambda use: (_ORDER.index(use.kind), natural(use.name)))


def _worth(use: Use) -> bool:
    return use.mean >= _LEAST or max(use.busy) >= _PEAK


def monitor(found: Utilisation) -> go.Figure:
    """Filled strips of the busy share in % over the step's time."""
    uses = chosen(found)
    if not uses:
        figure = go.Figure()
        figure.add_annotation(text="nothing ran", showarrow=False)
        return figure
    time = clock(found.end - found.begin)
    names = [safe(f"{use.name}: {use.mean:.0%} on average") for use in uses]
    figure = make_subplots(rows=len(uses), cols=1, shared_xaxes=True, vertical_spacing=0.25 / len(uses), subplot_titles=names)
    for row, use in enumerate(uses, 1):
        width = (found.end - found.begin) * time.scale / len(use.busy)
        strip = go.Scatter(
            x=[round((at + 0.5) * width, 6) for at in range(len(use.busy))],
            y=[round(100 * value, 2) for value in use.busy],
            mode="lines",
            line={"shape": "hvh", "width": 1, "color": _COLOURS[use.kind]},
            fill="tozeroy",
            name=safe(use.name),
            showlegend=False,
            hovertemplate=f"%{{x:.2f}} {time.unit}: %{{y:.0f}} %<extra></extra>",
        )
        figure.add_trace(strip, row=row, col=1)
    figure.update_yaxes(range=[0, 105], tickvals=[0, 50, 100], ticktext=["0 %", "50 %", "100 %"])
    figure.update_xaxes(title_text=f"{time.unit} into the step", row=len(uses), col=1)
    figure.update_annotations(font_size=11, x=0, xanchor="left")
    figure.update_layout(height=90 + 78 * len(uses), margin={"l": 60, "r": 20, "t": 50, "b": 40})
    return figure
