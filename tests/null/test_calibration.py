"""The calibration file: written and read back whole, bad ones refused; curves and grids between its points."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.between import Curve, Grid
from sim.cost.calibration import SHAPES, VERSION, Calibration, Sample, load_calibration, save_calibration, show_calibration
from sim.cost.cpu_pricer import cpu_cost
from sim.cost.timed import prices
from sim.cost.variant import variant
from sim.work import Attention, Conv, Gemm, GroupedGemm, HostWork, MemoryBound, Work
from topologies.errors import BadInput

POSITIVE = st.floats(1e-9, 10.0)


def _sample(name: str, shape: tuple[int, ...], seconds: float, dtype: str = "fp32") -> Sample:
    return Sample(name, dtype, shape, seconds, seconds, seconds, 5)


def _calibration(**tables: tuple[Sample, ...]) -> Calibration:
    empty = load_calibration(None)
    return msgspec.structs.replace(empty, date="2026-01-01T00:00:00+00:00", tables=tables)


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    tables = {}
    for kind in draw(st.sets(st.sampled_from(sorted(SHAPES)))):
        shape = st.tuples(*[st.integers(1, 10**9)] * len(SHAPES[kind]))
        row = st.builds(
            Sample,
            st.sampled_from(["fwd", "add"]),
            st.sampled_from(["fp32", ""]),
            shape,
            POSITIVE,
            POSITIVE,
            POSITIVE,
            st.integers(1, 99),
            POSITIVE,
        )
        tables[kind] = tuple(draw(st.lists(row, min_size=1, max_size=3)))
    return _calibration(**tables)


@pytest.mark.no_cover
@given(calibrations())
def test_written_and_read_back(tmp_path_factory: pytest.TempPathFactory, calibration: Calibration) -> None:
    path = tmp_path_factory.mktemp("c") / "calibration.toml"
    save_calibration(calibration, path)
    found = load_calibration(path)
    assert list(path.parent.iterdir()) == [path]
    assert show_calibration(found) == show_calibration(calibration)
    for kind, rows in calibration.tables.items():
        for mine, theirs in zip(rows, found.tables[kind], strict=True):
            assert (mine.name, mine.dtype, mine.shape, mine.n) == (theirs.name, theirs.dtype, theirs.shape, theirs.n)
            assert theirs.median == pytest.approx(mine.median, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: "", "version"),
        (lambda text: text.replace(f"version = {VERSION}", "version = 99"), "version"),
        (lambda text: text[:-40], "not valid TOML"),
        (lambda text: text.replace("cores = ", "kores = "), "kores"),
        (lambda text: text.replace("1.000e-03", "-1.0"), "has an impossible row .*probe. again"),
        (lambda text: text.replace("1.000e-03", "nan"), "has an impossible row .*probe. again"),
        (lambda text: text.replace("[8, 8, 8]", "[8, 8]"), "has an impossible row .*probe. again"),
        (lambda text: text.replace("[8, 8, 8]", '"8"'), "Expected"),
    ],
)
def test_damaged_files_are_refused(change: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    assert callable(change)
    path.write_text(change(show_calibration(_calibration(gemm=(_sample("fwd", (8, 8, 8), 1e-3),)))))
    with pytest.raises(BadInput, match=words):
        load_calibration(path)


def test_a_probe_beside_other_work_says_so(tmp_path: Path) -> None:
    path = tmp_path / "calibration.toml"
    save_calibration(msgspec.structs.replace(_calibration(), others=0.482), path)
    assert "other programs took 48% of the cores" in load_calibration(path).crowded
    assert not msgspec.structs.replace(_calibration(), others=0.03).crowded


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="steptwin probe"):
        load_calibration(tmp_path / "none.toml")


@given(st.dictionaries(st.integers(1, 10**9), POSITIVE, min_size=2, max_size=8), st.floats(0, 1))
def test_curve_meets_its_points_and_stays_between_them(points: dict[int, float], part: float) -> None:
    curve = Curve((float(size), seconds) for size, seconds in points.items())
    for size, seconds in points.items():
        assert curve.at(size)[0] == pytest.approx(seconds)
    sizes = sorted(points)
    between = sizes[0] + part * (sizes[1] - sizes[0])
    low, high = sorted((points[sizes[0]], points[sizes[1]]))
    assert low * (1 - 1e-9) <= curve.at(between)[0] <= high * (1 + 1e-9)


def test_curve_beyond_its_points() -> None:
    curve = Curve([(10.0, 1.0), (100.0, 2.0)])
    assert curve.at(1.0) == (1.0, True)  # a call's fixed cost
    assert curve.at(200.0) == (4.0, False)  # in proportion to the bytes


def area(shape: tuple[int, ...]) -> tuple[float, float]:
    """A grid's terms: how large, and that it is one."""
    return float(math.prod(shape)), 1.0


def test_grid_is_exact_at_points_and_keeps_the_edge_beyond() -> None:
    grid = Grid([((8, 8), 64.0), ((8, 64), 1024.0), ((64, 8), 2048.0)], area)
    assert grid.at((8, 64)) == (pytest.approx(1024.0), True)
    assert grid.at((8, 4096)) == (pytest.approx(64 * 1024.0), False)
    between, inside = grid.at((8, 23))
    assert 64.0 < between < 1024.0 and inside
    assert not grid.at((64, 64))[1]  # a corner that nobody measured


