"""A calibration's point serves works of its dtype and kind: others are priced about it, and not called measured."""

from __future__ import annotations

from typing import Literal

import pytest

from sim.cost.between import fitted, total
from sim.cost.calibration import Calibration, Sample
from sim.cost.timed import prices
from sim.work import Attention, Conv, Gemm, Work

NS = 1e-9


def calibration(device: Literal["cpu", "cuda"], *points: tuple[str, str, str, tuple[int, ...], float]) -> Calibration:
    """Of (table, name, dtype, shape, seconds)."""
    tables: dict[str, tuple[Sample, ...]] = {}
    for table, name, dtype, shape, seconds in points:
        tables[table] = (*tables.get(table, ()), Sample(name, dtype, shape, seconds, seconds, seconds, 9))
    return Calibration(device=device, date="2026", machine="test", cores=8, ranks=1, threads=1, tables=tables)


def products(rates: dict[str, float]) -> list[tuple[str, str, str, tuple[int, ...], float]]:
    """Products at the corners of a cube, each dtype at its seconds per multiply-add."""
    corners = [(m, n, k) for m in (64, 1024) for n in (64, 1024) for k in (64, 1024)]
    return [("gemm", "fwd", dtype, (m, n, k), rate * m * n * k) for dtype, rate in rates.items() for m, n, k in corners]


@pytest.mark.parametrize(("device", "rate"), [("cuda", 1e-12), ("cpu", 8e-12)])
def test_tf32_is_a_gpus_and_on_a_cpu_exact(device: Literal["cpu", "cuda"], rate: float) -> None:
    table = prices(calibration(device, *products({"fp32": 8e-12, "tf32": 1e-12})))
    seconds, source = table.price(Gemm(256, 256, 256, "tf32"))
    assert source == "measured" and seconds == pytest.approx(rate * 256**3, rel=1e-6)


@pytest.mark.parametrize(("device", "source"), [("cuda", "fitted"), ("cpu", "measured")])
@pytest.mark.parametrize("more", [{"batch": 8}, {"accumulate": True}])
def test_products_that_share_a_gpu_are_not_the_sum_of_single_ones(
    device: Literal["cpu", "cuda"], source: str, more: dict[str, int]
) -> None:
    table = prices(calibration(device, *products({"fp32": 1e-12})))
    assert table.price(Gemm(256, 256, 256, "fp32"))[1] == "measured"
    assert table.price(Gemm(256, 256, 256, "fp32", **more))[1] == source  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "longer"),
    [(2048, 240, 64, "bf16", 2.0), (768, 240, 64, "bf16", 1.5), (240, 3072, 64, "bf16", 3.0), (2048, 2048, 64, "bf16", 6.0), (240, 240, 64, "bf16", 1.0),
     (2048, 2048, 32, "bf16", 1.0), (2048, 2048, 64, "fp32", 1.0)],
)  # fmt: skip
def test_rows_of_a_power_of_two_take_a_cpu_longer(m: int, n: int, k: int, dtype: str, longer: float) -> None:
    """By which of the product's sizes they are, and where columns are longer than a cache has ways; only what was timed."""
    rows = [("aliased", name, "bf16", shape, times) for name, shape, times in (
        ("fwd.m", (1024, 272, 272), 2.0), ("fwd.m", (256, 272, 272), 1.5), ("fwd.n", (272, 1024, 272), 3.0),
    )]  # fmt: skip
    plain, found = (prices(calibration("cpu", *products({"fp32": 1e-12, "bf16": 1e-12}), *more)) for more in ((), rows))
    work = Gemm(m, n, k, dtype)
    assert found.price(work)[0] == pytest.approx(longer * plain.price(work)[0], rel=1e-12)


def attention(dtype: str, *ways: tuple[str, float]) -> list[tuple[str, str, str, tuple[int, ...], float]]:
    """Rows of two sequences by two head sizes, each way at its seconds per query, key and element of a head."""
    return [("attention", way, dtype, (2, 4, s, d), rate * 8 * s * s * d) for way, rate in ways for s in (64, 1024) for d in (32, 128)]


def test_attention_with_and_without_a_mask() -> None:
    table = prices(calibration("cuda", *attention("bf16", ("fwd", 3 * NS), ("fwd_full", 2 * NS))))
    size = 32, 8, 8, 256, 256, 64
    causal, full = Attention(*size), Attention(*size, causal=False)
    for work, rate in ((causal, 3 * NS), (full, 2 * NS)):
        assert table.price(work) == (pytest.approx(rate * 256 * 256 * 256 * 64, rel=1e-6), "measured")
    few, across = Attention(1, 8, 8, 256, 256, 64), Attention(32, 16, 16, 128, 256, 64)
    for other in (Attention(*size, dtype="fp32"), Attention(*size, window=64), few, across):
        assert table.price(other)[1] == "fitted"


def test_attention_that_was_measured_otherwise_goes_at_its_rate() -> None:
    """Per product of the pairs that are computed: half of them under a causal mask."""
    table = prices(calibration("cpu", *attention("fp32", ("fwd", 2 * NS))))
    causal, full = (Attention(2, 4, 4, 256, 256, 64, causal=causal, dtype="fp32") for causal in (True, False))
    assert table.price(causal)[1] == "measured"
    assert table.price(full) == (pytest.approx(2 * table.price(causal)[0]), "fitted")


