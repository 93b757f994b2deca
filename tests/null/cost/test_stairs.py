"""Between measured points the model's stairs stand, at them what was measured."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.cost.calibration import Calibration, Sample
from sim.cost.kernel import kernel_cost
from sim.cost.stairs import stairs_of
from sim.cost.timed import Prices
from sim.work import Attention, Gemm, MemoryBound, Work
from topologies.devices import gpu

H200 = gpu("h200-sxm")
SIZES = (512, 1024, 2048, 4096, 8192)
SLOWER = 1.1
"""What each point takes longer than the model says."""


def _seconds(work: Work) -> float:
    return kernel_cost(work, H200, "cudnn", False).seconds


def _row(name: str, work: Work, dtype: str, shape: tuple[int, ...]) -> Sample:
    seconds = SLOWER * _seconds(work)
    return Sample(name, dtype, shape, seconds, seconds, seconds, 9)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    gemms = tuple(_row("fwd", Gemm(m, n, k), "bf16", (m, n, k)) for m in SIZES for n in SIZES for k in SIZES)
    attention = tuple(
        _row("fwd", Attention(8192 // seq, 16, 16, seq, seq, d, causal=True), "bf16", (8192 // seq, 16, seq, d))
        for seq in SIZES
        for d in (64, 128)
    )
    return Calibration(
        device="cuda", date="2026", machine="test", cores=8, ranks=1, threads=1, tables={"gemm": gemms, "attention": attention}
    )


@pytest.mark.parametrize("work", [
    Gemm(2048, 1600, 6400), Gemm(2048, 1600, 1600), Gemm(6304, 768, 768), Gemm(2304, 2112, 1024), Attention(2, 25, 25, 1024, 1024, 64, causal=True),
    Attention(4, 12, 12, 1024, 1024, 64, causal=True), Gemm(2048, 1024, 4096), Attention(4, 16, 16, 2048, 2048, 128, causal=True),
])  # fmt: skip
def test_what_is_as_the_model_says_at_all_points_is_so_between_them(calibration: Calibration, work: Work) -> None:
    priced = Prices(calibration).price(work)[0] * stairs_of(calibration, H200, "cudnn").factor(work)
    assert priced == pytest.approx(SLOWER * _seconds(work), rel=1e-6)


def test_a_line_between_points_misses_the_tiles(calibration: Calibration) -> None:
    """50 heads of 8 blocks of queries are three waves and a bit; 128 heads of so many, of which the points are, fill theirs."""
    attention = Attention(2, 25, 25, 1024, 1024, 64, causal=True)
    assert abs(stairs_of(calibration, H200, "cudnn").factor(attention) - 1.0) > 0.02


def test_other_works_and_exact_fp32_are_as_the_table_reads_them(calibration: Calibration) -> None:
    stairs = stairs_of(calibration, H200, "cudnn")
    assert stairs is stairs_of(calibration, H200, "cudnn") and stairs is not stairs_of(calibration, replace(H200), "cudnn")
    assert stairs.factor(MemoryBound("add", 1 << 20, 1 << 19)) == stairs.factor(Gemm(2048, 1600, 6400, "fp32")) == 1.0
