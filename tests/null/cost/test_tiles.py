"""GEMM seconds: laws that hold for every shape, and effects that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.gemm import fit_of, fits, gemm_cost, grouped_cost, power_ratio, sustained_clock
from sim.cost.tiles import gemm_seconds
from sim.work import Gemm, GroupedGemm
from topologies.devices import gpu
from topologies.errors import Refused

sizes = st.integers(1, 20_000)
measured = st.sampled_from(["a100-sxm-80gb", "h100-sxm", "b200-sxm", "l40s", "rtx-pro-6000"])


def seconds(name: str, work: Gemm, sustained: bool = True) -> float:
    return gemm_cost(work, gpu(name), sustained)[0]


@given(name=measured, m=sizes, n=sizes, k=sizes)
@settings(max_examples=150, deadline=None)
def test_never_faster_than_the_units_or_the_floor(name: str, m: int, n: int, k: int) -> None:
    device = gpu(name)
    found = seconds(name, Gemm(m, n, k), sustained=False)
    assert found > 2.0 * m * n * k / device.flops["bf16"]
    assert found > fit_of(device, "bf16")[0].floor


@given(name=measured, m=sizes, n=sizes, k=sizes)
@settings(max_examples=100, deadline=None)
def test_training_is_never_faster_than_a_benchmark_of_the_same_kernel(name: str, m: int, n: int, k: int) -> None:
    # The benchmark also keeps weights in L2 between calls, which training does not.
    assert seconds(name, Gemm(m, n, k)) >= seconds(name, Gemm(m, n, k), sustained=False) * (1 - 1e-9)


@given(name=measured, m=sizes, n=sizes, k=sizes, times=st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_repeat_multiplies(name: str, m: int, n: int, k: int, times: int) -> None:
    assert seconds(name, Gemm(m, n, k, repeat=times)) == pytest.approx(times * seconds(name, Gemm(m, n, k)))


@given(name=measured, m=sizes, n=sizes, k=st.integers(1, 5000))
@settings(max_examples=50, deadline=None)
def test_twice_the_depth_costs_more_but_at_most_about_twice(name: str, m: int, n: int, k: int) -> None:
    one, two = seconds(name, Gemm(m, n, 64 * k)), seconds(name, Gemm(m, n, 128 * k))
    assert one <= two * (1 + 1e-9)
    assert two <= 5 * one  # more than twice only where the operands leave the L2 cache, which reads up to 4 times as fast


def test_one_row_past_a_tile_costs_on_ampere_more_than_on_hopper() -> None:
    # kernels.md: m 256 -> 257 costs 1.34 on A100 and 1.05 on H100 (medians over n, k >= 1024).
    def step(name: str) -> float:
        ratios = [
            seconds(name, Gemm(257, n, k), sustained=False) / seconds(name, Gemm(256, n, k), sustained=False)
            for n in (1024, 2048, 4096, 8192)
            for k in (1024, 4096)
        ]
        return sum(ratios) / len(ratios)

    assert 1.08 < step("a100-sxm-80gb") < 1.6
    assert 1.0 <= step("h100-sxm") < step("a100-sxm-80gb")


def test_published_square_products() -> None:
    # aiconfigurator, bf16, microseconds of 1024, 2048, 4096, 8192 cubes.
    table = {
        "a100-sxm-80gb": (18.5, 108.0, 544.0, 4234.0),
        "h100-sxm": (6.1, 24.6, 178.0, 1521.0),
        "b200-sxm": (4.5, 14.2, 96.0, 713.0),
        "l40s": (13.5, 71.0, 574.0, 5226.0),
    }
    for name, row in table.items():
        for size, microseconds in zip((1024, 2048, 4096, 8192), row, strict=True):
            assert seconds(name, Gemm(size, size, size), sustained=False) == pytest.approx(microseconds * 1e-6, rel=0.35), (name, size)


def test_streaming_weights_runs_at_the_memory_rate() -> None:
    # kernels.md: m <= 4 and weights of 32 MB and more: 1419 (A100), 2664 (H100), 5270 (B200) GB/s in the median.
    for name, rate in {"a100-sxm-80gb": 1.419e12, "h100-sxm": 2.664e12, "b200-sxm": 5.27e12}.items():
        found = 8192 * 8192 * 2 / seconds(name, Gemm(1, 8192, 8192))
        assert found == pytest.approx(rate, rel=0.25), name


def test_roles_and_accumulation() -> None:
    forward = seconds("a100-pcie-80gb", Gemm(8192, 8192, 8192))
    weights = seconds("a100-pcie-80gb", Gemm(8192, 8192, 8192, role="wgrad", accumulate=True))
    assert 1.02 < weights / forward < 1.15  # SimuMax: 0.718 / 0.681 of peak


def test_power_decides_between_siblings() -> None:
    sxm, pcie, limited = gpu("h100-sxm"), gpu("h100-pcie"), gpu("h100-sxm-500w")
    assert power_ratio(sxm, "bf16") == 1.0
    assert power_ratio(limited, "bf16") == pytest.approx((500 / 700) ** (1 / 3))
    assert sustained_clock(limited, "bf16") < sustained_clock(sxm, "bf16")
    assert power_ratio(pcie, "bf16") < 1.0


def test_grouped_products() -> None:
    device = gpu("h100-sxm")
    whole = gemm_cost(Gemm(8192, 4096, 4096), device)[0]
    fused = grouped_cost(GroupedGemm(64, 8192, 4096, 4096), device)[0]
    loop = grouped_cost(GroupedGemm(64, 8192, 4096, 4096, fused=False), device)[0]
    assert whole < fused < loop  # many small experts: one kernel fills the device
    assert loop == pytest.approx(64 * gemm_cost(Gemm(128, 4096, 4096), device)[0])


def test_sources_say_what_they_rest_on() -> None:
    assert gemm_cost(Gemm(512, 512, 512), gpu("h200-sxm"))[1] == "fitted"
    assert gemm_cost(Gemm(512, 512, 512, dtype="fp16"), gpu("v100-sxm2-16gb"))[1] == "assumed"
    assert gemm_cost(Gemm(512, 512, 512), gpu("mi300x"))[1] == "assumed"
    assert gemm_cost(Gemm(512, 512, 512, dtype="fp4"), gpu("b200-sxm"))[1] == "assumed"


def test_units_that_are_not_there_are_refused() -> None:
    with pytest.raises(Refused, match=r"a100-sxm-80gb .*fp8.*bf16"):
        seconds("a100-sxm-80gb", Gemm(64, 64, 64, dtype="fp8"))
    with pytest.raises(Refused, match="bf16"):
        seconds("v100-sxm2-16gb", Gemm(64, 64, 64))


def test_tf32_is_fp32_where_there_are_no_such_units() -> None:
    assert seconds("v100-sxm2-16gb", Gemm(512, 512, 512, dtype="tf32")) == seconds("v100-sxm2-16gb", Gemm(512, 512, 512, dtype="fp32"))
    assert seconds("a100-sxm-80gb", Gemm(4096, 4096, 4096, dtype="tf32")) < seconds("a100-sxm-80gb", Gemm(4096, 4096, 4096, dtype="fp32"))


def test_weights_that_stay_in_l2_are_a_benchmark_s_own() -> None:
    device, fit = gpu("l40s"), fits("bf16")["l40s"]
    short = gemm_seconds(1, 4096, 1024, device, fit, device.flops["bf16"], 2.0, 2.0)
    training = gemm_seconds(1, 4096, 1024, device, fit, device.flops["bf16"], 2.0, 2.0, clock=1.0)
    assert training > 1.4 * short


def test_scaled_products_of_the_benchmark_follow_the_rows() -> None:
    """L40S, 8 bits: 512 rows by 64 columns take 12.1 us at k = 1024 and 6.6 at 256, 64 rows 4.9 and 3.8 (aiconfigurator): one block's k loop of
    the tile that belongs to the rows. Training's library takes smaller tiles for such a small result."""
    device = gpu("l40s")
    fit = fit_of(device, "fp8")[0]
    assert fit.graded

    def loop(rows: int, clock: float | None = None) -> float:
        low, high = (gemm_seconds(rows, 64, k, device, fit, device.flops["fp8"], 1.0, 2.0, clock=clock) for k in (256, 1024))
        return (high - low) / 768

    assert loop(512) == pytest.approx(7.2e-9, rel=0.25)
    assert loop(64) == pytest.approx(1.4e-9, rel=0.35)
    assert loop(512, clock=1.0) < loop(512) / 2


def test_a_power_limit_of_kin_shows_in_large_benchmarks() -> None:
    """A board with half the watts of a measured one: the same small kernels, large ones slower by up to the cube root of two."""
    import msgspec

    from sim.cost.gemm import lent, power_between

    whole = gpu("a100-sxm-80gb")
    fit, low = fit_of(whole, "bf16")[0], msgspec.structs.replace(whole, name="half", power=whole.power / 2)
    ratio = power_between(low, whole.name, "bf16")
    assert ratio == pytest.approx(0.5 ** (1 / 3))

    def slower(edge: int) -> float:
        one, other = (gemm_seconds(edge, edge, edge, whole, each, whole.flops["bf16"], 2.0, 2.0) for each in (fit, lent(fit, ratio)))
        return other / one

    assert slower(256) < 1.01
    assert 1.15 < slower(16384) <= 2 ** (1 / 3)
