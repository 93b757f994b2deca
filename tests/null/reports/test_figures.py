"""Figures hold the numbers they are given, with names as text."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.figures.collective import COLOURS, bandwidth
from reports.figures.coordinates import MOST, axes, bands, coordinates
from reports.figures.deviation import scatter, step_times, waterfall
from reports.figures.memory import clip, envelope, memory_line
from reports.figures.plans import breakdowns
from reports.figures.scaling import days, expense, legible, scaling
from reports.page import Page, no_narrower
from reports.words import count, gib, rate, safe, seconds, short, volume
from sim.align import ClassError, Comparison, Measured, Pair
from sim.cost.collective.nccl import ALGORITHMS
from sim.cost.collective.table import collective_table
from sim.planning.capacity.capacity import Capacity
from sim.planning.sweeps.space import settings_of
from sim.planning.sweeps.store import Row

HOSTILE = "<script>alert(1)</script>"
PAIR = Pair(HOSTILE, 0, "compute", HOSTILE, "compute", 1e-3, 2e-3)
FOUND = Comparison(0.1, Measured(0.12, 0.11, 0.13, 3), (ClassError("gemm", 0.05, 0.06, 4), ClassError(HOSTILE, 0.02, 0.01, 1)), (PAIR,))


@pytest.mark.parametrize(
    "split",
    [None, {"compute_s": 0.05, "bubble_s": 0.05}],
    ids=["classes of ops", "breakdown"],
)
def test_a_waterfall_ends_at_the_measured_step(split: dict[str, float] | None) -> None:
    other = {"compute_s": 0.07, "bubble_s": 0.045} if split else None
    (drawn,) = waterfall(FOUND, split, other).data
    assert sum(drawn.y[:-1]) == pytest.approx(120.0)
    assert drawn.measure[-1] == "total" and drawn.x[-2] == "rest"


def test_every_algorithm_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == {*ALGORITHMS, "direct"} - {"auto"} and len(set(COLOURS.values())) == len(COLOURS)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=5000))
def test_thinning_a_line_keeps_its_extremes(values: list[int]) -> None:
    line = [(float(i), v) for i, v in enumerate(values)]
    found = envelope(line, 100)
    assert len(found) <= 102
    assert {max(v for _, v in found), min(v for _, v in found)} == {max(values), min(values)}
    assert found == sorted(found, key=lambda point: point[0])


def test_a_clipped_line_begins_with_what_was_in_use() -> None:
    line = [(0.0, 5), (1.0, 7), (2.0, 3), (9.0, 1)]
    assert clip(line, 1.5, 3.0) == [(1.5, 7), (2.0, 3), (3.0, 3)]
    assert clip([], 0.0, 1.0) == []


def test_of_many_ranks_the_fullest_is_drawn_with_the_first_and_the_last() -> None:
    lines = {rank: [(0.0, 2**30 * (9 if rank == 700 else 1))] for rank in range(1000)}
    figure = memory_line(lines)
    names = [line.name for line in figure.data]
    assert len(names) == 8 and {"rank 0", "rank 700", "rank 999"} <= set(names)
    assert max(figure.data[names.index("rank 700")].y) == 9.0
    assert len(memory_line({rank: lines[rank] for rank in range(8)}).data) == 8


def test_memory_is_in_gib_with_the_devices_limit() -> None:
    figure = memory_line({0: [(0.0, 2**30), (0.5, 3 * 2**30)]}, {0: 4 * 2**30}, (0.0, 1.0))
    assert list(figure.data[0].y) == [1.0, 3.0, 3.0]
    assert list(figure.data[0].x) == [0.0, 500.0, 1000.0]
    assert [one.text for one in figure.layout.annotations] == ["device memory 4 GiB"]
    two = memory_line({0: [(0.0, 3 * 2**30)], 8: [(0.0, 2**30)]}, {0: 4 * 2**30, 8: 2 * 2**30}, (0.0, 1.0))
    assert [one.text for one in two.layout.annotations] == ["device memory 4 GiB, from rank 0 on", "device memory 2 GiB, from rank 8 on"]
    small = memory_line({0: [(0.0, 5 * 2**20)]}, {0: 2**40}, (0.0, 1.0))
    assert small.layout.yaxis.title.text == "MiB" and list(small.data[0].y) == [5.0, 5.0]
    assert not small.layout.annotations, "a limit far above would flatten the line"


@pytest.mark.parametrize(
    "figure", [scatter(FOUND), waterfall(FOUND), step_times({HOSTILE: [0.1, 0.2]}, 0.1)], ids=["scatter", "waterfall", "steps"]
)
def test_names_in_figures_are_escaped(figure: object) -> None:
    text = figure.to_json()  # type: ignore[attr-defined]
    assert "<script>" not in text and "\\u003cscript" not in text
    assert "&lt;script&gt;" in text or "\\u0026lt;script" in text


def test_a_page_escapes_and_needs_no_network() -> None:
    page = Page(HOSTILE, HOSTILE)
    page.cards([(HOSTILE, HOSTILE, HOSTILE)])
    page.section(HOSTILE, HOSTILE)
    page.warnings([HOSTILE])
    page.link(HOSTILE, '"><script>alert(1)</script>')
    page.table((HOSTILE,), [(HOSTILE,)])
    page.figure(scatter(FOUND))
    text = page.text(HOSTILE)
    assert "<script>alert" not in text
    assert 'src="http' not in text and "@import" not in text
    assert len(text) < 6_000_000


def test_collectives_are_coloured_by_algorithm() -> None:
    rows = collective_table("all_reduce", "64 MiB", "dgx-h100")["rows"]
    figure = bandwidth(rows)
    points = {trace.name: trace for trace in figure.data if trace.mode == "markers"}
    assert set(points) == {row["algorithm"] for row in rows}
    assert sum(len(trace.x) for trace in points.values()) == len(rows)
    assert figure.layout.xaxis.type == "log"


def _run(gpus: int, seconds: float, fits: bool = True) -> Capacity:
    return Capacity(gpus=gpus, topology="t", steps=10, step_time_s=seconds / 10, interval=(seconds / 11, seconds / 9),
                    productive_s=seconds, elapsed_s=1.25 * seconds, goodput=0.8, failures=1, checkpoint_interval_s=60.0, checkpoint_s=1.0, lost_s={"restarts": 0.25 * seconds}, gpu_hours=gpus * seconds / 3600, paid_gpu_hours=gpus * seconds / 3600, energy_j=None, money=None, fits=fits)  # fmt: skip


def test_scaling_is_against_the_smallest() -> None:
    figure = scaling([_run(8, 800.0), _run(16, 500.0, fits=False)], [])
    assert list(figure.data[0].y) == [1.0, 1.6]
    assert figure.data[0].text[1] == "80.0% of perfect"
    assert list(figure.data[0].marker.symbol) == ["circle", "circle-open"]
    assert list(figure.data[1].y) == [1.0, 2.0]


def test_labels_of_the_two_curves_lie_apart() -> None:
    """The smallest cluster is on both: it is labelled once; strong scaling, which takes more GPU-hours, has its labels above."""
    runs = [_run(8, 800.0), _run(16, 500.0)]
    strong, weak = expense(runs, [runs[0], _run(16, 410.0)], "").data
    assert (strong.text, strong.textposition) == (("8", "16"), "top center")
    assert (weak.text, weak.textposition) == (("", "16"), "bottom center")
    assert strong.customdata == weak.customdata == (8, 16)


@pytest.mark.parametrize(("least", "most"), [(0.103, 0.26), (0.205, 0.39), (1.61, 1.9), (0.16, 0.17), (1.0, 90.0)])
def test_days_of_less_than_a_decade_have_marks(least: float, most: float) -> None:
    runs = [_run(8, most * 86400 / 1.25), _run(16, least * 86400 / 1.25)]
    marks = expense(runs, [], "").layout.xaxis.tickvals
    assert 3 <= sum(least <= mark <= most for mark in marks) <= 8


@pytest.mark.parametrize("money", [None, 0.0])
def test_expense_needs_neither_sizes_nor_prices(money: float | None) -> None:
    """No size over which the plan divides; GPUs that cost nothing, whose zeros no logarithmic axis shows."""
    assert expense([], [], "").data == ()
    figure = expense([msgspec.structs.replace(_run(8 * 16**n, 800.0), money=money) for n in (0, 1)], [], "")
    assert (figure.layout.yaxis.type == "log") is (money is None)
    assert figure.data[0].y == ((8 * 800 / 3600, 128 * 800 / 3600) if money is None else (0.0, 0.0))


def test_labels_that_would_lie_on_each_other_are_left_out() -> None:
    assert legible([(0.0, 0.0, "131,072"), (0.05, 0.0, "65,536"), (0.05, 0.5, "32,768"), (1.0, 0.0, "8")]) == ["131,072", "", "32,768", "8"]
    assert legible([(at / 4, 0.0, f"{2**at}") for at in range(5)]) == ["1", "2", "4", "8", "16"]
    assert legible([]) == [] and legible([(0.0, 0.0, "")]) == [""]


def test_a_figure_that_cannot_be_narrow_keeps_its_width() -> None:
    page = Page("t", "")
    page.figure(no_narrower(days(_run(8, 86400.0)), 640))
    page.figure(days(_run(8, 86400.0)))
    text = page.text("")
    assert text.count("min-width:640px") == 1 and text.count("min-width:0px") == 1


def test_days_sum_to_the_elapsed_time() -> None:
    for progress, elapsed in ((864000.0, 12.5), (86400.0, 30.0)):  # days, hours
        assert sum(trace.x[0] for trace in days(_run(8, progress)).data) == pytest.approx(elapsed)


ROWS = [
    Row("parallel.tp=1 batch.micro=2 on=2x dgx-h100", "done", "", 1.0, 2**30, 0.4, 8.0, 8, None),
    Row("parallel.tp=10 batch.micro=2 on=2x dgx-h100", "done", "", 2.0, 2**31, 0.3, 4.0, 8, None),
    Row("parallel.tp=2 batch.micro=2 on=2x dgx-h100", "done", "", 3.0, 2**31, 0.2, 2.0, 8, None),
]


def test_settings_of_a_row() -> None:
    assert settings_of(ROWS[0].key) == {"parallel.tp": "1", "batch.micro": "2", "on": "2x dgx-h100"}
    assert settings_of(" on=dgx-h100") == {"on": "dgx-h100"}


def test_two_rates_of_a_machine_are_told_apart() -> None:
    """Both axes were called "rate"."""
    keys = (
        "link.net.rate=50 GB/s link.nvlink.rate=450 GB/s batch.micro=1 on=x",
        "link.net.rate=25 GB/s link.nvlink.rate=100 GB/s batch.micro=2 on=x",
    )
    rows = [Row(key, "done", step_time=1.0, rate=1.0, memory=1, gpus=1) for key in keys]
    assert [axis.label for axis in axes(rows)][:3] == ["net.rate", "nvlink.rate", "micro"]
    (first, _) = breakdowns([Row(row.key, "done", step_time=1.0, detail='{"breakdown": {"compute_s": 1.0}}') for row in rows]).data[0].y
    assert first.replace("<br>", " ") == "1. net.rate=50 GB/s nvlink.rate=450 GB/s micro=1"


def test_coordinates_show_only_what_differs_in_the_order_of_numbers() -> None:
    found = axes(ROWS)
    assert [axis.label for axis in found] == ["tp", "step", "memory", "samples<br>/s/GPU"]
    assert found[0].marks == [(0.0, "1"), (0.5, "2"), (1.0, "10")]
    assert found[0].places == [0.0, 1.0, 0.5]
    assert all(0 <= place <= 1 for axis in found for place in axis.places)


def test_coordinates_draw_each_plan_once_in_the_band_of_its_place() -> None:
    rows = [Row(f"tp={n} on=dgx-h100", "done", step_time=1.0 + n, memory=2**30, rate=8 / (1 + n), gpus=8) for n in range(MOST + 500)]
    parts = bands(MOST)
    assert [plan for _, plans, _ in parts for plan in plans] == list(range(MOST))
    lines = [trace for trace in coordinates(rows).data if trace.mode == "lines" and trace.opacity is not None]
    names = {name: len(plans) for name, plans, _ in parts} | {"best": 1}
    assert {line.legendgroup: line.y.count(None) for line in lines} == names, "a gap ends each plan's line"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 ms"),
        (5e-6, "5.00 us"),
        (1.026e-4, "102.60 us"),
        (-3.983e-4, "-398.30 us"),
        (1.04e-3, "1.04 ms"),
        (0.0123, "12.30 ms"),
        (1.5, "1.500 s"),
        (150.0, "150.0 s"),
        (2700.0, "45.0 min"),
        (9000.0, "2.5 h"),
        (432000.0, "5.0 days"),
    ],
)
def test_seconds_in_words(value: float, text: str) -> None:
    assert seconds(value) == text


def test_other_words() -> None:
    assert (count(12.3e6), count(950.0), count(0.123)) == ("12.3 M", "950", "0.123")
    assert (rate(123_456.7), rate(99.94), rate(1.5), rate(0.0)) == ("123,457", "99.9", "1.5", "0")
    assert (gib(32 * 2**30), gib(5 * 2**20)) == ("32.00 GiB", "5 MiB")
    assert (volume(54.37e9), volume(999.0)) == ("54.4 GB", "999 B")
    assert (count(999.4e6), count(999.6e6), count(2e15), count(-999.6e6)) == ("999 M", "1 G", "2,000 T", "-1 G")
    assert (volume(999.4e3), volume(999.6e6), volume(3.2e15)) == ("999 kB", "1 GB", "3,200 TB")
    assert safe("<b>&") == "&lt;b&gt;&amp;"
    assert short("abcdefghij", 6) == "ab…hij" and short("abc", 6) == "abc"
