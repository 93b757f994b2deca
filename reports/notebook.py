"""Displays results in notebooks: `_repr_html_` and `figure` for all that the functions of `steptwin` and of planning return.

The types are in layers below `reports` and cannot draw, so their methods are attached here: `attach()` adds them to
all types (one line at the top of a notebook), `shown(value)` to the type of one result (`steptwin`'s functions call it).
Neither imports plotly; only a call of `figure` does. The HTML has no script, so that it also works in saved and mailed notebooks.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from reports.figures.palette import WORDS, colour
from reports.words import count, gib, ranks, seconds, short
from topologies.errors import UnknownName

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sim.align import Comparison
    from sim.planning.sweeps.sweep import Sweep
    from sim.result.prediction import Prediction
    from topologies.graph import Topology

T = TypeVar("T")
_TOP = 5


def attach() -> None:
    """Adds `_repr_html_` and `figure` to all types; calling it again changes nothing."""
    for place in _SHOWN:
        module, _, name = place.rpartition(".")
        _give(getattr(import_module(module), name), place)


def shown(value: T) -> T:
    """`value` itself, after adding `_repr_html_` and `figure` to its type; a type that is not in `_SHOWN` is not changed."""
    kind = type(value)
    place = f"{kind.__module__}.{kind.__name__}"
    if place in _SHOWN:
        _give(kind, place)
    return value


def _give(kind: type, place: str) -> None:
    if not hasattr(kind, "_repr_html_"):
        page, figures = _SHOWN[place]

        def figure(self: Any, what: str = "") -> go.Figure:
            """A Plotly figure; the empty word draws the first of what there is."""
            return _figure(self, what, figures)

        kind._repr_html_ = page  # type: ignore[attr-defined]
        kind.figure = figure  # type: ignore[attr-defined]


def _figure(value: Any, what: str, figures: Mapping[str, Callable[[Any], go.Figure]]) -> go.Figure:
    """The figure called `what`. Raises `UnknownName`."""
    name = what or next(iter(figures))
    if name not in figures:
        raise UnknownName("figure", name, tuple(figures))
    from reports.page import styled

    return styled(figures[name](value))


# -- HTML


def _table(title: str, rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    top = "<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div><b>{html.escape(title)}</b><table>{top}{body}</table></div>"


def _bar(split: Mapping[str, float]) -> str:
    """A breakdown as one bar of coloured boxes, with the shares in words below it."""
    total = sum(split.values()) or 1.0
    parts = [(WORDS.get(name, name), colour(name), value) for name, value in split.items() if value > 0]
    boxes = "".join(
        f'<span title="{html.escape(word)}" style="width:{100 * value / total:.2f}%;background:{tint}"></span>'
        for word, tint, value in parts
    )
    words = ", ".join(f"{html.escape(word)} {value / total:.1%}" for word, _, value in parts)
    return f'<div style="display:flex;height:14px;max-width:640px">{boxes}</div><div><small>{words}</small></div>'


def prediction_html(found: Prediction) -> str:
    """Headline figures, breakdown, and notes such as warnings."""
    from msgspec.structs import asdict

    from reports.pages.prediction import headline, notes_of

    told = found.to_dict()
    title = f"{found.plan.name or found.plan.model_name} on {found.machine}, {ranks(found.gpus)}: predicted"
    notes = "".join(f"<div><small>{html.escape(note)}</small></div>" for note in notes_of(told))
    return _table(title, [(name, value, note) for value, name, note in headline(told)]) + _bar(asdict(found.breakdown)) + notes


def comparison_html(found: Comparison) -> str:
    """The step's error, and the classes with most time."""
    m = found.measured_step
    title = f"predicted {seconds(found.predicted_step)}, {found.origin} {seconds(m.median)} (median of {m.count}): {found.error:+.1%}"
    rows = [
        (one.cls, seconds(one.predicted), seconds(one.measured), f"{one.error:+.0%}" if one.error is not None else "not measured")
        for one in found.classes[: 2 * _TOP]
    ]
    return _table(title, rows, ("class of op", "predicted", "measured", "error"))


def sweep_html(found: Sweep) -> str:
    """The number of plans by outcome, and the best plans."""
    from reports.pages.sweep import outcomes
    from sim.planning.sweeps.tables import unit_of

    head: tuple[str, ...] = ("plan", "step", "samples/s/GPU", "MFU", "memory")
    if any(row.cost for row in found.ranked):
        head += (f"cost per million {unit_of(found.feasible)}",)
    rows = [
        (
            short(row.key, 100),
            seconds(row.step_time or 0.0),
            f"{(row.rate or 0.0) / (row.gpus or 1):.4g}",
            f"{row.mfu:.1%}" if row.mfu is not None else "-",
            gib(row.memory or 0),
            count(row.cost) if row.cost else "-",
        )
        for row in found.ranked[:_TOP]
    ]
    return _table(f"plans: {outcomes(found.counts)}", [row[: len(head)] for row in rows], head)


