"""Link use over time: how many bytes the transfers of a predicted step move over which links.

The trace says when a transfer ran, the pricer which links it uses and with how many bytes. A folded simulation runs one of
many equal ranks, and the cost of a ring names one of its many equal hops, or all of them. So links are grouped by the node and the kinds of
parts that they join (`n0: gpu > nvswitch`). Bytes are summed for each rank, and a group shows the rank that moves most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
import plotly.graph_objects as go

from reports.figures.palette import ORANGE, VERMILION
from reports.words import clock, safe
from sim.cost.price import Cost, Pricer, carried, transfer_cost
from sim.program import MOVES, Program, full_id
from sim.timeline.asynchrony import step_shown
from sim.trace import Span, Trace

BINS = 240
"""Columns of the heat map."""
_MOST = 24
_NUMBER = re.compile(r"(?<=[a-z])\d+(\.\d+)?(?=$|\.[a-z])")
_NODE = re.compile(r"n(\d+)/(.+)")


class LinkUse(msgspec.Struct, frozen=True):
    """One group of equal links over the reported step."""

    name: str
    """`n0: gpu > nvswitch`."""
    rate: float
    """Bytes per second of one link, one direction."""
    moved: float
    """Bytes of the busiest rank through such links in the step."""
    share: float
    """`moved` over what one link could carry in the step, 0 to 1."""
    bins: tuple[float, ...]
    """The share (0 to 1) in each `1 / BINS` of the step, for the rank that was busiest then."""
    links: tuple[str, ...]
    """Names of the directed links in the group."""


def group_of(link: str) -> str:
    """The group of a directed link: `n0/gpu3>n0/nvswitch` -> `n0: gpu > nvswitch`; if the ends are on different nodes, both have their
    node."""
    ends = [_NODE.fullmatch(end) for end in link.split(">")]
    nodes = [f"n{end[1]}" if end else "net" for end in ends]
    names = [_NUMBER.sub("", end[2] if end else part.rpartition("/")[2]) for end, part in zip(ends, link.split(">"), strict=True)]
    if len(set(nodes)) == 1:
        return f"{nodes[0]}: {' > '.join(names)}"
    return " > ".join(f"{node} {name}" for node, name in zip(nodes, names, strict=True))


def link_use(program: Program, trace: Trace, pricer: Pricer) -> list[LinkUse]:
    """Groups of the links that were used in the reported step, busiest first; [] if none was.

    Bytes come from the pricer, times from the trace: a transfer that contention slows moves the same bytes in a longer time.
    """
    begin, end = step_shown(trace)
    if end <= begin:
        return []
    width = (end - begin) / BINS
    lines: dict[str, dict[int, list[float]]] = {}
    named: dict[str, set[str]] = {}
    for span, cost in _transfers(program, trace, pricer, begin, end):
        start, stop = span.start + span.wait, span.end
        if stop <= start:
            continue
        taken: dict[str, list[float]] = {}
        for link, moved in carried(cost):
            named.setdefault(group_of(link), set()).add(link)
            taken.setdefault(group_of(link), []).append(moved)
        for name, amounts in taken.items():
            # Equal links of a collective belong to different members, so their bytes are not summed for one rank.
            amount = max(amounts) if span.kind == "collective" else sum(amounts)
            line = lines.setdefault(name, {}).setdefault(span.rank, [0.0] * BINS)
            _spread(line, start - begin, stop - begin, amount / (stop - start), width)
    rates = {name: min(pricer.capacity[link] for link in links) for name, links in named.items()}
    found = [_use(name, rates[name], list(lines[name].values()), width, tuple(sorted(named[name]))) for name in lines]
    return sorted(found, key=lambda use: (-use.share, use.name))


def _spread(line: list[float], start: float, stop: float, rate: float, width: float) -> None:
    """Adds `rate` bytes per second between `start` and `stop` to the bins, in bytes."""
    first, last = max(0, int(start / width)), min(BINS - 1, int(stop / width))
    for at in range(first, last + 1):
        line[at] += rate * max(0.0, min(stop, (at + 1) * width) - max(start, at * width, 0.0))


def _use(name: str, rate: float, lines: Sequence[Sequence[float]], width: float, links: tuple[str, ...]) -> LinkUse:
    moved = max(sum(line) for line in lines)
    bins = tuple(min(1.0, max(line[at] for line in lines) / (rate * width)) for at in range(BINS))
    return LinkUse(name, rate, moved, min(1.0, moved / (rate * width * BINS)), bins, links)


def _transfers(program: Program, trace: Trace, pricer: Pricer, begin: float, end: float) -> Iterator[tuple[Span, Cost]]:
    """(span, cost) of each transfer of the step: of collectives one for each simulated member, of messages one for the sender."""
    spans = {s.id: s for s in trace.spans if s.kind in MOVES and s.end > begin and s.start < end}
    costs: dict[tuple[int, int], Cost] = {}
    for rank in trace.ranks:
        for thread in program.threads(rank):
            for call, op in program.ops(rank, thread):
                span = spans.get(full_id(rank, call, op)) if op.kind in MOVES else None
                if span is None:
                    continue
                key = (id(op), rank)
                if key not in costs:
                    costs[key] = transfer_cost(pricer, program.mesh, op, rank)
                yield span, costs[key]


def link_map(uses: Sequence[LinkUse], step: float) -> go.Figure:
    """A heat map: links by time of the step, coloured by use in % of the link's rate; the busiest on top."""
    shown = list(uses[:_MOST])[::-1]
    time = clock(step)
    width = step / BINS * time.scale
    figure = go.Figure(
        go.Heatmap(
            x=[round((at + 0.5) * width, 6) for at in range(BINS)],
            y=[safe(use.name) for use in shown],
            z=[[round(100 * value, 1) for value in use.bins] for use in shown],
            zmin=0,
            zmax=100,
            colorscale=_SCALE,
            colorbar={"title": {"text": "% busy", "side": "right"}, "thickness": 12, "len": 1.0},
            hovertemplate=f"%{{y}}<br>%{{x:.2f}} {time.unit}: %{{z:.0f}} % of its rate<extra></extra>",
        )
    )
    figure.update_layout(height=130 + 28 * max(3, len(shown)), xaxis={"title": f"{time.unit} into the step"})
    return figure


_SCALE = [[0.0, "rgba(130,145,160,0.10)"], [0.001, "#c6dbef"], [0.35, "#6baed6"], [0.7, ORANGE], [1.0, VERMILION]]
"""Idle is almost transparent, so that it is readable on light and on dark pages."""
