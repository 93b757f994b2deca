"""What prices must keep whatever the figures are: products of convolutions, who takes cores and buses, who shares a NIC, one rank alone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost import attention
from sim.cost.collective import collective_cost, group_shape, message_cost
from sim.cost.collective.nccl import NAMES, best
from sim.cost.conv import _matrix
from sim.cost.kernel import kernel_cost
from sim.cost.points import place_of
from sim.cost.price import Pricer
from sim.program import Op
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.work import Attention, Conv, HostWork, MemoryBound
from topologies.devices import gpu
from topologies.errors import UnknownName
from topologies.load import load_topology

powers = st.sampled_from([8, 16, 32, 64])


@given(st.integers(1, 4), powers, powers, st.sampled_from([1, 2, 4]), st.sampled_from([1, 3]), st.sampled_from(["fwd", "dgrad", "wgrad"]))
def test_a_convolutions_products_do_its_work(batch: int, c_in: int, c_out: int, groups: int, window: int, role: str) -> None:
    """One product for each group: together as many multiply-adds as the convolution has."""
    work = Conv(batch, c_in * groups, 16, 16, c_out * groups, window, window, groups=groups, role=role)
    m, n, k = _matrix(work, 8)
    assert 2.0 * m * n * k * groups == pytest.approx(work.flops)


@given(st.sampled_from([(4, 8, 8), (1, 16, 16), (2, 8, 16), (2, 16, 8)]), powers)
def test_convolutions_of_as_many_pixels_lie_at_one_place(size: tuple[int, int, int], channels: int) -> None:
    """However they are spread over images, height and width; twice as many lie elsewhere."""
    batch, h, w = size
    here, there, more = (Conv(b, channels, y, x, channels, 1, 1) for b, y, x in ((batch, h, w), (1, 16, 16), (batch, h, 2 * w)))
    assert place_of(here) == pytest.approx(place_of(there))
    assert place_of(more)[2] > place_of(here)[2]


@pytest.fixture(scope="module")
def pricer() -> Pricer:
    """Of a small plan on one DGX H100."""
    return pricer_for(
        bind({"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 8, "micro": 1}, "parallel": {"dp_replicate": 8}}, "dgx-h100")
    )


def test_loaders_take_cores_and_their_memorys_bus_and_the_training_thread_does_not(pricer: Pricer) -> None:
    work = HostWork("preprocess", count=3, seconds=2e-3, moved=1 << 20)
    own, loader = (pricer.local(Op("x", "host", lane, (work,)), 5) for lane in ("host", "loader.1"))
    assert own.seconds == loader.seconds == pytest.approx(6e-3) and own.uses == ()
    cores, bus = loader.uses
    assert ">" not in cores[0] and cores[1] == 1.0
    assert "/dram@" in bus[0] and bus[1] == pytest.approx((1 << 20) / 6e-3)
    still = pricer.local(Op("x", "host", "loader.1", (msgspec.structs.replace(work, moved=0),)), 5)
    assert still.uses == (cores,)
    nothing = pricer.local(Op("x", "host", "loader.1", (msgspec.structs.replace(work, count=0),)), 5)
    assert nothing.seconds == 0.0 and nothing.uses == ()


def test_work_of_no_stated_length_takes_what_its_kind_takes(pricer: Pricer) -> None:
    one, three = (pricer.local(Op("x", "host", "host", (HostWork("module", count=count),)), 0).seconds for count in (1, 3))
    assert 0 < one < 1e-3 and three == pytest.approx(3 * one)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_one_rank_exchanges_nothing(name: str) -> None:
    machine = load_topology("2x dgx-h100")
    assert best(name, 1 << 20, group_shape(machine, (3,))).seconds == 0.0
    assert collective_cost(name, 1 << 20, (3,), machine).seconds == 0.0 == message_cost(1 << 20, 3, 3, machine).seconds


def test_ways_that_nccl_does_not_know_are_named() -> None:
    with pytest.raises(UnknownName, match="ring"):
        best("all_reduce", 8, group_shape(load_topology("dgx-h100"), (0, 1)), "rings")


def test_messages_share_the_nic_with_those_beside_them_and_with_nobody_else() -> None:
    """Eight GPUs on fewer NICs: one message alone has a NIC, one of eight has its share."""
    machine = load_topology("2x l40s-x8")
    use = machine.nic_of(0)
    assert use is not None and use.sharers > 1
    alone, beside = (message_cost(1 << 28, 0, 8, machine, siblings) for siblings in (1, 8))
    assert (beside.seconds - beside.latency) / (alone.seconds - alone.latency) == pytest.approx(
        machine.path(0, 8).rate / use.rate, rel=0.05
    )


@pytest.mark.parametrize("name", ["h100-sxm", "a100-sxm-80gb"])
def test_one_long_row_of_attention_waits_for_its_own_fill(name: str) -> None:
    """A causal sequence of one head ends with its last block, which walks over all keys after it has begun."""
    device, work = gpu(name), Attention(1, 1, 1, 4096, 4096, 128, causal=True)
    fit = attention.pick(attention.fits("bf16")[name], work)
    peak = device.flops["bf16"]
    times = [attention.forward_seconds(work, device, msgspec.structs.replace(fit, fill=fit.fill + more), peak) for more in (0, 500, 1000)]
    assert times[0] < times[1] < times[2] and times[2] - times[1] == pytest.approx(times[1] - times[0])


def test_atomic_adds_of_single_halves_are_slow() -> None:
    """29.4 M of them take 5.1 ms on A100 (PaddlePaddle pull request 37895); words of 32 bits pass as memory lets them."""
    n = 56 * 512 * 1024
    halves = kernel_cost(MemoryBound("index_add", 4 * n, 2 * n, "fp16"), gpu("a100-sxm-80gb")).seconds
    words = kernel_cost(MemoryBound("index_add", 8 * n, 4 * n, "fp32"), gpu("a100-sxm-80gb")).seconds
    assert halves == pytest.approx(5.12e-3, rel=0.02)
    assert words < 0.1 * halves


def transposed(what: str, elements: int, e: int) -> float:
    return kernel_cost(MemoryBound(what, e * elements, e * elements, "fp16" if e == 2 else "fp32"), gpu("v100-pcie-32gb")).seconds


@pytest.mark.parametrize(("e", "seconds"), [(4, 24.8e-6), (2, 20.8e-6)])
def test_transposed_heads_on_v100(e: int, seconds: float) -> None:
    """4 x 12 x 512 x 64 value by value (PaddlePaddle pull request 25862): half the bytes take hardly less."""
    assert transposed("transpose", 4 * 12 * 512 * 64, e) == pytest.approx(seconds, rel=0.25)


def test_wide_accesses_transpose_at_the_rate_of_memory() -> None:
    n = 64 * 128 * 12 * 64
    assert transposed("transpose_tiled", n, 2) == pytest.approx(0.5 * transposed("transpose_tiled", n, 4), rel=0.1)
    assert transposed("transpose_tiled", n, 4) < transposed("transpose", n, 4) < transposed("permute", n, 4)
    device = gpu("a100-sxm-80gb")
    one, other = (kernel_cost(MemoryBound(what, 4 * n, 4 * n, "fp32"), device).seconds for what in ("transpose", "permute"))
    assert one == other, "not measured there"


def normed(rows: int, width: int, e: int, *arrays: tuple[int, int]) -> float:
    n, dtype, device = rows * width * e, "fp16" if e == 2 else "fp32", gpu("a100-sxm-40gb")
    works = [MemoryBound("layernorm_apart", read * n, written * n, dtype, rows=rows) for read, written in arrays]
    return sum(kernel_cost(work, device).seconds for work in works)


def test_layer_norms_of_several_kernels_on_a100() -> None:
    """apex's forward and backward (its pull request 1037), PyTorch 1.13's both (pytorch pull request 87445)."""
    assert normed(16384, 1024, 2, (1, 1)) == pytest.approx(75.1e-6, rel=0.05)
    assert normed(16384, 1024, 2, (2, 1), (2, 0)) == pytest.approx(176.2e-6, rel=0.1)
    assert normed(8192, 4096, 2, (1, 1), (2, 1), (2, 0)) == pytest.approx(509e-6, rel=0.05)
    assert normed(8192, 4096, 4, (1, 1), (2, 1), (2, 0)) == pytest.approx(1043.5e-6, rel=0.05)
    n = 16384 * 1024 * 2
    joined = kernel_cost(MemoryBound("layernorm", 2 * n, n, "fp16", rows=16384), gpu("a100-sxm-40gb")).seconds
    assert joined == pytest.approx(86.6e-6, rel=0.05), "apex's FastLayerNorm"
