"""Laws of collectives: the ring's closed form, fairness, symmetry, and what the table says."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.collective import best, collective_cost, group_shape, message_cost
from sim.cost.collective.events import ring_all_reduce_events
from sim.cost.collective.nccl import NAMES
from sim.cost.collective.rates import bus_factor, fill, params, ring_fill
from sim.cost.collective.table import collective_table
from topologies.errors import BadInput, Refused, UnknownName
from topologies.load import load_topology

rates = st.floats(1e9, 1e12)
delays = st.floats(0.0, 1e-4)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.floats(1.0, 1e9), rates, delays)
def test_equal_hops_give_the_closed_form(n: int, size: float, rate: float, delay: float) -> None:
    closed = 2 * (n - 1) / n * size / rate + 2 * (n - 1) * delay
    assert ring_all_reduce_events(n, size, rate, delay) == pytest.approx(closed, rel=1e-9, abs=1e-18)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(rates, delays), min_size=2, max_size=12), st.floats(1.0, 1e9), st.integers(0, 11), st.floats(0.1, 1.0))
def test_a_slower_hop_never_helps_and_turning_the_ring_changes_nothing(
    hops: list[tuple[float, float]], size: float, at: int, factor: float
) -> None:
    n = len(hops)
    r, d = [h[0] for h in hops], [h[1] for h in hops]
    whole = ring_all_reduce_events(n, size, r, d)
    slower = list(r)
    slower[at % n] *= factor
    assert ring_all_reduce_events(n, size, slower, d) >= whole * (1 - 1e-12)
    turned = ring_all_reduce_events(n, size, r[1:] + r[:1], d[1:] + d[:1])
    assert turned == pytest.approx(whole, rel=1e-9)


def test_the_last_to_arrive_sets_the_end() -> None:
    even = ring_all_reduce_events(4, 4e9, 1e9, 0.0)
    assert ring_all_reduce_events(4, 4e9, 1e9, 0.0, start=[0.0, 0.0, 5.0, 0.0]) == pytest.approx(even + 5.0)


@pytest.mark.parametrize("bad", [{"rate": 0.0}, {"rate": [1.0, 2.0]}, {"latency": -1.0}, {"start": [0.0]}])
def test_rings_that_make_no_sense_are_refused(bad: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(BadInput):
        ring_all_reduce_events(4, 1e6, **bad)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "barrier"])
@pytest.mark.parametrize("machine", ["dgx-h100", "4x dgx-h100", "dgx1-v100", "rtx-4090-x8"])
def test_more_bytes_take_longer_and_order_does_not_matter(name: str, machine: str) -> None:
    topology = load_topology(machine)
    ranks = list(range(topology.gpus))
    times = [collective_cost(name, size, tuple(ranks), topology).seconds for size in (8, 1 << 16, 1 << 20, 1 << 28)]
    assert times == sorted(times) and times[0] > 0
    if topology.symmetric and machine.startswith("dgx-h100"):
        random.Random(1).shuffle(ranks)
        assert collective_cost(name, 1 << 20, tuple(ranks), topology).seconds == pytest.approx(times[2])


def test_bus_bandwidth_stays_below_what_the_links_carry() -> None:
    topology = load_topology("dgx-a100")
    for count in (2, 4, 8):
        shape = group_shape(topology, tuple(range(count)))
        choice = best("all_gather", 1 << 30, shape)
        assert (1 << 30) / choice.seconds * bus_factor("all_gather", count) < topology.path(0, 1).rate


def test_siblings_share_the_nics_of_a_node() -> None:
    topology = load_topology("2x aws-p4d")  # 4 NICs for 8 GPUs
    ranks = (0, 8)
    alone = collective_cost("all_reduce", 1 << 28, ranks, topology).seconds
    together = collective_cost("all_reduce", 1 << 28, ranks, topology, siblings=8).seconds
    assert together == pytest.approx(2 * alone, rel=0.1)


def test_messages_take_the_way_between_the_ranks() -> None:
    topology = load_topology("2x dgx-h100")
    near, far = message_cost(1 << 26, 0, 1, topology), message_cost(1 << 26, 0, 8, topology)
    assert near.seconds < far.seconds and any("nic" in link for link, _ in far.uses)
    assert message_cost(1 << 26, 3, 3, topology).seconds == 0.0


def test_the_table_reads_like_nccl_tests() -> None:
    table = collective_table("all_reduce", "64 MiB", "dgx-h100")
    assert [row["bytes"] for row in table["rows"]][:3] == [8, 32, 128] and table["rows"][-1]["bytes"] == 1 << 26
    for row in table["rows"]:
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 2 * 7 / 8)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": "allreduce"}, UnknownName),
        ({"ranks": 9}, BadInput),
        ({"algorithm": "rings"}, UnknownName),
        ({"on": "this-machine"}, BadInput),
    ],
)
def test_the_table_refuses_what_is_not_there(change: dict, error: type[Exception]) -> None:  # type: ignore[type-arg]
    with pytest.raises(error):
        collective_table(**({"name": "all_reduce", "largest": "1 MiB", "on": "dgx-h100", "ranks": None} | change))


def test_a_message_is_among_what_the_table_knows() -> None:
    with pytest.raises(UnknownName, match=r"Allowed: .* send$"):
        collective_table("sendrecv", "1 MiB", "dgx-h100", None)
    assert collective_table("send", "1 MiB", "2x dgx-h100", None)["ranks"] == 2


@pytest.mark.no_cover
@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["dgx-h100", "dgx-a100", "dgx-b200", "dgx1-v100", "gb300-nvl72", "mi300x-x8", "rtx-pro-6000-x8", "rtx-3090-x2"]),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    st.integers(2, 72),
    st.integers(1, 1 << 32),
)
def test_flow_is_events_and_the_fill_where_nothing_contends(machine: str, name: str, n: int, size: int) -> None:
    """What `flow` charges for a ring, less the fill of its slices (events send whole chunks), is what the events play."""
    topology = load_topology(machine)
    n, turns = min(n, topology.gpus), 2 if name == "all_reduce" else 1
    shape = group_shape(topology, tuple(range(n)))
    flow = best(name, size, shape, "ring")
    filling = ring_fill(size, shape, flow.bandwidth) if flow.protocol == "Simple" else 0.0
    events = ring_all_reduce_events(n, size, flow.bandwidth, flow.latency / (turns * (n - 1)), turns=turns)
    assert flow.seconds - filling == pytest.approx(events, rel=1e-9) and filling >= 0.0


def test_the_fill_is_a_slice_of_each_channel_at_most() -> None:
    shape = group_shape(load_topology("dgx-h100"), tuple(range(8)))
    rate = 1e11
    assert ring_fill(8e3, shape, rate) == pytest.approx(1e3 / rate)
    assert ring_fill(1e12, shape, rate) == pytest.approx(params()["pipeline"]["slices_nvlink"] / shape.intra)
    assert ring_fill(1e12, group_shape(load_topology("2x dgx-h100"), tuple(range(16))), rate) == 0.0
    for few, channels in (("dgx1-v100", 12), ("hgx-h800", 16)):  # two for each link
        own = group_shape(load_topology(few), tuple(range(8)))
        assert ring_fill(1e12, own, rate) == pytest.approx(channels * 1e6 / own.intra), few


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["net", "ring", "nvls", "pcie"]), st.floats(1e-7, 1e-3), st.floats(0.0, 10.0), st.floats(1.0, 4.0))
def test_filling_a_pipeline_grows_and_ends(where: str, latency: float, carry: float, factor: float) -> None:
    once, more = fill(latency, carry, where), fill(latency, carry * factor, where)
    assert 0.0 <= once <= more <= float(params()["pipeline"][f"{where}_cap"]) * latency * (1 + 1e-12)


@pytest.mark.parametrize("machine", ["4x dgx-h100", "4x dgx-a100", "2x aws-p5"])
def test_hierarchical_is_the_sum_of_its_three_calls(machine: str) -> None:
    topology = load_topology(machine)
    nodes, each, size = topology.nodes, topology.ranks_per_node, 1 << 28
    whole = best("all_reduce", size, group_shape(topology, tuple(range(nodes * each))), "hierarchical")
    inside = group_shape(topology, tuple(range(each)))
    rail = group_shape(topology, tuple(range(0, nodes * each, each)), siblings=each)
    parts = (
        best("reduce_scatter", size, inside).seconds
        + best("all_reduce", size / each, rail).seconds
        + best("all_gather", size, inside).seconds
    )
    assert whole.algorithm == "hierarchical" and whole.seconds == pytest.approx(parts, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "machine", "algorithm"),
    [
        ("all_gather", "4x dgx-h100", "hierarchical"),
        ("all_reduce", "dgx-h100", "hierarchical"),
        ("all_gather", "dgx-h100", "tree"),
        ("all_reduce", "dgx-a100", "nvls"),
        ("all_to_all", "dgx-h100", "ring"),
    ],
)
def test_what_nccl_would_not_run_is_refused(name: str, machine: str, algorithm: str) -> None:
    topology = load_topology(machine)
    with pytest.raises(Refused, match="allowed: auto"):
        best(name, 1 << 20, group_shape(topology, tuple(range(topology.gpus))), algorithm)


def test_a_step_splits_what_it_can_and_calls_the_rest_plainly() -> None:
    topology = load_topology("2x dgx-h100")
    one, two = tuple(range(8)), tuple(range(16))
    assert collective_cost("all_reduce", 1 << 26, one, topology, "hierarchical") == collective_cost("all_reduce", 1 << 26, one, topology)
    split = best("all_reduce", 1 << 26, group_shape(topology, two), "hierarchical").seconds
    assert collective_cost("all_reduce", 1 << 26, two, topology, "hierarchical").seconds == split


def test_the_switch_gathers_on_one_node_only() -> None:
    topology = load_topology("2x dgx-h100")
    inside = best("all_gather", 1 << 30, group_shape(topology, tuple(range(8))), "nvls")
    assert inside.algorithm == "nvls" and 7 / 8 * (1 << 30) / inside.seconds < topology.path(0, 1).rate
    with pytest.raises(Refused, match="NVLSTree"):
        best("all_gather", 1 << 30, group_shape(topology, tuple(range(16))), "nvls")


@pytest.mark.parametrize("name", ["all_reduce", "all_gather"])
def test_a_narrow_spine_binds_rings_and_its_flow_fits_the_cable(name: str) -> None:
    whole, narrow = load_topology("64x dgx-h100"), load_topology("64x dgx-h100", ("link.spine.rate=10 GB/s",))
    ranks = tuple(range(512))
    fast, slow = (collective_cost(name, 1 << 32, ranks, topology) for topology in (whole, narrow))
    assert 3.0 < slow.seconds / fast.seconds < 6.0
    assert all(rate <= narrow.rates[link] * (1 + 1e-9) for link, rate in slow.uses)
    inside = tuple(range(64))  # one leaf: no spine on the way
    assert collective_cost(name, 1 << 32, inside, whole).seconds == collective_cost(name, 1 << 32, inside, narrow).seconds


@pytest.mark.no_cover
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["2x dgx-h100", "2x dgx-a100", "2x aws-p5", "rtx-pro-6000-x8"]),
    st.sampled_from(["all_reduce", "all_gather", "all_to_all"]),
    st.sampled_from(["link.nvlink.rate=100 GB/s", "nic.rate=50 Gbit/s", "link.pcie.rate=8 GB/s", "link.net.latency=60 us"]),
    st.integers(1, 1 << 32),
)
def test_a_slower_link_never_speeds_a_collective_up(machine: str, name: str, edit: str, size: int) -> None:
    if machine.endswith("x8") and not edit.startswith("link.pcie"):
        return  # one node of PCIe has no such link
    whole, slower = load_topology(machine), load_topology(machine, (edit,))
    ranks = tuple(range(whole.gpus))
    assert collective_cost(name, size, ranks, slower).seconds >= collective_cost(name, size, ranks, whole).seconds * (1 - 1e-9)