def topology_html(found: Topology) -> str:
    """The parts and the links of a node."""
    from sim.files.machinefile import machine_words
    from topologies.summary import summary

    told = summary(found)
    told["nics"] = ", ".join(f"{number} x {name}" for name, number in told["nics"].items()) or "none"
    rows = [(name, str(value)) for name, value in told.items() if name not in ("rows", "paths from rank 0", "peak TFLOP/s", "source")]
    rows += [(f"{row['link']} x {row['count']}", f"{row['rate']}, {row['latency']}") for row in told["rows"]]
    return _table(f"{machine_words(found)}: {ranks(found.gpus)}", rows)


def text_html(found: object) -> str:
    """The text that `print` would show, with its columns kept."""
    return f"<pre>{html.escape(str(found))}</pre>"


# -- figures


def _timeline(found: Prediction) -> go.Figure:
    from reports.figures.timeline import timeline

    return timeline([_traced(found)])


def _traced(found: Prediction) -> Any:
    if found.trace is None:
        raise UnknownName("figure of a prediction without its trace", "timeline", ("breakdown", "sources"))
    return found.trace


def _memory(found: Prediction) -> go.Figure:
    from reports.figures.memory import memory_line
    from sim.timeline.asynchrony import step_shown

    trace = _traced(found)
    if not trace.memory:
        raise UnknownName("figure of a step whose runs of ops are one span each", "memory", ("timeline", "breakdown", "sources"))
    lines = {rank: tuple(line) for rank, line in trace.memory.items()}
    return memory_line(lines, found.rooms, step_shown(trace))


def _drawn(module: str, function: str, pick: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], go.Figure]:
    """Draws a value by `function` of a module of `reports.figures`, which is imported on first use. `pick`: from the value to the
    arguments."""

    def draw(value: Any) -> go.Figure:
        return getattr(import_module(f"reports.figures.{module}"), function)(*pick(value))

    return draw


def _itself(found: Any) -> tuple[Any]:
    return (found,)


def _breakdown(found: Prediction) -> tuple[dict[str, float]]:
    from msgspec.structs import asdict

    return (asdict(found.breakdown),)


_SHOWN: dict[str, tuple[Callable[[Any], str], dict[str, Callable[[Any], Any]]]] = {
    "sim.result.prediction.Prediction": (
        prediction_html,
        {
            "timeline": _timeline,
            "breakdown": _drawn("shares", "breakdown_bar", _breakdown),
            "memory": _memory,
            "sources": _drawn("shares", "sources_bar", lambda found: (found.sources,)),
        },
    ),
    "sim.align.Comparison": (
        comparison_html,
        {
            "classes": _drawn("deviation", "class_errors", _itself),
            "waterfall": _drawn("deviation", "waterfall", _itself),
            "ops": _drawn("deviation", "scatter", _itself),
        },
    ),
    "sim.planning.sweeps.sweep.Sweep": (
        sweep_html,
        {
            "pareto": _drawn("plans", "pareto_figure", lambda found: (found.ranked, found.front)),
            "coordinates": _drawn("coordinates", "coordinates", lambda found: (found.ranked,)),
            "breakdowns": _drawn("plans", "breakdowns", lambda found: (found.ranked[:_TOP],)),
        },
    ),
    "sim.planning.explain.explanation.Explanation": (
        text_html,
        {
            "path": _drawn("planning", "critical_path", _itself),
            "resources": _drawn("planning", "without_limit", _itself),
            "changes": _drawn("planning", "changes", _itself),
        },
    ),
    "sim.planning.capacity.capacity.Capacity": (text_html, {"days": _drawn("scaling", "days", _itself)}),
    "sim.planning.capacity.scaling.Curve": (
        text_html,
        {
            "scaling": _drawn("scaling", "scaling", lambda found: (found, ())),
            "goodput": _drawn("scaling", "goodput", lambda found: (found, ())),
            "expense": _drawn("scaling", "expense", lambda found: (found, (), "")),
        },
    ),
    "sim.planning.disturbed.faults.Faults": (text_html, {"steps": _drawn("planning", "faults", _itself)}),
    "sim.planning.disturbed.jobs.Jobs": (text_html, {"steps": _drawn("planning", "jobs", _itself)}),
    "sim.planning.montecarlo.Spread": (text_html, {"draws": _drawn("planning", "spread", _itself)}),
    "topologies.graph.Topology": (topology_html, {"machine": _drawn("machine", "machine", _itself)}),
}
"""Type -> (its HTML, its figures by name; the first is the default)."""
