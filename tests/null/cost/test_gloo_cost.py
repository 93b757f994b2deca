"""gloo's collectives: the measured table where there is one, linear between its sizes, the ring's scaling beyond."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from msgspec.structs import replace

from sim.cost.calibration import Sample
from sim.cost.collective.gloo import ALPHA, BETA, LONG, gloo_cost, wandering
from sim.cost.price import met
from sim.lower.step import lower
from sim.predict import predict
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from topologies.load import load_topology


def row(name: str, ranks: int, size: int, seconds: float, cpu: float = 0.0) -> Sample:
    return Sample(name, "fp32", (ranks, size), seconds, seconds, seconds, 10, cpu)


TABLE = (row("all_reduce", 2, 1000, 1e-3, 5e-4), row("all_reduce", 2, 3000, 2e-3, 2e-3), row("broadcast", 2, 1000, 4e-4))


WIDTHS = (1024, 2048, 2048, 1024)
GRADIENTS = 4 * sum(a * b for a, b in pairwise(WIDTHS))
SPREAD = {
    "model": {"family": "mlp", "widths": list(WIDTHS)},
    "precision": "fp32",
    "batch": {"global": 64, "micro": 8},
    "parallel": {"dp_replicate": 8},
    "comm": {"overlap": False},
}


def test_hosts_wait_for_their_network() -> None:
    """Eight ranks on two hosts send their gradients over the wire. (They were summed as on one host, whatever the NICs carry.)"""
    one, quick, slow, slowest = (
        predict(SPREAD, load_topology(on, edits)).breakdown.exposed_comm_s
        for on, edits in (
            ("cpu-host", ()),
            ("2x cpu-host:4", ("nic.rate=400 Gbit/s", "link.net.latency=0 us")),
            ("2x cpu-host:4", ("nic.rate=10 Gbit/s",)),
            ("2x cpu-host:4", ("nic.rate=1 Gbit/s",)),
        )
    )
    sent = GRADIENTS * 2 * 7 / 8
    assert quick == pytest.approx(one, rel=1e-6)
    assert slowest > sent / 0.125e9 > slow > sent / 1.25e9 > 0.5 * one


def test_a_message_to_another_host_fills_the_wire() -> None:
    setting = bind(SPREAD, load_topology("2x cpu-host:4", ("nic.rate=1 Gbit/s",)))
    program = lower(setting.plan, setting.network, setting.framework, "cpu")
    op = max((op for ops in program.segments.values() for op in ops), key=lambda op: op.bytes)
    near, far = (pricer_for(setting).message(op, 0, peer, 1) for peer in (1, 4))
    assert far.seconds > op.bytes / 0.125e9 > near.seconds
    assert dict(far.uses)["n0/nic0>net/leaf0.0"] == pytest.approx(0.125e9, rel=0.01)


def test_alone_there_is_nothing_to_send() -> None:
    assert gloo_cost("all_reduce", 1000, 1, TABLE).seconds == 0.0


@pytest.mark.parametrize(("size", "seconds"), [(1000, 1e-3), (2000, 1.5e-3), (3000, 2e-3), (10, 1e-3), (6000, 4e-3)])
def test_time_is_linear_between_sizes_flat_below_and_proportional_above(size: int, seconds: float) -> None:
    cost = gloo_cost("all_reduce", size, 2, TABLE)
    assert cost.seconds == pytest.approx(seconds)
    assert cost.source == "measured"


def test_ranks_that_work_longer_come_further_apart() -> None:
    """As measured after much work; as the root of the time between and beyond; while they wait they take no core."""
    later, after = 2e-3, 4e-3
    cost = gloo_cost("all_reduce", 1000, 2, TABLE, after=after, wander=wandering(later, after))
    assert met(cost, after / 2).seconds == met(cost, after).seconds == cost.seconds
    long, longer = (met(cost, times * LONG * after) for times in (1, 4))
    assert long.seconds == pytest.approx(cost.seconds + later)
    assert longer.seconds - long.seconds == pytest.approx(later * math.sqrt(LONG) / (math.sqrt(LONG) - 1))
    assert longer.seconds - longer.latency == pytest.approx(cost.seconds) and longer.uses == cost.uses
    assert wandering(later, 0.0) == 0.0


def test_members_keep_the_cores_busy_that_were_measured() -> None:
    assert dict(gloo_cost("all_reduce", 1000, 2, TABLE).uses) == pytest.approx({"cores": 1.0})
    assert dict(gloo_cost("all_reduce", 3000, 2, TABLE).uses) == pytest.approx({"cores": 2.0})
    assert gloo_cost("broadcast", 1000, 2, TABLE).uses == ()


@pytest.mark.parametrize(("ranks", "rounds"), [(3, 2), (4, 2), (8, 3)])
def test_other_counts_of_ranks_scale_as_a_ring_or_a_tree(ranks: int, rounds: int) -> None:
    """n - 1 steps of latency and (n - 1) / n of the bytes, or rounds of the whole array. (All of it was scaled as a ring's bytes are.)"""
    table = [row(name, 2, size, seconds) for name in ("all_reduce", "broadcast") for size, seconds in ((1000, 1e-3), (10**7, 9e-3))]
    assert gloo_cost("all_reduce", 8, ranks, table).seconds == pytest.approx((ranks - 1) * 1e-3)
    assert gloo_cost("all_reduce", 10**7, ranks, table).seconds == pytest.approx((ranks - 1) * 1e-3 + 2 * (ranks - 1) / ranks * 8e-3)
    assert gloo_cost("broadcast", 10**7, ranks, table).seconds == pytest.approx(rounds * 9e-3)


def test_a_message_between_two_is_read_as_a_broadcast() -> None:
    assert gloo_cost("send", 1000, 2, TABLE).seconds == pytest.approx(4e-4)


@pytest.mark.parametrize(("name", "ranks", "passes"), [("all_reduce", 2, 2.0), ("all_reduce", 4, 2.0), ("all_gather", 4, 1.0)])
def test_without_a_table_the_ring_is_assumed(name: str, ranks: int, passes: float) -> None:
    cost = gloo_cost(name, 4_000_000, ranks, ())
    steps = passes * (ranks - 1)
    assert cost.seconds == pytest.approx(steps * ALPHA + steps * 4_000_000 / ranks / BETA)
    assert cost.source == "assumed"
    assert dict(cost.uses) == {"cores": ranks * 0.5}


AGAIN = (row("all_reduce", 2, 1000, 2e-4), row("all_reduce", 2, 3000, 8e-4))


@pytest.mark.parametrize(("worked", "seconds"), [(0.0, 2e-4), (1e-3, 4e-4), (4e-3, 1e-3), (1.0, 1e-3)])
def test_ranks_that_have_just_met_are_still_together(worked: float, seconds: float) -> None:
    """After no work as measured so, after 4 ms or more as measured after them, in proportion between."""
    cost = gloo_cost("all_reduce", 1000, 2, TABLE, AGAIN, 4e-3)
    assert cost.seconds == 1e-3, "as a step has it that does not say"
    assert met(cost, worked).seconds == pytest.approx(seconds)


def test_what_was_not_measured_again_costs_the_same_after_any_work() -> None:
    for cost in (gloo_cost("broadcast", 1000, 2, TABLE, AGAIN[:0], 4e-3), gloo_cost("all_reduce", 1000, 2, TABLE, AGAIN, 0.0)):
        assert met(cost, 0.0).seconds == cost.seconds


@pytest.mark.parametrize(
    ("measured", "level"),
    [
        ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0)),
        ((1.0, 3.0, 2.0), (1.0, 2.5, 2.5)),
        ((3.0, 2.0, 1.0), (2.0, 2.0, 2.0)),
        ((2.0, 1.0, 5.0), (1.5, 1.5, 5.0)),
    ],
)
def test_more_bytes_take_no_less_time(measured: tuple[float, ...], level: tuple[float, ...]) -> None:
    table = [row("all_gather", 2, size, seconds, seconds / 2) for size, seconds in zip((10, 20, 30), measured, strict=True)]
    found = [gloo_cost("all_gather", size, 2, table) for size in (10, 20, 30)]
    assert [cost.seconds for cost in found] == pytest.approx(level)
    assert [dict(cost.uses)["cores"] for cost in found] == pytest.approx([1.0] * 3), "processor time is pooled alike"


@pytest.mark.parametrize("factor", [0.0, 0.5, 3.0])
def test_a_meeting_that_takes_so_many_times_as_long_does_so_after_any_work(factor: float) -> None:
    """As what-ifs of faster links make it: never less than nothing."""
    cost = gloo_cost("all_reduce", 1000, 2, TABLE, AGAIN, 4e-3)
    for worked in (0.0, 1e-3, 1.0):
        assert met(replace(cost, seconds=factor * cost.seconds), worked).seconds == pytest.approx(factor * met(cost, worked).seconds)


def test_a_message_costs_the_same_after_any_work() -> None:
    """A broadcast stands in for what it takes, not for what it takes again: a pipeline's or a ring's message comes after work."""
    cost = gloo_cost("send", 1000, 2, TABLE, (row("broadcast", 2, 1000, 1e-4),), 4e-3)
    assert met(cost, 0.0).seconds == cost.seconds == pytest.approx(4e-4)
