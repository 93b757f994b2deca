"""The timeline: thin enough to open, true enough to read."""

import re
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.figures.bars import level, merge, parts
from reports.figures.shares import breakdown_bar
from reports.figures.timeline import WAITS, pieces, representative, timeline, told
from sim.predict import predict
from sim.timeline.asynchrony import step_shown
from sim.timeline.metrics import window
from sim.trace import Span, Trace

CLASSES = st.sampled_from(["gemm", "norm", "comm.dp"])


@st.composite
def lanes(draw: st.DrawFn) -> list[Span]:
    at, spans = 0.0, []
    for number in range(draw(st.integers(0, 120))):
        at += draw(st.floats(0, 1e-3))
        length = draw(st.floats(1e-9, 1e-3))
        spans.append(Span(0, "compute", f"r0/s0/op{number}", at, at + length, cls=draw(CLASSES), bytes=number, flops=1.0))
        at += length
    return spans


@pytest.mark.no_cover
@given(lanes(), st.integers(1, 40), st.floats(0, 1e-4))
def test_merging_ends_keeps_the_ends_and_loses_no_second(spans: list[Span], most: int, pixel: float) -> None:
    found = merge(spans, pixel or 1e-9, most)
    assert parts(found) <= most or len(found) <= 1
    if spans:
        assert (found[0].start, max(bar.end for bar in found)) == (spans[0].start, max(s.end for s in spans))
    assert sum(bar.ops for bar in found) == len(spans)
    for cls in ("gemm", "norm", "comm.dp"):
        assert sum(bar.parts.get(cls, 0.0) for bar in found) == pytest.approx(sum(s.seconds for s in spans if s.cls == cls))
    assert all(a.end <= b.start for a, b in pairwise(found))


@pytest.mark.timeout(60)
def test_a_pixel_that_is_nearly_nothing_grows_all_the_same() -> None:
    spans = [Span(0, "compute", f"r0/s0/op{n}", n * 1e-3, n * 1e-3 + 5e-4, cls=("gemm", "norm")[n % 2]) for n in range(20)]
    assert parts(merge(spans, 5e-324, 4)) <= 4


@pytest.mark.no_cover
@given(lanes(), st.integers(1, 40))
def test_a_bar_is_stacked_of_the_classes_in_it(spans: list[Span], most: int) -> None:
    """No class is drawn where none of its ops is, and none of a fiftieth of a bar or more is left out."""
    for bar in merge(spans, 1e-9, most):
        assert 0 < sum(bar.shares().values()) <= 1 + 1e-9
        inside = {s.cls for s in spans if bar.start <= s.start < bar.end}
        assert {cls for cls in inside if bar.parts[cls] >= 0.0201 * bar.seconds} <= set(bar.shares()) <= inside
    drawn = pieces(merge(spans, 1e-9, most), 0.0)
    assert all(one.below + one.height <= 1 + 1e-9 for row in drawn.values() for one in row)


def test_communication_between_kernels_keeps_its_colour() -> None:
    """Experts' exchanges in the compute lane, too many to be drawn one by one: a row shows its classes by their time, and the rest as idle."""
    spans = []
    for at in range(2000):
        spans.append(Span(0, "compute", f"moe{at}", at, at + 0.5, cls="moe"))
        spans.append(Span(0, "compute", f"exchange{at}", at + 0.5, at + 0.75, "collective", cls="comm.ep"))
    found = timeline([Trace(spans)], limit=100)
    heights = {bar.name: bar.width for bar in found.data}
    assert set(heights) == {"moe", "comm.ep"} and sum(len(width) for width in heights.values()) <= 100
    assert heights["moe"][3] == pytest.approx(0.75 * 0.5, rel=0.05) and heights["comm.ep"][3] == pytest.approx(0.75 * 0.25, rel=0.05)
    under, over = found.data[0], found.data[1]
    assert under.offset[3] + under.width[3] == pytest.approx(over.offset[3], abs=2e-3)
    assert "of" in over.text[3] and "ops" in over.text[3]


def test_what_is_hardly_busy_is_still_seen() -> None:
    spans = [Span(0, "copy.d2h", f"read{at}", at, at + 1e-6, "copy", cls="optimizer") for at in range(1000)]
    (row,) = pieces(merge(spans, 1e-3, 10), 0.0).values()
    assert {round(one.height, 6) for one in row} == {0.1}


def test_rows_that_want_little_leave_the_rest_to_others() -> None:
    assert level([10, 20, 3000, 4000], 1030) == 500
    assert level([10, 20], 1000) == 20 and level([], 1000) == 0
    assert level([4000] * 4, 1000) == 250


def test_what_is_wide_enough_stays_alone() -> None:
    spans = [Span(0, "compute", f"op{i}", float(i), i + 0.9, cls="gemm") for i in range(10)]
    assert [bar.first for bar in merge(spans, 0.01, 100)] == spans


def test_a_long_wait_is_not_merged_away() -> None:
    """Norms over three groups one after the other; the last waits for another stage."""
    spans = [Span(0, "compute", f"norm.{i}", i * 1e-5, (i + 1) * 1e-5, cls="comm.norm") for i in range(2)]
    spans.append(Span(0, "compute", "norm.pp", 2e-5, 0.3, cls="comm.norm", wait=0.2999))
    found = merge(spans, 1e-3, 100)
    assert [bar.parts.get(WAITS, 0.0) for bar in found] == [0.0, 0.2999]


