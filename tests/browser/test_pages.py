"""Every kind of page in headless Chromium: no script error, no request, hover and zoom by mouse, light and dark, below 8 MB."""

from __future__ import annotations

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
  return [...plot.querySelectorAll('.xtick text, .ytick text, .legendtext, .gtitle, .xtitle, .ytitle')].filter(text => {
    const t = text.getBoundingClientRect(); return t.left < box.left - 1 || t.right > box.right + 1 || t.bottom > box.bottom + 1; })
    .map(text => plot.id + ': ' + text.textContent); })"""
CLASH = """[...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => ['.xtick text', '.ytick text', '.legendtext'].flatMap(kind => {
  const boxes = [...plot.querySelectorAll(kind)].map(text => [text.getBoundingClientRect(), text.textContent]);
  return boxes.flatMap(([a, one], i) => boxes.slice(i + 1).filter(([b]) => a.width && b.width && a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 2 && b.top < a.bottom - 2).map(([, two]) => plot.id + ': ' + one + ' on ' + two)); }))"""
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


@pytest.mark.parametrize("width", [1300, 900])
@pytest.mark.parametrize("kind", [*PAGES, *EDGES])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_reads_well(kind: str, dark: bool, width: int, browser: Browser, folder: Path, made: Callable[[str], Path]) -> None:
    """Nothing is cut, nothing lies on something else or beside the window, and the ink is the page's."""
    browser.open(made(kind), dark, width)
    assert browser.errors() == []
    assert browser.run(EMPTY) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(COVERED) == []
    assert browser.run(CUT) == []
    assert browser.run(CLASH) == []
    assert browser.run(INK) == ("rgb(231, 236, 242)" if dark else "rgb(27, 36, 48)")
    picture = folder / f"{kind}-{width}-{'dark' if dark else 'light'}.png"
    browser.picture(picture)
    assert picture.stat().st_size > 20_000


@pytest.mark.parametrize(
    ("check", "change"),
    [
        (COVERED, "{'margin.t': 0}"),
        (CUT, "{'yaxis.automargin': false, 'margin.l': 0, 'yaxis.ticksuffix': ' gigabytes per second'}"),
        (CLASH, "{'xaxis.tickvals': [1e6, 1.1e6], 'xaxis.ticktext': ['one size', 'another']}"),
    ],
    ids=["covered", "cut", "clash"],
)
def test_the_checks_see_a_broken_page(check: str, change: str, browser: Browser, made: Callable[[str], Path]) -> None:
    browser.open(made("collective"))
    assert browser.run(check) == []
    browser.run(f"Plotly.relayout(document.querySelector('.js-plotly-plot'), {change}).then(() => 1)")
    assert browser.run(check) != []
