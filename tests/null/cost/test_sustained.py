"""Clocks in training: the slowest of many boards, GPUs without a clock of their own, a power limit counted once."""

from __future__ import annotations

import random
from statistics import fmean

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.device import peak_flops
from sim.cost.gemm import BEST, power_ratio, powered
from sim.cost.kernel import assume, kernel_cost
from sim.cost.sustained import kin_clock, narrow_clock, slowest, vector_clock
from sim.work import Attention, Conv, Gemm, MemoryBound
from topologies.devices import gpu
from topologies.hardware import Gpu
from topologies.load import load_topology

BIG = Gemm(8192, 8192, 8192)


def test_the_slowest_of_n_boards_is_the_expected_largest_of_n_draws() -> None:
    draw = random.Random(1)
    for n in (2, 8, 64):
        worst = fmean(max(draw.gauss(0.0, 0.015) for _ in range(n)) for _ in range(4000))
        assert 1.0 - slowest(n) == pytest.approx(worst, abs=0.0008)


@given(st.integers(1, 20000))
def test_more_boards_are_never_faster(n: int) -> None:
    assert slowest(1) == 1.0
    assert 0.9 < slowest(n + 1) < slowest(n) <= 1.0


def test_a_slow_board_stretches_products_and_not_what_moves_bytes() -> None:
    h100 = gpu("h100-sxm")
    usual, slow = (kernel_cost(BIG, h100, board=board).seconds for board in (1.0, 0.95))
    assert 1.03 < slow / usual < 1 / 0.95
    copy = MemoryBound("copy", 1 << 28, 1 << 28, "bf16")
    assert kernel_cost(copy, h100, board=0.95).seconds == kernel_cost(copy, h100).seconds


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_power_limit_that_is_changed_counts(dtype: str) -> None:
    """H100 is sold with 700 W, and with 500 W under a name of its own."""
    product = msgspec.structs.replace(BIG, dtype=dtype)
    h100, less = (kernel_cost(product, gpu(name)).seconds for name in ("h100-sxm", "h100-sxm-500w"))
    changed = {watts: kernel_cost(product, msgspec.structs.replace(gpu("h100-sxm"), power=watts)) for watts in (700.0, 500.0, 0.0)}
    assert changed[700.0].seconds == changed[0.0].seconds == h100 and changed[700.0].source == "fitted"
    assert changed[500.0].seconds == pytest.approx(less, rel=0.04) and less > 1.15 * h100
    more = gpu("h100-sxm").flops | {dtype: 2 * gpu("h100-sxm").flops[dtype]}  # units, at the clock that there is
    assert kernel_cost(product, msgspec.structs.replace(gpu("h100-sxm"), flops=more)).seconds < 0.6 * h100


def test_steered_power_speeds_products_up_where_steps_tell() -> None:
    plain, moved = gpu("h100-sxm"), MemoryBound("copy", 1 << 28, 1 << 28, "bf16")
    steered = msgspec.structs.replace(plain, vboost=1)
    assert 1.03 < kernel_cost(BIG, plain).seconds / kernel_cost(BIG, steered).seconds < 1.08
    assert kernel_cost(moved, steered).seconds == kernel_cost(moved, plain).seconds
    a100 = gpu("a100-sxm-80gb")
    assert kernel_cost(BIG, msgspec.structs.replace(a100, vboost=1)).seconds == kernel_cost(BIG, a100).seconds


def test_a_power_limit_counts_once() -> None:
    """The PCIe A100's products are already priced at the clock that its 300 W leave."""
    pcie, sxm = gpu("a100-pcie-80gb"), gpu("a100-sxm-80gb")
    assert power_ratio(pcie, "bf16") < 0.95
    assert kin_clock(pcie, {"a100-sxm-80gb": 0.9})[0] == pytest.approx(0.9, abs=0.01)
    ratio = kernel_cost(BIG, pcie).seconds / kernel_cost(BIG, sxm).seconds
    assert 1.0 < ratio < 1.12


