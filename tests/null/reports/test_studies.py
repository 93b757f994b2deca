"""Pages of what-if studies say the figures that the study found; pages say what they compare, in fitting units."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from reports.figures import planning
from reports.figures.plans import breakdowns
from reports.figures.scaling import days
from reports.figures.timeline import timeline
from reports.pages.capacity import capacity_page
from reports.pages.collective import collective_page
from reports.pages.comparison import comparison_page
from reports.pages.studies import spread_page
from reports.scene import Scene
from reports.words import seconds
from sim.align import align_by_class
from sim.cost.collective.table import collective_table
from sim.files.planfile import load_plan
from sim.plan import Plan
from sim.planning.capacity.capacity import capacity
from sim.planning.disturbed.faults import Fault, Faults
from sim.planning.montecarlo import Jitter, Spread
from sim.planning.sweeps.sweep import Row
from sim.predict import predict
from sim.result.compare import measured_times
from sim.result.uncertainty import outside
from sim.sections import Parallel
from sim.timeline.metrics import step_numbers, step_times
from sim.trace import Span, Trace
from tests.null.verbs.test_verbs import Call, call
from topologies.load import load_topology

__all__ = ["call"]


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("explain plan.toml", ("Critical path", "elasticity", "compute")),
        ("faults plan.toml --on dgx-h100 --fault slow=r0:0.8", ("slow=r0:0.8", "slowdown", "nothing broken")),
        ("jobs plan.toml plan.toml --on dgx-h100 --place compact", ("j0", "j1", "compact", "4 ranks")),
        ("spread plan.toml --draws 20", ("P50", "P95", "P99", "sigma of log(time)")),
    ],
)
def test_a_study_is_drawn(words: str, told: tuple[str, ...], call: Call, tmp_path: Path) -> None:
    said = call(*words.split(), "--json", "--report", "deep/page.html")
    assert said.code == 0 and "report: deep/page.html" in said.err
    text = (tmp_path / "deep" / "page.html").read_text("utf-8")
    body = text[text.index("<main>") :]
    assert all(word in body for word in told)
    step = (
        next(said.json[key] for key in ("step_time_s", "p50_s") if key in said.json)
        if "rows" not in said.json or "plan" in said.json
        else None
    )
    assert seconds(step if step is not None else said.json["rows"][0]["alone_s"]) in body


def test_draws_that_are_all_one_time_are_said_in_words() -> None:
    same = Spread(p50=0.5, p95=0.5, p99=0.5, mean=0.5, without=0.5, jitter=Jitter(), seed=0, samples=(0.5,) * 20)
    page = spread_page("mine", "dgx-h100", same)
    assert "Every draw takes 500.00 ms" in page and "histogram" not in page[page.index("<main>") :]
    one = spread_page("mine", "dgx-h100", msgspec.structs.replace(same, samples=(0.5,)))
    assert "1 step drawn" in one and "Every draw" not in one
    other = msgspec.structs.replace(same, samples=(0.5, 0.6) * 10)
    assert "Every draw" not in (page := spread_page("mine", "dgx-h100", other)) and "histogram" in page[page.index("<main>") :]


def test_a_comparison_says_what_it_compares() -> None:
    found = predict({"model": "gpt2-124m", "batch": {"micro": 1}}, "dgx-h100")
    assert found.trace is not None and found.program is not None
    imported = {"imported": align_by_class(found.trace, found.trace, step_times(found.trace))}
    page = comparison_page(
        "mine", found.to_dict(), [found.trace, found.trace], imported, {"imported": step_times(found.trace)}, [], Scene()
    )
    assert (
        "the same plan predicted and measured elsewhere." in page and "trained" not in page[page.index("<main>") : page.index("Timeline")]
    )


def _cards(page: str) -> dict[str, str]:
    """Figures of a page's cards by what they are called."""
    return {name: value for value, name in re.findall(r'<div class="card"><b>(.*?)</b><span>(.*?)</span>', page)}


def test_a_comparison_tells_predicted_figures_from_measured_ones() -> None:
    """A measured step half as long has twice the tokens a second and twice the MFU; its steps keep the trace's numbers."""
    found = predict({"model": "gpt2-124m", "batch": {"micro": 1}}, "dgx-h100")
    assert found.trace is not None and found.mfu is not None
    spans = [msgspec.structs.replace(s, start=s.start / 2, end=s.end / 2, wait=s.wait / 2, step=s.step + 6) for s in found.trace.spans]
    measured = msgspec.structs.replace(found.trace, spans=spans, origin="imported")
    times = {"imported": measured_times(measured)}
    imported = {"imported": align_by_class(found.trace, measured, times["imported"])}
    page = comparison_page("mine", found.to_dict(), [found.trace, measured], imported, times, [], Scene())
    cards = _cards(page)
    assert all(name.endswith((", predicted", ", imported", "against imported")) for name in cards)
    ours, theirs = cards["tokens / s / GPU, predicted"], cards["tokens / s / GPU, imported"]
    assert float(theirs.replace(",", "")) == pytest.approx(2 * float(ours.replace(",", "")), rel=0.01)
    assert (cards["MFU, predicted"], cards["MFU, imported"]) == (f"{found.mfu:.1%}", f"{2 * found.mfu:.1%}")
    assert page.index("Measured steps") < page.index("The prediction by itself") < page.index("Where the step goes")
    assert step_numbers(measured) == [number + 6 for number in step_numbers(found.trace)]
    figures = [json.loads(one) for one in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page)]
    (line,) = [one for figure in figures for one in figure["data"] if one.get("name") == "imported" and one["type"] == "scatter"]
    assert line["x"] == step_numbers(measured)[1:]


