"""Prices that a closed form gives: launches in line, bytes without a measurement, shares of convolutions, the ranks of a table."""

from __future__ import annotations

import pytest

from sim.cost.calibration import Calibration
from sim.cost.collective.table import collective_table
from sim.cost.conv import ConvFit, _part
from sim.cost.cpu_pricer import cpu_cost
from sim.cost.gpu_pricer import GpuPricer
from sim.cost.host import host_seconds
from sim.cost.memory_bound import fits, memory_bound_cost, share_of
from sim.cost.price import Cost
from sim.cost.timed import ASSUMED_BYTES, ASSUMED_HOST
from sim.framework.framework import load_framework
from sim.program import Op
from sim.work import Conv, MemoryBound, Work
from topologies.errors import BadInput
from topologies.load import load_topology

SHARES = ConvFit(pointwise=0.1, direct=0.2, winograd=0.3, depthwise=0.5)


def _local(op: Op) -> Cost:
    return GpuPricer(load_topology("dgx-h100"), load_framework("pytorch")).local(op, 0)


def _cost(*works: Work) -> Cost:
    return _local(Op("op", "compute", "compute", works))


def test_short_kernels_end_when_the_last_was_launched_and_long_ones_when_all_have_run() -> None:
    short, long = (MemoryBound("add", size, size, "bf16") for size in (64, 1 << 30))
    one, three = _cost(short), _cost(short, short, short)
    assert one.seconds < one.host, "a kernel shorter than its launch"
    assert three.host == pytest.approx(3 * one.host)
    assert three.ready == pytest.approx(three.host + one.seconds)
    slow = _cost(long)
    assert _cost(long, long).ready == pytest.approx(slow.host + 2 * slow.seconds)
    assert _cost(long, short).ready == pytest.approx(slow.host + slow.seconds + one.seconds)


@pytest.mark.parametrize(("read", "written"), [(4096, 0), (1 << 20, 1 << 21), (3 << 28, 1 << 28)])
def test_bytes_without_a_measurement_go_at_the_assumed_rate(read: int, written: int) -> None:
    unmeasured = Calibration(device="cpu", date="", machine="", cores=1, ranks=1, threads=1)
    found = cpu_cost(MemoryBound("add", read, written, "fp32"), unmeasured)
    assert found.source == "assumed"
    assert found.seconds == pytest.approx((read + written) / ASSUMED_BYTES + ASSUMED_HOST["kernel"])


@pytest.mark.parametrize(
    ("kernel", "stride", "groups", "dtype", "share"),
    [
        ((1, 1), 1, 1, "bf16", SHARES.pointwise),
        ((1, 1), 2, 1, "fp32", SHARES.pointwise),
        ((3, 3), 1, 1, "bf16", SHARES.direct),
        ((1, 3), 1, 1, "fp32", SHARES.direct),
        ((5, 5), 1, 1, "fp32", SHARES.direct),
        ((3, 3), 2, 1, "fp32", SHARES.direct),
        ((3, 3), 1, 4, "fp32", SHARES.direct),
        ((3, 3), 1, 1, "fp32", SHARES.direct),
        ((3, 3), 1, 1, "tf32", SHARES.direct),
        ((1, 1), 1, 1, "tf32", SHARES.pointwise),
    ],
)
def test_a_convolution_takes_the_share_of_its_kind(kernel: tuple[int, int], stride: int, groups: int, dtype: str, share: float) -> None:
    work = Conv(8, 64, 28, 28, 64, *kernel, stride, groups=groups, dtype=dtype)
    assert _part(work, SHARES) == share


def test_a_table_has_two_ranks_to_all_of_the_machine() -> None:
    for ranks in (2, 8):
        assert collective_table("all_reduce", "1 MiB", "dgx-h100", ranks=ranks)
    for ranks in (0, 1, 9):
        with pytest.raises(BadInput, match="2 to 8 ranks"):
            collective_table("all_reduce", "1 MiB", "dgx-h100", ranks=ranks)


def test_a_table_says_microseconds_and_the_rates_that_follow() -> None:
    rows = collective_table("all_reduce", "64 MiB", "dgx-h100")["rows"]
    assert rows[0]["bytes"] == 8 and rows[-1]["bytes"] == 64 << 20
    assert 1.0 < rows[0]["time_us"] < 1000.0
    for row in rows:
        assert row["bytes"] / (row["time_us"] * 1e-6) == pytest.approx(row["algbw_GBps"] * 1e9)
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 2 * 7 / 8)


@pytest.mark.parametrize("kind", ["collective", "send", "recv"])
def test_what_ranks_do_together_costs_this_rank_its_launch_alone(kind: str) -> None:
    topology, host = load_topology("dgx-h100"), load_framework("pytorch").host
    launch, event = (host_seconds(what, host, topology.host(0)) for what in ("collective", "event"))
    assert launch > event > 0
    found = _local(Op("op", kind, "comm.dp", name="all_reduce", bytes=1 << 20, group="dp", peer=1))
    assert (found.seconds, found.host) == (0.0, pytest.approx(launch))
    assert _local(Op("op", "record", "comm.dp", event="e")).host == pytest.approx(event)
    assert _local(Op("op", "record", "host", event="e")).host == 0.0


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100"])
def test_bytes_go_at_the_rate_of_the_cache_or_of_the_memory(name: str) -> None:
    gpu = load_topology(name).device(0)
    shares, cache = fits()
    for size, speed in ((1 << 12, cache.speed), (1 << 34, 1.0)):
        work = MemoryBound("add", size, size, "bf16")
        fit = shares[gpu.arch]
        seconds = fit.floor + 2 * size / (gpu.bandwidth * share_of(fit, work) * speed)
        assert memory_bound_cost(work, gpu)[0] == pytest.approx(seconds, rel=1e-4)


def test_a_table_of_no_bytes_is_refused() -> None:
    with pytest.raises(BadInput, match="one byte at least"):
        collective_table("all_reduce", "0 B", "dgx-h100")
    assert [row["bytes"] for row in collective_table("all_reduce", "1 B", "dgx-h100")["rows"]] == [1]