@pytest.mark.parametrize("name", ["h20", "rtx-3090", "rtx-4090", "a40", "l40s", "h100-pcie", "b300-sxm", "rtx-pro-6000", "t4"])
def test_more_watts_never_slow_a_product_down(name: str) -> None:
    """Beyond those with which products run at their best nothing is gained, nor lost to the clock that kin keep in training."""
    board, half = gpu(name), msgspec.structs.replace(BIG, dtype="fp16")
    seconds = [kernel_cost(half, msgspec.structs.replace(board, power=board.power * more)).seconds for more in (1.0, 1.3, 2.0, 4.0)]
    assert seconds == sorted(seconds, reverse=True) and seconds[-1] < 1.001 * seconds[0]


@pytest.mark.parametrize("name", ["v100-sxm2-32gb", "a100-sxm-80gb", "h100-sxm", "rtx-3090"])
@pytest.mark.parametrize(
    "work",
    [msgspec.structs.replace(BIG, dtype="fp16"), Gemm(64, 4096, 4096, "fp16"), Conv(64, 64, 56, 56, 64, 1, 1, dtype="fp32")],
    ids=["large", "thin", "convolution"],
)
def test_a_boost_clock_that_is_not_reached_changes_nothing(name: str, work: Gemm | Conv) -> None:
    """Nor does it lengthen what the memory binds; a lower one does not speed up."""
    topology = {"v100-sxm2-32gb": "dgx1-v100-32gb", "a100-sxm-80gb": "dgx-a100", "h100-sxm": "dgx-h100", "rtx-3090": "rtx-3090-x2"}[name]
    clock = gpu(name).clock
    seconds = []
    for times in (0.8, 1.0, 1.2, 2.0):
        device = load_topology(topology, (f"gpu.clock={clock * times:.0f}",)).device(0)
        assert isinstance(device, Gpu) and device.name == name
        seconds.append(kernel_cost(work, device).seconds)
    assert seconds[1] == pytest.approx(seconds[2], rel=1e-3) == pytest.approx(seconds[3], rel=1e-3)
    assert seconds[0] >= 0.999 * seconds[1]


def share_of_peak(name: str, work: Gemm | Attention = BIG, sustained: bool = False) -> float:
    board = gpu(name)
    work = work if work.dtype in board.flops else msgspec.structs.replace(work, dtype="fp16")
    return work.flops / kernel_cost(work, board, sustained=sustained).seconds / peak_flops(board, work.dtype)


@pytest.mark.parametrize(("name", "least"), [("rtx-3090", 0.85), ("rtx-5090", 0.85), ("rtx-4080", 0.85), ("rtx-4090", 0.8), ("l20", 0.74)])
def test_a_board_of_many_watts_for_each_flop_trains_near_the_rate_of_a_benchmark(name: str, least: float) -> None:
    """A GeForce's units are half as fast as those of the A100, L40S or RTX PRO 6000 whose kernels it takes, on as many watts."""
    assert least < share_of_peak(name, sustained=True) <= BEST + 0.01 and least < share_of_peak(name) <= BEST + 0.01
    assert least - 0.03 < share_of_peak(name, Gemm(4096, 4096, 4096)) <= BEST + 0.01, "whose watts hold it down in no product"
    assert share_of_peak("l40s") < 0.6 and share_of_peak("l4") < share_of_peak("l40s") < share_of_peak("l40") < share_of_peak("l20")


def test_attention_is_held_down_by_watts_no_more_than_products_are() -> None:
    """Above the L40S's rate no more is gained than what A100 and RTX PRO 6000 show to be the kernels' best."""
    work = Attention(4, 32, 32, 4096, 4096, 128)
    assert share_of_peak("l40s", work) < 0.58 < 0.62 < share_of_peak("rtx-4090", work) < 0.67
    assert share_of_peak("rtx-3090", work) == pytest.approx(share_of_peak("a100-sxm-80gb", work), abs=0.01)


VIDUR = {(2048, 22016, 4096): 116, (2048, 24576, 8192): 118, (4096, 8192, 8192): 116, (4096, 11008, 8192): 120, (4096, 8192, 11008): 118}
"""TFLOP/s of fp16 products on an A40 (microsoft/vidur, layers of Llama 2, CodeLlama and Qwen)."""