def test_messages_that_mostly_wait_are_drawn_as_waiting() -> None:
    """A pipeline's receives over a long step: each waits less than a pixel, all of them nearly always."""
    spans = [Span(0, "comm.pp.prev", f"recv{i}", i * 1e-2, (i + 1) * 1e-2, "recv", "comm.pp", wait=0.99e-2) for i in range(1000)]
    assert {cls for bar in merge(spans, 6e-2, 100) for cls in bar.shares()} == {WAITS}
    busy = [Span(0, "comm.pp.prev", f"recv{i}", i * 1e-2, (i + 1) * 1e-2, "recv", "comm.pp", wait=0.4e-2) for i in range(1000)]
    (shares,) = {tuple(round(share, 6) for _, share in sorted(bar.shares().items())) for bar in merge(busy, 6e-2, 100)}
    assert shares == (0.6, 0.4), "comm.pp, then waiting"


def test_long_steps_have_an_axis_in_seconds() -> None:
    trace = Trace([Span(0, "compute", "r0/s0/a", 0.0, 97.0, cls="gemm")])
    figure = timeline([trace])
    assert figure.layout.xaxis.title.text == "s into the step"
    assert [round(x, 6) for bar in figure.data for x in bar.x] == [97.0]
    assert breakdown_bar({"compute_s": 97.0}).layout.xaxis.title.text == "seconds of the step"


def ranks(number: int) -> Trace:
    """Rank 3 computes longest, rank 5 waits longest."""
    spans = []
    for rank in range(number):
        spans.append(Span(rank, "compute", f"r{rank}/s0/a", 0.0, 2.0 if rank == 3 else 1.0, cls="gemm"))
        late = 0.9 if rank == 5 else 0.1
        spans.append(Span(rank, "comm.dp", f"r{rank}/s0/b", 2.0, 3.0, "collective", "comm.dp", wait=late))
    return Trace(spans, world=number)


def test_few_ranks_are_all_drawn() -> None:
    assert representative(ranks(4)) == [(0, ""), (1, ""), (2, ""), (3, "")]


def test_of_many_ranks_first_last_slowest_and_worst() -> None:
    assert [rank for rank, _ in representative(ranks(64))] == [0, 3, 5, 63]
    assert dict(representative(ranks(64), worst=9))[9] == "worst: furthest from the measurement"
    assert "4 of 64 simulated ranks" in told(representative(ranks(64)), ranks(64))


def test_waiting_is_drawn_apart_from_moving() -> None:
    figure = timeline([ranks(2)])
    waits = [trace for trace in figure.data if trace.name == WAITS]
    moves = [trace for trace in figure.data if trace.name == "comm.dp"]
    assert [round(x, 6) for trace in waits for x in trace.x] == [100.0, 100.0]
    assert [round(x, 6) for trace in moves for x in trace.x] == [900.0, 900.0]
    assert all(trace.base[0] == 2100.0 for trace in moves)


def test_a_trace_over_the_other_lane_by_lane() -> None:
    ours, theirs = ranks(1), ranks(1)
    theirs.origin = "played"
    rows = list(timeline([ours, theirs]).layout.yaxis.categoryarray)[::-1]
    assert rows == ["r0 compute · predicted", "r0 compute · played", "r0 comm.dp · predicted", "r0 comm.dp · played"]


def test_a_host_that_has_run_ahead_has_no_lane_and_the_page_says_why() -> None:
    """Its launches of the step drawn lie before that begins."""
    ahead = predict({"model": "gpt2-124m", "batch": {"global": 32, "micro": 32}}, "dgx-h100").trace
    behind = predict({"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 1}}, "dgx-h100").trace
    assert ahead is not None and behind is not None
    lanes = {row.y[0] for row in timeline([ahead]).data}
    assert "r0 compute" in lanes and "r0 host" not in lanes
    assert re.search(r"The host has no lane: all of this step was launched at least [\d.]+ ms before", told(representative(ahead), ahead))
    assert "r0 host" in {row.y[0] for row in timeline([behind]).data} and "no lane" not in told(representative(behind), behind)


def test_of_ranks_that_wait_for_nobody_a_step_is_shown_in_which_all_of_them_work() -> None:
    """Rank 0 beside its server makes three steps of 1 s while rank 1 makes one and a half of 2 s: by rank 1's third it has stopped long since."""
    spans = [Span(rank, "compute", f"r{rank}/s{step}/op", 1.0 + lasts * step, 1.0 + lasts * (step + 1), step=step, cls="gemm")
             for rank, lasts in ((0, 1.0), (1, 2.0)) for step in range(3)]  # fmt: skip
    waited = Trace(spans, steps=3)
    assert step_shown(waited) == window(waited) == (5.0, 7.0)
    server = Span(0, "server.1", "r0/s0/server/update", 1.0, 1.5, thread="server.1", cls="optimizer")
    assert step_shown(Trace([*spans, server], steps=3)) == (0.0, 3.0)
    quick = [msgspec.structs.replace(span, start=span.start / 2, end=span.end / 2) if span.rank == 1 else span for span in spans]
    assert step_shown(Trace([*quick, server], steps=3)) == (2.0, 3.0)