@given(st.floats(0.0, 1.0), st.floats(0.0, 100.0), st.integers(2, 500), st.integers(2, 500))
def test_grid_knows_what_is_a_sum_of_its_terms(each: float, call: float, height: int, width: int) -> None:
    """Anywhere, also beyond the points."""
    grid = Grid((((m, n), each * m * n + call + 1e-3) for m in (2, 64, 128) for n in (2, 128)), area)
    assert grid.at((height, width))[0] == pytest.approx(each * height * width + call + 1e-3, rel=1e-3)


WORKS: tuple[Work, ...] = (
    Gemm(64, 64, 64, "fp32"),
    Gemm(64, 64, 64, "bf16", 4, "wgrad", True),
    GroupedGemm(4, 64, 64, 64, "fp32"),
    Attention(1, 4, 4, 64, 64, 32, dtype="fp32"),
    Conv(1, 3, 8, 8, 4, 3, 3, dtype="fp32"),
    MemoryBound("add", 8192, 4096, "fp32"),
    MemoryBound("adamw", 16384, 12288, "fp32"),
    HostWork("module", 3.0),
)


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_without_calibration_every_cost_is_assumed(work: Work) -> None:
    cost = cpu_cost(work, load_calibration(None))
    assert cost.source == "assumed" and cost.seconds > 0


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_repetitions_add_up(work: Work) -> None:
    calibration = load_calibration(None)
    assert cpu_cost(msgspec.structs.replace(work, repeat=7), calibration).seconds == pytest.approx(7 * cpu_cost(work, calibration).seconds)


def test_measured_points_are_what_they_are() -> None:
    calibration = _calibration(
        gemm=(_sample("fwd", (64, 64, 64), 1e-5), _sample("fwd", (128, 64, 64), 2e-5)),
        memory=(_sample("add", (12288,), 3e-6), _sample("add", (122880,), 3e-5)),
        attention=(_sample("fwd", (1, 4, 64, 32), 1e-4),),
        conv=(_sample("fwd", (1, 3, 8, 8, 4, 3, 3, 1, 1), 1e-4),),
        host=(_sample("module", (), 2e-6, ""),),
    )
    for work, seconds in ((WORKS[0], 1e-5), (WORKS[3], 1e-4), (WORKS[4], 1e-4), (WORKS[5], 3e-6)):
        cost = cpu_cost(work, calibration)
        assert cost.seconds == pytest.approx(seconds) and cost.source == "measured"
    assert cpu_cost(Gemm(64, 64, 64, "fp32", role="dgrad"), calibration).source == "fitted"
    assert cpu_cost(Gemm(4096, 64, 64, "fp32"), calibration).source == "fitted"
    assert cpu_cost(HostWork("module", 3.0), calibration).seconds == pytest.approx(6e-6)
    assert prices(calibration).host("module") == (2e-6, "measured")
    assert cpu_cost(HostWork("preprocess", 2.0, 1e-3), calibration).seconds == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("what", "read", "written", "per_element", "expected"),
    [
        ("add", 2, 1, 1, "add"),
        ("layernorm", 1, 1, 8, "layernorm"),
        ("layernorm", 2, 1, 16, "layernorm_backward"),
        ("activation", 1, 1, 8, "gelu"),
        ("activation", 2, 1, 12, "gelu_backward"),
        ("activation", 1, 1, 5, "silu"),
        ("activation", 2, 1, 10, "silu_backward"),
        ("activation", 1, 1, 1, "relu"),
        ("glu", 2, 1, 6, "glu"),
        ("glu", 3, 2, 12, "glu_backward"),
        ("softmax", 2, 1, 2, "softmax_backward"),
        ("dropout", 4, 5, 1, "dropout"),
        ("dropout", 5, 4, 1, "dropout_backward"),
        ("batchnorm", 2, 1, 8, "batchnorm"),
        ("batchnorm", 4, 1, 16, "batchnorm_backward"),
        ("groupnorm", 2, 1, 8, "batchnorm"),
        ("groupnorm", 4, 1, 16, "batchnorm_backward"),
        ("cross_entropy", 1, 1, 5, "cross_entropy"),
        ("cast", 4, 2, 1, "cast"),
        ("cast", 2, 4, 1, "widen"),
    ],
)
def test_variants(what: str, read: int, written: int, per_element: float, expected: str) -> None:
    assert variant(MemoryBound(what, read * 400, written * 400, "fp32", per_element * 100 * written)) == expected


@pytest.mark.parametrize(("width", "expected"), [(1024, "softmax"), (1025, "softmax_wide")])
def test_a_losss_rows_are_a_kernel_of_their_own(width: int, expected: str) -> None:
    """As torch has it: up to 1,024 numbers of a row stay in a warp's registers, longer rows are read again for their largest and their sum."""
    forward, backward = (MemoryBound("softmax", reads * 32 * width, 32 * width, "fp32", 1.0, 1, 8) for reads in (1, 2))
    assert (variant(forward), variant(backward)) == (expected, f"{expected}_backward")
    assert variant(MemoryBound("softmax", 32 * width, 32 * width, "fp32")) == "softmax", "nobody says how long its rows are"
