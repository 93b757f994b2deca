"""A page: one self-contained HTML file that opens from an e-mail without a network.

plotly.js stands in it once; every string is escaped; light and dark follow the reader's setting.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from string import Template

import plotly.graph_objects as go
import plotly.offline

Card = tuple[str, str, str]
"""(figure, unit and name, note)."""

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { --ink:#1b2430; --soft:#5b6775; --paper:#ffffff; --panel:#f5f7f9; --line:#dfe4ea; --accent:#0072B2; }
@media (prefers-color-scheme: dark) { :root { --ink:#e7ecf2; --soft:#9aa7b5; --paper:#12171d; --panel:#1b222b; --line:#2c3641; --accent:#56B4E9; } }
* { box-sizing:border-box } body { margin:0; font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif; color:var(--ink); background:var(--paper) }
main { max-width:1240px; margin:0 auto; padding:28px 24px 60px } h1 { font-size:26px; margin:0 0 4px; letter-spacing:-.01em } h2 { font-size:18px; margin:38px 0 6px }
p.lead { color:var(--soft); margin:0 0 22px } p.note { color:var(--soft); margin:2px 0 10px; max-width:75ch }
.cards { display:grid; grid-template-columns:repeat(auto-fit,minmax(165px,1fr)); gap:12px } .card { background:var(--panel); border:1px solid var(--line); border-radius:10px; padding:12px 14px }
.card b { display:block; font-size:21px; font-variant-numeric:tabular-nums } .card span { color:var(--soft); font-size:13px } .card i { display:block; color:var(--soft); font-size:12px; font-style:normal }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; font-size:14px } th,td { text-align:right; padding:5px 10px; border-bottom:1px solid var(--line) }
th:first-child,td:first-child { text-align:left } th { color:var(--soft); font-weight:600 } .warn { border-left:4px solid #E69F00; background:var(--panel); padding:8px 14px; margin:8px 0; border-radius:0 8px 8px 0 }
.figure { width:100%; overflow:hidden } footer { color:var(--soft); font-size:13px; margin-top:46px; border-top:1px solid var(--line); padding-top:12px } code { background:var(--panel); padding:1px 5px; border-radius:4px }
.scroll { overflow-x:auto }
</style>
<script>$plotly</script></head><body><main>
<h1>$title</h1><p class="lead">$lead</p>
$body
<footer>$footer</footer></main>
<script>
const dark = matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink"), line = getComputedStyle(document.documentElement).getPropertyValue("--line");
  document.querySelectorAll(".js-plotly-plot").forEach(p => {
    const change = {"font.color": ink, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)"};
    Object.keys(p.layout).filter(k => /^[xy]axis/.test(k)).forEach(k => { change[k + ".gridcolor"] = line; change[k + ".zerolinecolor"] = line; });
    Plotly.relayout(p, change);
  });
}
paint(); dark.addEventListener("change", paint);
</script></body></html>
""")


class Page:
    """Collects sections, then makes the file's text."""

    def __init__(self, title: str, lead: str) -> None:
        self._title, self._lead = title, lead
        self._parts: list[str] = []
        self._figures = 0

    def cards(self, cards: Sequence[Card]) -> None:
        """Headline numbers."""
        inner = "".join(
            f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(name)}</span><i>{html.escape(note)}</i></div>'
            for value, name, note in cards
        )
        self._parts.append(f'<div class="cards">{inner}</div>')

    def section(self, title: str, note: str = "") -> None:
        self._parts.append(f"<h2>{html.escape(title)}</h2>" + (f'<p class="note">{html.escape(note)}</p>' if note else ""))

    def warnings(self, texts: Sequence[str]) -> None:
        self._parts += [f'<div class="warn">{html.escape(text)}</div>' for text in texts]

    def figure(self, figure: go.Figure) -> None:
        figure.update_layout(
            template="plotly_white",
            font={"family": "system-ui, sans-serif", "size": 13},
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
        )
        if figure.layout.margin.l is None:
            figure.update_layout(margin={"l": 10, "r": 20, "t": 30, "b": 40})
        self._figures += 1
        made = figure.to_html(
            full_html=False, include_plotlyjs=False, div_id=f"figure-{self._figures}", config={"responsive": True, "displaylogo": False}
        )
        self._parts.append(f'<div class="figure">{made}</div>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self._parts.append(f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>')

    def text(self, footer: str) -> str:
        """The whole file."""
        return _PAGE.substitute(
            title=html.escape(self._title),
            lead=html.escape(self._lead),
            body="\n".join(self._parts),
            footer=html.escape(footer),
            plotly=plotly.offline.get_plotlyjs(),
        )
