"""A page: one self-contained HTML file that opens from an e-mail without a network.

plotly.js stands in it once; figures are JSON beside it and are drawn in the reader's colours, light or dark. Every string is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

import plotly.graph_objects as go
import plotly.io
import plotly.offline

from reports.figures.palette import BLUE, GREY
from reports.words import short

Card = tuple[str, str, str]
"""(figure, unit and name, note)."""

_PAGE = Template((Path(__file__).parent / "page.html").read_text("utf-8"))
_LONGEST = 120
"""Letters of a title."""
_TOP = 40
"""Pixels above a plot that belong to the bar with the zoom and camera buttons, so that it covers nothing."""
_NARROWEST = "least width"
_FIGURE = re.compile(r"[-+−~<>≤≥±\s]*\.?\d")
_CONFIG_OFF = ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"]
CONFIG = {"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": _CONFIG_OFF}
"""Plotly's settings of every figure."""


def styled(figure: go.Figure) -> go.Figure:
    """The house's look: no background of its own, room for the button bar, a flat legend below. Returns the same figure."""
    clear = "rgba(0,0,0,0)"
    figure.update_layout(
        template="plotly_white",
        font={"family": "system-ui, sans-serif", "size": 13},
        paper_bgcolor=clear,
        plot_bgcolor=clear,
        modebar={"bgcolor": clear, "color": GREY, "activecolor": BLUE},
        hoverlabel={"align": "left"},
    )
    given = figure.layout.margin
    margin = {side: getattr(given, side) for side in "lrtb"}
    floor = {"l": 10, "r": 20, "t": _TOP, "b": 40}
    figure.update_layout(margin={side: max(floor[side], value or 0) for side, value in margin.items()})
    figure.update_xaxes(automargin=True, title_standoff=8)
    figure.update_yaxes(automargin=True, title_standoff=8)
    if figure.layout.legend.orientation == "h":
        figure.update_layout(legend={"yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left", "traceorder": "normal"})
    return figure


def no_narrower(figure: go.Figure, least: int) -> go.Figure:
    """Below `least` pixels of width its parts would lie on one another. Returns the same figure."""
    return figure.update_layout(meta={_NARROWEST: least})


def embedded(figure: go.Figure) -> str:
    """The figure's JSON as it may stand inside a <script> element: no `<` at all."""
    text: str = plotly.io.to_json(figure, validate=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _cell(tag: str, text: str, left: bool = False) -> str:
    """One cell; ids and sentences may be broken anywhere."""
    marks = " ".join(["left"] * left + ["long"] * (tag == "td" and len(text) > 24))
    return f'<{tag} class="{marks}">{html.escape(text)}</{tag}>' if marks else f"<{tag}>{html.escape(text)}</{tag}>"


def _worded(cells: Sequence[str]) -> bool:
    """Does a column hold words alone? Figures begin with a digit, whatever their sign."""
    return any(any(letter.isalpha() for letter in cell) for cell in cells) and not any(_FIGURE.match(cell) for cell in cells)


class Page:
    """Collects sections, then makes the file's text."""

    def __init__(self, title: str, lead: str) -> None:
        self._title, self._lead = short(title, _LONGEST), lead
        self._parts: list[str] = []
        self._figures, self._heading = 0, title

    def cards(self, cards: Sequence[Card]) -> None:
        """Headline numbers."""
        inner = "".join(
            f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(name)}</span><i>{html.escape(note)}</i></div>'
            for value, name, note in cards
        )
        self._parts.append(f'<div class="cards">{inner}</div>')

    def section(self, title: str, note: str = "") -> None:
        """A heading with a sentence on how to read what follows."""
        self._heading = title
        self._parts.append(f"<h2>{html.escape(title)}</h2>")
        self.note(note)

    def part(self, title: str, note: str) -> None:
        """A larger heading, above several sections."""
        self._parts.append(f'<h2 class="part">{html.escape(title)}</h2>')
        self.note(note)

    def note(self, text: str) -> None:
        """A sentence in small type; nothing for an empty one."""
        if text:
            self._parts.append(f'<p class="note">{html.escape(text)}</p>')

    def link(self, before: str, file: str, after: str = "") -> None:
        """A sentence with a link to a file of the page's own folder."""
        name = html.escape(file, quote=True)
        self._parts.append(f'<p class="note">{html.escape(before)} <a href="{name}">{name}</a> {html.escape(after)}</p>')

    def warnings(self, texts: Sequence[str]) -> None:
        """What a reader must know before believing the figures."""
        self._parts += [f'<div class="warn">{html.escape(text)}</div>' for text in texts]

    def room(self, fits: bool, plan: str = "This plan") -> None:
        """A warning where a plan does not fit."""
        if not fits:
            self.warnings([f"{plan} does not fit into the memory of one device; the figures are what it would take if it did."])

    def figure(self, figure: go.Figure) -> None:
        """A figure at full width; its height is the layout's. `no_narrower` ones keep their least width and scroll sideways. Its section's heading
        is its name for whoever cannot see it."""
        styled(figure)
        self._figures += 1
        height, least = int(figure.layout.height or 450), (figure.layout.meta or {}).get(_NARROWEST, 0)
        self._parts.append(
            f'<div class="scroll"><div class="figure" role="figure" aria-label="{html.escape(self._heading)}" id="figure-{self._figures}" '
            f'style="height:{height}px;min-width:{least}px"></div></div>'
            f'<script type="application/json" data-for="figure-{self._figures}">{embedded(figure)}</script>'
        )

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], empty: str = "Nothing.") -> None:
        """Text cells; figures are right, words left. Short cells (figures with their unit) are never broken. Without rows, `empty` says why."""
        if not rows:
            self.note(empty)
            return
        left = [at == 0 or _worded([row[at] for row in rows]) for at in range(len(head))]
        top = "".join(_cell("th", cell, its) for cell, its in zip(head, left, strict=True))
        body = "".join("<tr>" + "".join(_cell("td", cell, its) for cell, its in zip(row, left, strict=True)) + "</tr>" for row in rows)
        self._parts.append(f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>')

    def words(self, rows: Sequence[tuple[str, str]]) -> None:
        """What the page's figures mean: names and sentences."""
        self.section("What the figures mean")
        body = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(meaning)}</td></tr>" for name, meaning in rows)
        self._parts.append(f'<table class="words"><tbody>{body}</tbody></table>')

    def text(self, footer: str) -> str:
        """The whole file."""
        return _PAGE.substitute(
            title=html.escape(self._title),
            lead=html.escape(self._lead),
            body="\n".join(self._parts),
            footer=html.escape(footer),
            config=plotly.io.json.to_json_plotly(CONFIG),
            plotly=plotly.offline.get_plotlyjs(),
        )