DENSE = 2, 64, 28, 28, 64, 3, 3, 1, 1
ALONE = 2, 64, 28, 28, 64, 3, 3, 1, 64


def conv(shape: tuple[int, ...], dtype: str = "bf16", role: str = "fwd") -> Conv:
    return Conv(*shape[:8], groups=shape[8], dtype=dtype, role=role)


@pytest.mark.parametrize(
    "other",
    [
        conv(DENSE, "fp32"),
        conv((2, 64, 56, 56, 64, 3, 3, 2, 1)),  # as many outputs, each second pixel
        conv((2, 576, 28, 28, 64, 1, 1, 1, 1)),  # as deep a product, of single pixels
        conv((2, 128, 28, 28, 64, 3, 3, 1, 2)),  # as deep, in two groups
    ],
)
def test_a_convolution_of_another_kind_is_not_measured(other: Work) -> None:
    table = prices(calibration("cuda", ("conv", "fwd", "bf16", DENSE, 1e-5)))
    assert table.price(conv(DENSE)) == (pytest.approx(1e-5), "measured")
    assert table.price(other)[1] == "fitted"


def test_a_convolution_is_priced_by_those_of_its_kind() -> None:
    """Channels that are alone do a 64th of the multiply-adds, at a rate of their own."""
    whole, alone = conv(DENSE, "fp32"), conv(ALONE, "fp32")
    table = prices(
        calibration("cpu", ("conv", "fwd", "fp32", DENSE, whole.flops / 1e11), ("conv", "fwd", "fp32", ALONE, alone.flops / 5e9))
    )
    for shape, rate in (((2, 96, 28, 28, 96, 3, 3, 1, 1), 1e11), ((2, 96, 28, 28, 96, 3, 3, 1, 96), 5e9)):
        work = conv(shape, "fp32")
        assert work.flops / table.price(work)[0] == pytest.approx(rate, rel=0.2)


def test_what_reads_much_for_few_products_takes_its_bytes() -> None:
    fast = calibration("cpu", ("conv", "fwd", "fp32", DENSE, conv(DENSE).flops / 1e13), ("copy", "memcpy", "", (1 << 26,), (1 << 26) / 4e9))
    work = conv(ALONE, "fp32")
    assert prices(fast).price(work) == (pytest.approx(work.bytes / 8e9), "fitted")


SMALL = tuple((batch, c, side, side, c, 3, 3, 1, 1) for batch in (2, 8) for c in (64, 512) for side in (2, 8, 32))


@pytest.mark.parametrize("shape", [(4, 512, 3, 3, 512, 3, 3, 1, 1), (4, 256, 4, 4, 512, 3, 3, 1, 1), (3, 96, 20, 20, 96, 3, 3, 1, 1)])
def test_between_convolutions_each_part_grows_by_itself(shape: tuple[int, ...]) -> None:
    """One of nine pixels takes its weights' time, as one of four does, and nine quarters of its products' alone."""

    def seconds(work: Conv) -> float:
        weights = 4.0 * work.c_in * work.c_out * work.kh * work.kw
        return work.flops / 2e11 + weights / 6e9 + (work.bytes - weights) / 3e9

    table = prices(calibration("cpu", *(("conv", "fwd", "fp32", point, seconds(conv(point, "fp32"))) for point in SMALL)))
    assert table.price(conv(shape, "fp32")) == (pytest.approx(seconds(conv(shape, "fp32")), rel=0.01), "fitted")


@pytest.mark.parametrize("shape", [(24, 1500, 1500), (96, 640, 1440), (320, 320, 1280), (500, 100, 90)])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_between_products_flops_and_bytes_grow_by_themselves(shape: tuple[int, int, int], dtype: str) -> None:
    def seconds(m: int, n: int, k: int) -> float:
        work = Gemm(m, n, k, dtype)
        return work.flops / 2e11 + work.bytes / 8e9

    corners = [(m, n, k) for m in (8, 64, 1024) for n in (64, 1024, 4096) for k in (64, 1024, 4096)]
    table = prices(calibration("cpu", *(("gemm", "fwd", dtype, at, seconds(*at)) for at in corners)))
    assert table.price(Gemm(*shape, dtype)) == (pytest.approx(seconds(*shape), rel=0.01), "measured")


def test_terms_find_their_rates() -> None:
    """Also where one is not needed; what one row alone leaves open is the first one's."""
    rows = [((1.0, 4.0, 2.0), 0.0), ((5.0, 1.0, 1.0), 0.0), ((2.0, 2.0, 9.0), 0.0), ((7.0, 3.0, 4.0), 0.0)]
    for rates in ((2.0, 3.0, 0.5), (2.0, 0.0, 0.5), (0.0, 0.0, 1.0)):
        assert fitted([(terms, total(rates, terms)) for terms, _ in rows]) == pytest.approx(rates, abs=1e-6)
    assert fitted([((4.0, 8.0), 2.0)]) == pytest.approx((0.5, 0.0))