def test_an_a40s_watts_tell_of_its_kin() -> None:
    """It reaches the share of peak that an A100 does, on more watts for each FLOP: its process is another. An A10 has fewer."""
    for (m, n, k), rate in VIDUR.items():
        work = Gemm(m, n, k, "fp16")
        assert work.flops / kernel_cost(work, gpu("a40"), sustained=False).seconds == pytest.approx(rate * 1e12, rel=0.08)
    assert share_of_peak("a40") == pytest.approx(share_of_peak("a100-sxm-80gb"), abs=0.02)
    assert share_of_peak("a10") < 0.9 * share_of_peak("a40") < share_of_peak("rtx-a6000") < share_of_peak("rtx-3090")
    assert kin_clock(gpu("a40"), {"a100-sxm-80gb": 0.9})[0] == 0.9, "its own rates have its power limit in them"
    assert kin_clock(gpu("l40s"), {"a100-sxm-80gb": 0.9})[0] == 0.9
    assert kin_clock(gpu("h100-sxm"), {"b200-sxm": 0.63})[0] > 0.8, "a benchmark of B200 meets no limit yet"


def test_turings_boards_differ_by_their_watts_alone() -> None:
    """A T4's 70 W are less than half of a V100's for each FLOP/s; a GeForce has twice as many."""
    v100 = share_of_peak("v100-sxm2-32gb")
    assert power_ratio(gpu("t4"), "fp16") / powered(gpu("v100-sxm2-32gb"), "fp16") == pytest.approx((70 / 65) / (300 / 125))
    assert share_of_peak("t4") == pytest.approx(0.5 * v100, rel=0.15)
    assert share_of_peak("rtx-2080-ti") == pytest.approx(v100, rel=0.03) and 0.9 * v100 < share_of_peak("titan-rtx") < v100
    assert share_of_peak("t4", sustained=True) <= share_of_peak("t4")


def test_kin_follow_their_watts_where_the_voltage_cannot_fall_further() -> None:
    whole = kin_clock(gpu("h100-sxm-500w"), {"h100-sxm": 0.84})[0] * power_ratio(gpu("h100-sxm-500w"), "bf16")
    assert whole == pytest.approx(0.84 * 500 / 700, rel=0.01)
    assert kin_clock(gpu("gb300"), {"b200-sxm": 0.64})[0] > 0.64


def test_the_watts_of_a_board_with_fewer_sms_and_a_lower_clock_count_once() -> None:
    """What H100 PCIe keeps beside its lower peak is its watts for each SM and cycle over those of SXM, in benchmark and training together."""
    pcie, sxm = gpu("h100-pcie"), gpu("h100-sxm")
    whole = kin_clock(pcie, {"h100-sxm": 0.83})[0] * powered(pcie, "bf16") / 0.83
    assert whole == pytest.approx(pcie.power / sxm.power * sxm.sms * sxm.clock / (pcie.sms * pcie.clock), rel=0.01)


def test_a_generation_whose_process_is_another_takes_the_clock_of_the_one_before_as_it_is() -> None:
    clock, source = kin_clock(gpu("vr200"), {"gb300": 0.9, "b200-sxm": 0.63})
    assert clock * powered(gpu("vr200"), "bf16") == pytest.approx(0.9 * powered(gpu("gb300"), "bf16")) and source == "assumed"


def test_vector_products_slow_down_where_steps_tell() -> None:
    """The V100 of 300 W more than that of 350 W; an A100's fp32 stays below its limit. Convolutions are products too."""
    small, large = gpu("v100-sxm2-32gb"), gpu("v100-sxm3-32gb")
    assert vector_clock(small) / vector_clock(large) == pytest.approx((300 / 350) ** 0.33, abs=0.01)
    assert vector_clock(gpu("a100-sxm-80gb")) == 1.0
    wide = Gemm(8192, 8192, 8192, "fp32")
    stretched = kernel_cost(wide, small).seconds / kernel_cost(wide, small, sustained=False).seconds
    assert 1.1 < stretched < 1 / 0.87 + 0.01
    conv = Conv(256, 512, 28, 28, 512, 3, 3, dtype="fp32")
    assert kernel_cost(conv, small).seconds > 1.05 * kernel_cost(conv, small, sustained=False).seconds