def test_rows_of_streams_are_in_natural_order() -> None:
    spans = [Span(0, f"stream {number}", f"k{number}", 0.0, 1.0, "compute", "gemm") for number in (10, 7, 33, 8)]
    rows = timeline([Trace(spans)]).layout.yaxis.categoryarray
    assert list(rows)[::-1] == [f"r0 stream {number}" for number in (7, 8, 10, 33)]


def test_long_steps_are_drawn_in_seconds() -> None:
    def drawn(step: float) -> tuple[str, float]:
        row = Row("a", "done", step_time=step, gpus=8, rate=1.0, detail=f'{{"breakdown": {{"compute_s": {step}}}}}')
        figure = breakdowns([row])
        return figure.layout.xaxis.title.text, figure.data[0].x[0]

    assert drawn(0.5) == ("ms per step", 500.0) and drawn(74.0) == ("s per step", 74.0)


def test_studies_of_long_steps_are_drawn_in_seconds_too() -> None:
    """Bars, the dashed line and what stands on hovering, all in the axis' unit."""

    def drawn(step: float) -> tuple[str, float, float]:
        rows = (Fault(fault="slow=r0:0.8", step_time_s=2 * step, slowdown=2.0),)
        figure = planning.faults(Faults(plan="a", topology="b", step_time_s=step, rows=rows))
        unit = figure.layout.xaxis.title.text
        assert figure.data[0].hovertemplate.endswith(f" {unit.partition(' ')[0]}<extra></extra>")
        return unit, figure.data[0].x[0], figure.layout.shapes[0].x0

    assert drawn(0.5) == ("ms per step", 1000.0, 500.0) and drawn(23.0) == ("s per step", 46.0, 23.0)
    found = Spread(p50=23.0, p95=24.0, p99=25.0, mean=23.0, without=22.0, jitter=Jitter(), seed=0, samples=(23.0, 24.0, 25.0))
    figure = planning.spread(found)
    assert figure.layout.xaxis.title.text == "s per step" and figure.data[0].x == (23.0, 24.0, 25.0)


def test_sizes_beyond_the_data_are_written_out() -> None:
    (gpus,) = outside(Plan(model="gpt2-124m", parallel=Parallel(dp_replicate=16384)), load_topology("2048x dgx-h100"), 10**8)
    assert gpus.startswith("16,384 GPUs: the data end at 10,") and "e+" not in gpus


def test_a_capacity_page_has_a_column_for_money_where_there_are_prices() -> None:
    plan = load_plan({"model": "gpt2-124m", "parallel": {"dp_replicate": 4}})
    free, paid = capacity(plan, "dgx-h100", 1e9), capacity(plan, "dgx-h100", 1e9, prices={"dgx-h100": 2.0})
    assert "<th>money</th>" in capacity_page("x", paid, unit="USD") and "<th>money</th>" not in capacity_page("x", free)


@pytest.mark.parametrize(("tokens", "unit"), [(1e6, "seconds"), (1e10, "hours"), (1e12, "days")])
def test_a_run_is_told_in_a_unit_of_its_length(tokens: float, unit: str) -> None:
    found = capacity(load_plan({"model": "gpt2-124m", "parallel": {"dp_replicate": 4}}), "dgx-h100", tokens)
    assert days(found).layout.xaxis.title.text == unit
    page = capacity_page("x", found)
    low, high = found.days_interval
    assert (
        f"80 % interval {seconds(86400 * low)} to {seconds(86400 * high)}" in page
        and "e-0" not in page[page.index("<main>") : page.index("Where")]
    )


def test_small_messages_have_their_own_unit() -> None:
    page = collective_page(collective_table("all_to_all", "8 B", load_topology("dgx-h100"), 2) | {"topology": "dgx-h100"})
    assert "0.0 GB/s" not in page and "MB/s" in page[page.index("<main>") : page.index("Bandwidth over size")]


def test_plans_that_differ_are_told_apart_however_long_their_words() -> None:
    def named(**words: object) -> Row:
        key = " ".join(f"{word}={value}" for word, value in words.items())
        return Row(f"{key} on=8x dgx-h100", "done", step_time=1.0, gpus=64, rate=1.0, detail='{"breakdown": {"compute_s": 1.0}}')

    rows = [named(tp=8, pp=2, recompute=how, zero=1, micro=1, schedule="interleaved", virtual_stages=4) for how in ("none", "full")]
    names = breakdowns([*rows, named(tp=4, pp=4, recompute="none", zero=0, micro=2, schedule="1f1b", virtual_stages=1)]).data[0].y
    assert [name.replace("<br>", " ").partition("recompute=")[2].partition(" ")[0] for name in names] == ["none", "full", "none"]
    assert max(len(line) for name in names for line in name.split("<br>")) <= 44
