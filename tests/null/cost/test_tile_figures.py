"""One tile size worked out by hand: waves, rounds of the k loop, splits, and what stays in L2."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sim.cost.tiles import COPIES, GemmFit, _dram_seconds, _hot_seconds, _splits, _tiled, gemm_seconds
from topologies.devices import gpu as find_gpu

GPU = replace(find_gpu("h100-sxm"), sms=100, bandwidth=1e12, l2=50_000_000, clock=1e9)
FIT = GemmFit(
    arch="sm90", floor=1e-6, peak=1.0, fill=0.0, step=0.0, l2=1e12, dram=1.0, hot=4.0, cache=1.0, droop=0.0, round=1.0, reduce=3e-6
)  # fmt: skip
RATE = 1e12
"""FLOP/s of one SM."""
TILE = 2.0 * 128 * 128 * 64 / RATE
"""Seconds of one step of 64 elements of k on a 128 x 128 tile."""


def tiled(
    m: int, n: int, k: int, split: int = 1, fit: GemmFit = FIT, tile: tuple[int, int] = (128, 128), batch: int = 1, dram: float = 0.0
) -> float:
    return _tiled(m, n, k, *tile, split, GPU, fit, RATE, 2.0, batch, dram)


def test_one_wave_takes_one_tile() -> None:
    assert tiled(128, 128, 64) == pytest.approx(TILE)
    assert tiled(1280, 1280, 64) == pytest.approx(TILE), "100 blocks on 100 SMs"
    assert tiled(1281, 1280, 64) == pytest.approx(2 * TILE), "a row more makes eleven rows of tiles: a second wave"
    assert tiled(128, 128, 64, batch=101) == pytest.approx(2 * TILE)


def test_a_persistent_kernel_pays_the_share_of_its_last_wave() -> None:
    assert tiled(1281, 1280, 64, fit=replace(FIT, round=0.0)) == pytest.approx(1.1 * TILE)
    assert tiled(128, 128, 64, fit=replace(FIT, round=0.0)) == pytest.approx(TILE), "a wave takes its whole time however empty"
    assert tiled(1281, 1280, 64, fit=replace(FIT, round=0.5)) == pytest.approx(1.55 * TILE)


def test_the_k_loop_has_whole_steps() -> None:
    assert tiled(128, 128, 65) == pytest.approx(2 * TILE)
    assert tiled(128, 128, 640) == pytest.approx(10 * TILE)


def test_each_step_of_the_loop_has_a_latency_and_each_wave_a_fill() -> None:
    slow = replace(FIT, step=1e-5, fill=7e-5)
    assert tiled(128, 128, 128, fit=slow) == pytest.approx(2e-5 + 7e-5)
    assert tiled(1281, 1280, 128, fit=slow) == pytest.approx(2 * (2e-5 + 7e-5))


def test_small_tiles_share_an_sm() -> None:
    small = 2.0 * 64 * 64 * 64 / RATE
    assert tiled(64 * 10, 64 * 40, 64, tile=(64, 64)) == pytest.approx(4 * small), "400 blocks: four on each SM, one wave"
    assert tiled(64, 64, 64, tile=(64, 64)) == pytest.approx(small)


def test_operands_come_from_l2_at_its_rate() -> None:
    fed = replace(FIT, l2=1e-3)  # bytes in one clock of 1 ns: 1 MB/s
    assert tiled(128, 128, 64, fit=fed) == pytest.approx((128 + 128) * 64 * 2.0 / 1e6, rel=1e-6)


def test_dram_and_compute_combine_by_the_outer_exponent() -> None:
    assert tiled(128, 128, 64, fit=replace(FIT, outer=1.0), dram=5e-6) == pytest.approx(TILE + 5e-6)
    assert tiled(128, 128, 64, fit=replace(FIT, outer=2.0), dram=TILE) == pytest.approx(TILE * 2**0.5)


def test_a_split_shortens_the_loop_and_pays_for_the_sum() -> None:
    whole, half = tiled(128, 128, 1024), tiled(128, 128, 1024, split=2)
    assert half == pytest.approx(whole / 2 + 3e-6 + 8.0 * 2 * 128 * 128 / (4.0 * 1e12))


def splits(m: int, n: int, k: int, sms: int = 100, most: int = 16, batch: int = 1) -> list[int]:
    return list(_splits(m, n, k, 128, 128, batch, sms, most))


def test_splits_that_could_help() -> None:
    assert splits(128, 128, 256) == [1]
    assert splits(128, 128, 511) == [1]
    assert splits(128, 128, 512) == [1, 2], "256 elements of k are left to each"
    assert splits(128, 128, 10**6) == [1, 2, 4, 8, 16]
    assert splits(128, 128, 10**6, most=4) == [1, 2, 4]
    assert splits(1280, 1280, 10**6) == [1, 2], "200 blocks are two waves of 100 SMs"
    assert splits(1281, 1280, 10**6) == [1], "220 would be more"
    assert splits(1280, 1281, 10**6) == [1]
    assert splits(128, 128, 10**6, batch=50) == [1, 2, 4]


def test_what_fits_into_l2_comes_at_its_rate() -> None:
    near = _hot_seconds(1e6, 1.0, GPU, FIT)
    assert near == pytest.approx(1e6 / 4e12, rel=1e-6)
    assert _hot_seconds(1e9, 1.0, GPU, FIT) == pytest.approx(1e9 / 1e12, rel=1e-6)
    half = (0.5 + 0.5 / 4) * 50e6 / 1e12
    assert _hot_seconds(50e6, 1.0, GPU, FIT) == pytest.approx(half), "as large as the cache: half is missed"
    assert _hot_seconds(1e7, COPIES, GPU, FIT) == pytest.approx(half / 5), "five copies of a fifth"
    assert _hot_seconds(0.0, 1.0, GPU, FIT) == 0.0


@pytest.mark.parametrize(("m", "n", "k"), [(10**5, 8, 10**5), (10**5, 10**5, 8), (8, 10**5, 10**5), (3000, 4000, 5000)])
def test_operands_and_result_cross_dram_once(m: int, n: int, k: int) -> None:
    moved = _dram_seconds(m, n, k, GPU, FIT, 2.0, 4.0, 3, 1.0)
    weights, rest = 3 * k * n * 2.0, 3 * (m * k * 2.0 + m * n * 4.0)
    assert moved == pytest.approx(_hot_seconds(weights, 1.0, GPU, FIT) + _hot_seconds(rest, 1.0, GPU, FIT))
    cycled = _dram_seconds(m, n, k, GPU, FIT, 2.0, 4.0, 3, COPIES)
    assert cycled == pytest.approx(_hot_seconds(weights, COPIES, GPU, FIT) + _hot_seconds(rest, 1.0, GPU, FIT))


def test_the_result_of_a_middling_product_stays_in_l2() -> None:
    # 40 MB of activations and result in 50 MB of L2: counted once, not twice.
    assert _dram_seconds(1000, 10, 20_000, GPU, FIT, 2.0, 2.0, 1, 1.0) == pytest.approx(40.42e6 / 4e12, rel=0.25)


def test_a_benchmark_pays_its_harness_and_casts() -> None:
    plain = gemm_seconds(128, 128, 64, GPU, FIT, 1e14, 2.0, 2.0)
    timed = gemm_seconds(128, 128, 64, GPU, replace(FIT, harness=1e-5), 1e14, 2.0, 2.0)
    cast = gemm_seconds(128, 128, 64, GPU, replace(FIT, cast=3.0), 1e14, 2.0, 2.0)
    trained = gemm_seconds(128, 128, 64, GPU, replace(FIT, harness=1e-5, cast=3.0), 1e14, 2.0, 2.0, clock=1.0)
    assert timed - plain == pytest.approx(1e-5)
    assert cast - plain == pytest.approx(3.0 * 128 * 64 / 4e12, rel=1e-6)
    assert trained < plain + 1e-7


def test_the_clock_droops_with_the_length_of_the_kernel() -> None:
    cold, warm = (gemm_seconds(8192, 8192, 8192, GPU, replace(FIT, droop=droop), 1e14, 2.0, 2.0) for droop in (0.0, 0.2))
    flops = 2.0 * 8192**3
    left = 1.0 - 0.2 * flops / (flops + 2e11)
    assert (warm - FIT.floor) / (cold - FIT.floor) == pytest.approx(1 / left, rel=1e-2)