def test_narrow_products_take_their_kins_clock_and_else_the_wide_one() -> None:
    wide = {"h100-sxm": 0.8, "a100-sxm-80gb": 0.9}
    assert narrow_clock(gpu("h200-sxm"), wide, {"h100-sxm": 0.7})[0] == pytest.approx(0.7)
    assert narrow_clock(gpu("h100-sxm"), wide, {})[0] == 0.8
    both = {"h100-sxm": 0.8, "h100-sxm-500w": 0.6}
    assert narrow_clock(gpu("h100-sxm-500w"), both, {"h100-sxm": 0.7})[0] == pytest.approx(0.6 * 0.7 / 0.8), "the same units on fewer watts"
    assert narrow_clock(gpu("b200-sxm"), {"h100-sxm": 0.8, "b200-sxm": 0.6}, {"h100-sxm": 0.7})[0] == 0.6, "other units have their own"
    assert narrow_clock(gpu("l40s"), wide, {"h100-sxm": 0.7})[0] == kin_clock(gpu("l40s"), wide)[0]
    amd = kin_clock(gpu("mi300x"), wide)[0]
    assert narrow_clock(gpu("mi300x"), wide, {"h100-sxm": 0.7})[0] == pytest.approx(amd * 0.7 / 0.8), "as on the GPU whose clock it takes"
    assert narrow_clock(gpu("gb200"), {"h100-sxm": 0.8, "b200-sxm": 0.6}, {"h100-sxm": 0.7}) == kin_clock(gpu("gb200"), {"b200-sxm": 0.6})


def test_a_refit_sets_both_clocks_and_lets_go_of_them() -> None:
    h100 = gpu("h100-sxm")
    products = [Gemm(8192, 8192, 8192, dtype=dtype) for dtype in ("bf16", "fp8")]
    tensor = [work.flops / (peak_flops(h100, work.dtype) * BEST) for work in products]

    def seconds() -> list[float]:
        return [kernel_cost(work, h100).seconds for work in products]

    before = seconds()
    try:
        assume(1.0)
        full = seconds()
        assume(0.5, 0.6)
        longer = [(late - soon) / own for late, soon, own in zip(seconds(), full, tensor, strict=True)]
        assert longer == pytest.approx([1 / 0.5 - 1, 1 / 0.6 - 1])
    finally:
        assume(None)
    assert seconds() == before


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_a_clock_that_is_set_costs_nothing_until_it_binds(name: str) -> None:
    """Under load the power limit keeps an H100, and an H200, which takes its kin's clock, at 0.83 of its boost clock; below that, large products
    slow down in proportion. A higher one gains next to nothing."""
    machine = load_topology(f"dgx-{name}")
    boost = gpu(f"{name}-sxm")

    def seconds(share: float) -> float:
        ((edited, _),) = load_topology(machine, (f"gpu.clock={boost.clock * share / 1e6:.3f} MHz",)).devices(8)
        assert isinstance(edited, Gpu)
        assert peak_flops(edited, "bf16") == pytest.approx(share * peak_flops(boost, "bf16"), rel=1e-5)
        return kernel_cost(BIG, edited).seconds

    whole = kernel_cost(BIG, boost).seconds
    assert seconds(0.9) == pytest.approx(whole, rel=0.03)
    assert 0.9 * whole < seconds(1.5) <= whole
    assert seconds(0.4) / seconds(0.8) == pytest.approx(2.0, rel=0.05)
    assert (
        kernel_cost(MemoryBound("copy", 1 << 30, 1 << 30), boost).seconds
        == kernel_cost(MemoryBound("copy", 1 << 30, 1 << 30), msgspec.structs.replace(boost, clock=boost.clock / 2)).seconds
    )
