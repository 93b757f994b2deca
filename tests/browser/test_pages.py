"""Every kind of page in headless Chromium: no script error, no request, hover and zoom by mouse, light and dark, below 8 MB."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.browser.devtools import Browser, chromium
from tests.browser.samples import EDGES, HOSTILE, PAGES

PROGRAM = chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine: apt-get install chromium")
LARGEST = 8_000_000

SPOT = """(() => { const plot = document.querySelector('.js-plotly-plot'); plot.scrollIntoView({block: 'center'});
  const marks = [...plot.querySelectorAll('.points path, .point path')].map(p => p.getBoundingClientRect());
  const area = plot.querySelector('.nsewdrag').getBoundingClientRect();
  const inside = marks.filter(m => m.width && m.left + m.width / 2 > area.left && m.right < area.right && m.top >= area.top && m.bottom <= area.bottom);
  const best = inside.sort((a, b) => b.width * b.height - a.width * a.height)[0];
  return {x: best.left + best.width / 2, y: best.top + best.height / 2, left: area.left, top: area.top, width: area.width, height: area.height}; })()"""
LABEL = """new Promise(done => { let left = 40; const look = () => {
  const found = document.querySelector('.js-plotly-plot .hoverlayer .hovertext');
  if (found || !left--) done(found ? found.textContent : ''); else setTimeout(look, 50); }; look(); })"""
RANGE = "document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range.slice()"
EMPTY = """[...document.querySelectorAll('.figure')].filter(f => !f.querySelector('.main-svg')).map(f => f.id)"""
COVERED = """[...document.querySelectorAll('.js-plotly-plot')].filter(plot => { const bar = plot.querySelector('.modebar');
  if (!bar) return false; const b = bar.getBoundingClientRect();
  return [...plot.querySelectorAll('.gtitle, .legend, .nsewdrag, .annotation-text')].some(part => { const p = part.getBoundingClientRect();
    return p.width && p.left < b.right && p.right > b.left && p.top < b.bottom - 1 && p.bottom > b.top; }); }).map(plot => plot.id)"""
CUT = """[...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => { const box = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('.xtick text, .ytick text, .legendtext, [class$="title"]')].filter(text => {
    const t = text.getBoundingClientRect(); return t.left < box.left - 1 || t.right > box.right + 1 || t.bottom > box.bottom + 1; })
    .map(text => plot.id + ': ' + text.textContent); })"""
CLASH = """[...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => ['.xtick text', '.ytick text', '.legendtext'].flatMap(kind => {
  const slanted = text => parseFloat((text.getAttribute('transform') || '').split('rotate(')[1] || 0) % 90;  // its box is wider than it is
  const boxes = [...plot.querySelectorAll(kind)].filter(text => !slanted(text)).map(text => [text.getBoundingClientRect(), text.textContent]);
  return boxes.flatMap(([a, one], i) => boxes.slice(i + 1).filter(([b]) => a.width && b.width && a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 2 && b.top < a.bottom - 2).map(([, two]) => plot.id + ': ' + one + ' on ' + two)); }))"""
LABELS = """[...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => { const box = plot.getBoundingClientRect();
  const marks = [...plot.querySelectorAll('path.point')].map(mark => mark.getBoundingClientRect()).filter(m => m.width > 15);
  const texts = [...plot.querySelectorAll('.textpoint text, text.bartext-outside')].filter(text => text.textContent).map(text => [text.getBoundingClientRect(), text]);
  const on = (a, b) => a.left < b.right - 2 && b.left < a.right - 2 && a.top < b.bottom - 4 && b.top < a.bottom - 4;
  return texts.flatMap(([t, text], i) => { const told = plot.id + ': ' + text.textContent, clip = text.closest('[clip-path]');
    const room = clip && /url/.test(clip.getAttribute('clip-path')) ? plot.querySelector('.nsewdrag').getBoundingClientRect() : box;
    return [...(t.left < room.left - 1 || t.right > room.right + 1 ? [told + ' is cut'] : []), ...marks.filter(m => on(t, m)).map(() => told + ' on a mark'),
      ...texts.slice(i + 1).filter(([other]) => on(t, other)).map(([, other]) => told + ' on ' + other.textContent)]; }); })"""
"""Words inside a plot that its edge cuts, or that lie on each other or on a large mark."""
SQUEEZED = """[...document.querySelectorAll('.js-plotly-plot')].filter(plot => { const box = plot.getBoundingClientRect();
  const areas = [...plot.querySelectorAll('.nsewdrag')].map(area => area.getBoundingClientRect());
  const wide = Math.max(...areas.map(a => a.width)), high = areas.reduce((sum, a) => sum + a.height, 0), bar = plot.querySelector('.legend .scrollbar');
  return areas.length && (wide < 0.38 * box.width || wide < 130 || high < 35 || (bar && bar.getBoundingClientRect().height > 1)); })
  .map(plot => plot.id)"""
"""Figures whose words leave their plot a sliver, or whose legend has to be scrolled."""
SHREDDED = """[...document.querySelectorAll('td.long')].filter(cell => cell.clientWidth < 170 && cell.clientHeight > 90).map(cell => cell.textContent)"""
"""Sentences and names in a column so thin that they are broken inside words."""
INK = "getComputedStyle(document.querySelector('.js-plotly-plot .xtick text, .js-plotly-plot .legendtext')).fill"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def made(folder: Path) -> Callable[[str], Path]:
    """The page of a kind, made once."""
    return cache(lambda kind: (PAGES | EDGES)[kind](folder))


@pytest.mark.parametrize("kind", PAGES)
def test_page_opens_hovers_and_zooms(kind: str, browser: Browser, made: Callable[[str], Path]) -> None:
    page = made(kind)
    assert page.stat().st_size < LARGEST
    browser.open(page)
    assert browser.errors() == []
    assert browser.requests() == []
    assert browser.run(EMPTY) == []
    assert browser.run("[...document.querySelectorAll('.figure')].every(figure => figure.getAttribute('aria-label'))")
    assert "<script>alert(" not in page.read_text("utf-8").lower()
    assert HOSTILE.partition("/")[0] in browser.run("document.body.innerText"), "hostile names are shown as text"

    spot = browser.run(SPOT)
    browser.mouse("mouseMoved", spot["x"] - 30, spot["y"])
    browser.mouse("mouseMoved", spot["x"], spot["y"])
    assert browser.run(LABEL), "nothing is said about the mark under the mouse"

    before = browser.run(RANGE)
    middle = spot["top"] + spot["height"] / 2
    browser.mouse("mouseMoved", spot["left"] + 0.3 * spot["width"], middle)
    browser.mouse("mousePressed", spot["left"] + 0.3 * spot["width"], middle, 1)
    browser.mouse("mouseMoved", spot["left"] + 0.5 * spot["width"], middle)
    browser.mouse("mouseMoved", spot["left"] + 0.6 * spot["width"], middle)
    browser.mouse("mouseReleased", spot["left"] + 0.6 * spot["width"], middle, 1)
    after = browser.run(f"new Promise(done => setTimeout(() => done({RANGE}), 300))")
    assert after[1] - after[0] < 0.5 * (before[1] - before[0]), "dragging did not zoom"
    assert browser.errors() == []


@pytest.mark.parametrize(("dark", "width"), [(False, 1300), (False, 900), (False, 420), (True, 900)])
@pytest.mark.parametrize("kind", [*PAGES, *EDGES])
def test_page_reads_well(kind: str, dark: bool, width: int, browser: Browser, folder: Path, made: Callable[[str], Path]) -> None:
    """Nothing is cut, nothing lies on something else or beside the window, and the ink is the page's. Dark pages have other colours alone: where
    things stand is looked at in one width."""
    browser.open(made(kind), dark, width)
    assert browser.errors() == []
    assert browser.run(EMPTY) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(COVERED) == []
    assert browser.run(CUT) == []
    assert browser.run(CLASH) == []
    assert browser.run(LABELS) == []
    assert browser.run(SQUEEZED) == []
    assert browser.run(SHREDDED) == []
    assert browser.run(INK) == ("rgb(231, 236, 242)" if dark else "rgb(27, 36, 48)")
    picture = folder / f"{kind}-{width}-{'dark' if dark else 'light'}.png"
    browser.picture(picture)
    assert picture.stat().st_size > 20_000


PLOT = "document.querySelector('.js-plotly-plot')"


@pytest.mark.parametrize(
    ("check", "kind", "change"),
    [
        (COVERED, "collective", f"Plotly.relayout({PLOT}, {{'margin.t': 0}}).then(() => 1)"),
        (
            CUT,
            "collective",
            f"Plotly.relayout({PLOT}, {{'yaxis.automargin': false, 'margin.l': 0, 'yaxis.ticksuffix': ' gigabytes per second'}}).then(() => 1)",
        ),
        (
            CLASH,
            "collective",
            f"Plotly.relayout({PLOT}, {{'xaxis.tickvals': [1e6, 1.1e6], 'xaxis.ticktext': ['one size', 'another']}}).then(() => 1)",
        ),
        (LABELS, "topology", f"Plotly.relayout({PLOT}, {{width: 372}}).then(() => 1)"),
        (SQUEEZED, "collective", f"Plotly.relayout({PLOT}, {{'margin.l': 1000}}).then(() => 1)"),
        (
            SHREDDED,
            "sweep",
            "document.querySelectorAll('td.long').forEach(cell => { cell.style.cssText = 'min-width:0; max-width:50px'; })",
        ),
    ],
    ids=["covered", "cut", "clash", "labels", "squeezed", "shredded"],
)
def test_the_checks_see_a_broken_page(check: str, kind: str, change: str, browser: Browser, made: Callable[[str], Path]) -> None:
    browser.open(made(kind))
    assert browser.run(check) == []
    browser.run(change)
    assert browser.run(check) != []


def test_a_window_that_becomes_narrow_gets_legends_below(browser: Browser, made: Callable[[str], Path]) -> None:
    sides = f"{PLOT}._fullLayout.legend.orientation"
    browser.open(made("validation"), width=1300)
    assert browser.run(sides) == "v"
    browser.send("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=False)
    assert browser.run(f"new Promise(done => setTimeout(() => done({sides}), 800))") == "h"
    assert browser.run(SQUEEZED) == [] and browser.run("document.documentElement.scrollWidth") <= 420
    browser.send("Emulation.setDeviceMetricsOverride", width=1300, height=900, deviceScaleFactor=1, mobile=False)
    assert browser.run(f"new Promise(done => setTimeout(() => done({sides}), 800))") == "v"
    assert browser.errors() == []


PAPER = re.compile(rb"/MediaBox \[0 0 ([0-9.]+) ([0-9.]+)\]")


def test_paper_is_as_wide_as_a_page_is(browser: Browser, made: Callable[[str], Path]) -> None:
    """Figures keep their width in print: on an A4 sheet in a browser's own scale, their right third would be cut off."""
    browser.open(made("sweep"), width=1300)
    wide = browser.run("document.querySelector('main').getBoundingClientRect().width")
    printed = base64.b64decode(browser.send("Page.printToPDF", preferCSSPageSize=True)["data"])
    sheets = PAPER.findall(printed)
    assert sheets and all(float(width) >= 0.75 * wide for width, _ in sheets), "points are 3/4 of a pixel"
