"""A page: one self-contained HTML file that opens from an e-mail without a network.

It contains plotly.js once; figures are embedded as JSON and drawn in the reader's colours, light or dark. Every string is escaped.
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
"""(value, name with its unit, note)."""

_PAGE = Template((Path(__file__).parent / "page.html").read_text("utf-8"))
_LONGEST = 120
"""Most letters of a title."""
_TOP = 40
"""Pixels above a plot that belong to the bar with the zoom and camera buttons, so that it covers nothing."""
_NARROWEST = "least width"
_FIGURE = re.compile(r"[-+−~<>≤≥±\s]*\.?\d")
_CONFIG_OFF = ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"]
CONFIG = {"responsive": True, "displaylogo": False, "modeBarButtonsToRemove": _CONFIG_OFF}
"""Plotly's settings of every figure."""


def styled(figure: go.Figure) -> go.Figure:
    """Gives a figure the common style: no background, room for the button bar, a horizontal legend below. Returns the same figure."""
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
    """Sets the figure's least width in pixels, below which its parts would overlap. Returns the same figure."""
    return figure.update_layout(meta={_NARROWEST: least})


def embedded(figure: go.Figure) -> str:
    """The figure's JSON, safe inside a <script> element: without any `<`."""
    text: str = plotly.io.to_json(figure, validate=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _cell(tag: str, text: str, left: bool = False) -> str:
    """The HTML of one cell; long texts (ids, sentences) may be broken anywhere."""
    marks = " ".join(["left"] * left + ["long"] * (tag == "td" and len(text) > 24))
    return f'<{tag} class="{marks}">{html.escape(text)}</{tag}>' if marks else f"<{tag}>{html.escape(text)}</{tag}>"


def _worded(cells: Sequence[str]) -> bool:
    """True if a column has words and no figures, which begin with a digit after any sign."""
    return any(any(letter.isalpha() for letter in cell) for cell in cells) and not any(_FIGURE.match(cell) for cell in cells)


class Page:
    """Collects sections, then makes the file's text."""

    def __init__(self, title: str, lead: str) -> None:
        self._title, self._lead = short(title, _LONGEST), lead
        self._parts: list[str] = []
        self._figures, self._heading = 0, title

    def cards(self, cards: Sequence[Card]) -> None:
        """Adds cards with headline numbers."""
        inner = "".join(
            f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(name)}</span><i>{html.escape(note)}</i></div>'
            for value, name, note in cards
        )
        self._parts.append(f'<div class="cards">{inner}</div>')

    def section(self, title: str, note: str = "") -> None:
        """Adds a heading, and a note on how to read what follows."""
        self._heading = title
        self._parts.append(f"<h2>{html.escape(title)}</h2>")
        self.note(note)

    def part(self, title: str, note: str) -> None:
        """Adds a larger heading, above several sections, and a note."""
        self._parts.append(f'<h2 class="part">{html.escape(title)}</h2>')
        self.note(note)

    def note(self, text: str) -> None:
        """Adds a sentence in small type; nothing if `text` is empty."""
        if text:
            self._parts.append(f'<p class="note">{html.escape(text)}</p>')

    def link(self, before: str, file: str, after: str = "") -> None:
        """Adds a sentence with a link to a file in the page's folder."""
        name = html.escape(file, quote=True)
        self._parts.append(f'<p class="note">{html.escape(before)} <a href="{name}">{name}</a> {html.escape(after)}</p>')

    def warnings(self, texts: Sequence[str]) -> None:
        """Adds warnings: what a reader must know before using the figures."""
        self._parts += [f'<div class="warn">{html.escape(text)}</div>' for text in texts]

    def room(self, fits: bool, plan: str = "This plan") -> None:
        """Adds a warning if a plan does not fit."""
        if not fits:
            self.warnings([f"{plan} does not fit into the memory of one device; the figures are what it would take if it did."])

    def figure(self, figure: go.Figure) -> None:
        """Adds a figure at full width, with the layout's height. If `no_narrower` has set a least width, it scrolls sideways below that.
        The section's heading is its label for screen readers."""
        styled(figure)
        self._figures += 1
        height, least = int(figure.layout.height or 450), (figure.layout.meta or {}).get(_NARROWEST, 0)
        self._parts.append(
            f'<div class="scroll"><div class="figure" role="figure" aria-label="{html.escape(self._heading)}" id="figure-{self._figures}" '
            f'style="height:{height}px;min-width:{least}px"></div></div>'
            f'<script type="application/json" data-for="figure-{self._figures}">{embedded(figure)}</script>'
        )

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], empty: str = "Nothing.") -> None:
        """Adds a table of text cells: columns of figures are aligned right, of words left. Short cells (figures with units) are not broken.
        Without rows, adds the note `empty` instead."""
        if not rows:
            self.note(empty)
            return
        left = [at == 0 or _worded([row[at] for row in rows]) for at in range(len(head))]
        top = "".join(_cell("th", cell, its) for cell, its in zip(head, left, strict=True))
        body = "".join("<tr>" + "".join(_cell("td", cell, its) for cell, its in zip(row, left, strict=True)) + "</tr>" for row in rows)
        self._parts.append(f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>')

    def words(self, rows: Sequence[tuple[str, str]]) -> None:
        """Adds the section that explains the page's figures: rows of (name, meaning)."""
        self.section("What the figures mean")
        body = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(meaning)}</td></tr>" for name, meaning in rows)
        self._parts.append(f'<table class="words"><tbody>{body}</tbody></table>')

    def text(self, footer: str) -> str:
        """The text of the whole file."""
        return _PAGE.substitute(
            title=html.escape(self._title),
            lead=html.escape(self._lead),
            body="\n".join(self._parts),
            footer=html.escape(footer),
            config=plotly.io.json.to_json_plotly(CONFIG),
            plotly=plotly.offline.get_plotlyjs(),
        )
