"""What collectives take of links: alone never more than there is, two of a kind half of it each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.collective import collective_cost, message_cost
from sim.cost.price import Cost, carried
from sim.engine.sharing import Flow, fill
from topologies.graph import Topology
from topologies.load import load_topology, machines

_CLUSTERS = ("2x dgx-a100", "4x dgx-a100", "2x gcp-a3-mega", "4x dgx-h100")


def _rates(costs: list[Cost], topology: Topology) -> list[float]:
    """Shares of full speed that costs get which run at the same moment, by the engine's own rule."""
    flows = {Flow(cost.seconds - cost.latency, cost.uses, 0.0, lambda: None): None for cost in costs}
    users: dict[str, dict[Flow, float]] = {}
    for flow in flows:
        for link, amount in flow.uses:
            users.setdefault(link, {})[flow] = amount
    found = fill(flows, {link: (topology.rates[link], mine) for link, mine in users.items()})
    return [found[flow] for flow in flows]


@pytest.mark.no_cover
@pytest.mark.parametrize("machine", [name for name in machines() if name != "cpu-host"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_alone_a_collective_fits_its_links_on_every_machine(machine: str, nodes: int) -> None:
    """Its time is what it costs alone; links that it overfilled would stretch it (rings take all of a GPU's links, not one)."""
    topology = load_topology(machine if nodes == 1 else f"{nodes}x {machine}")
    for ranks in {2, topology.ranks_per_node, topology.gpus} - {1}:
        for name in ("all_reduce", "all_gather", "all_to_all"):
            cost = collective_cost(name, 1 << 28, tuple(range(min(ranks, topology.gpus))), topology)
            assert all(0.0 < amount <= topology.rates[link] * (1 + 1e-9) for link, amount in cost.uses), (ranks, name)
    if topology.gpus > 1:
        assert _rates([message_cost(1 << 28, 0, topology.gpus - 1, topology)], topology) == [1.0]


@pytest.mark.parametrize("machine", _CLUSTERS)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_two_equal_groups_over_one_uplink_get_half_each(machine: str, name: str) -> None:
    """A large ring fills its NICs with what NCCL can send over them, so two take twice as long: not 1.86 times, as by the cable's bits."""
    topology = load_topology(machine)
    one_of_each = topology.ranks_per_node if machine.endswith("h100") else 1  # H100's NVLink carries less of a ring than eight NICs
    cost = collective_cost(name, 1 << 36, tuple(range(0, topology.gpus, one_of_each)), topology, "ring")
    assert _rates([cost, cost], topology) == pytest.approx([0.5, 0.5], rel=0.01)


@pytest.mark.no_cover
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*_CLUSTERS, "dgx-h100", "dgx-b200", "dgx1-v100", "mi300x-x8", "rtx-pro-6000-x8"]),
    st.sampled_from(["all_reduce", "all_gather", "all_to_all"]),
    st.integers(1, 1 << 34),
    st.integers(2, 5),
)
def test_equal_groups_get_equal_shares_and_no_less_than_one_of_them(machine: str, name: str, size: int, groups: int) -> None:
    topology = load_topology(machine)
    cost = collective_cost(name, size, tuple(range(topology.gpus)), topology)
    rates = _rates([cost] * groups, topology)
    busiest = max((amount / topology.rates[link] for link, amount in cost.uses), default=0.0)
    assert rates == pytest.approx([min(1.0, 1.0 / (groups * busiest)) if busiest else 1.0] * groups)
    assert all(rate >= 1.0 / groups * (1 - 1e-9) for rate in rates)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["2x dgx-h100", "4x dgx-a100"]), st.integers(1, 1 << 34))
def test_latency_and_chunks_leave_the_wire_free(machine: str, size: int) -> None:
    """A wire is busy for as long as its bytes take it: the less of a small message's time, and never more of a larger one's."""
    topology = load_topology(machine)
    one, two = (collective_cost("all_gather", bytes_, tuple(range(topology.gpus)), topology, "ring") for bytes_ in (size, 2 * size))
    taken = [cost.uses[0][1] * (cost.seconds - cost.latency) for cost in (one, two)]
    assert taken[1] == pytest.approx(2.0 * taken[0], rel=1e-6) or taken[1] < 2.0 * taken[0] * (1 + 1e-9)


@pytest.mark.parametrize(("machine", "nics"), [("dgx-h100", 1), ("dgx1-v100", 0), ("2x dgx-a100", 8), ("4x dgx-h100", 8)])
@pytest.mark.parametrize("protocol_size", [1 << 12, 1 << 24, 1 << 32])
def test_a_rings_data_is_what_its_algorithm_says(machine: str, nics: int, protocol_size: int) -> None:
    """Over all NICs of a node, or a GPU's links behind a switch, (n - 1)/n of the array goes: flags and headers are no data."""
    topology = load_topology(machine)
    cost = collective_cost("all_gather", protocol_size, tuple(range(topology.gpus)), topology, "ring")
    moved = cost.payload * cost.uses[0][1] * (cost.seconds - cost.latency)
    data = protocol_size * (topology.gpus - 1) / topology.gpus
    if nics:
        assert moved * nics == pytest.approx(data, rel=1e-9)
    else:
        assert 0.0 < moved < data  # without a switch one link carries some of the rings


@pytest.mark.parametrize("name", ["all_gather", "all_reduce", "all_to_all"])
def test_groups_that_cross_the_sockets_share_the_link_between_them(name: str) -> None:
    """Their first members sit beside each other: the link that slows them is crossed by others of their hops."""
    topology = load_topology("a100-pcie-x8")
    costs = [collective_cost(name, 1 << 28, ranks, topology) for ranks in ((0, 1, 4, 5), (2, 3, 6, 7))]
    assert _rates(costs, topology) == pytest.approx([0.5, 0.5], rel=0.02)


def test_over_pcie_every_member_uses_its_own_link_both_ways() -> None:
    """What moves of an all_gather over each GPU's link is (n - 1)/n of the array, in and out."""
    topology = load_topology("a100-pcie-x8")
    for ranks in ((0, 1, 4, 5), (0, 4, 5), tuple(range(8))):
        cost = collective_cost("all_gather", 1 << 28, ranks, topology)
        moved = {link: cost.payload * amount * (cost.seconds - cost.latency) for link, amount in cost.uses}
        for rank in ranks:
            out, back = (f"n0/gpu{rank}>n0/sw{rank // 2}", f"n0/sw{rank // 2}>n0/gpu{rank}")
            assert moved[out] == moved[back] == pytest.approx((1 << 28) * (len(ranks) - 1) / len(ranks), rel=1e-6)


@pytest.mark.parametrize("name", ["all_gather", "all_reduce", "all_to_all"])
def test_over_pcie_the_order_of_the_members_changes_nothing(name: str) -> None:
    """NCCL orders its rings by the machine; a group that begins beside its peer is no faster than its mirror image."""
    topology = load_topology("a100-pcie-x8")
    seconds = [collective_cost(name, 1 << 26, ranks, topology).seconds for ranks in ((0, 1, 4), (0, 4, 5), (4, 0, 5))]
    assert seconds == pytest.approx([seconds[0]] * 3, rel=1e-9)


@pytest.mark.parametrize("machine", ["h100-pcie-x8", "h200-nvl-x8", "rtx-4090-x8"])
def test_over_pcie_an_all_to_all_moves_the_slices_of_all_pairs(machine: str) -> None:
    """Whatever bounds it, a GPU's own link or the one between the sockets: over both go whole slices, none of them twice."""
    topology = load_topology(machine)
    for count in (5, 8):
        cost = collective_cost("all_to_all", 1 << 28, tuple(range(count)), topology)
        slices = {link: moved * count / (1 << 28) for link, moved in carried(cost)}
        out = sum(times for link, times in slices.items() if link.startswith("n0/gpu4>"))
        assert out == pytest.approx(count - 1, rel=1e-6)
        assert slices["n0/socket0>n0/socket1"] == pytest.approx(4 * (count - 4), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "algorithm", "share"),
    [
        ("all_gather", "ring", 15 / 16 * 7 / 8),
        ("all_reduce", "ring", 2 * 15 / 16 * 7 / 8),
        ("all_reduce", "tree", 2 * 7 / 8),
        ("all_reduce", "nvls", 1 + 1 / 8),
        ("all_reduce", "collnet", 1 + 1 / 8),
        ("all_reduce", "hierarchical", 2 * 7 / 8),
        ("all_to_all", "auto", 7 / 16),
    ],
)
def test_over_nodes_a_group_moves_data_inside_them_too(name: str, algorithm: str, share: float) -> None:
    """Each of eight GPUs on each of two nodes, by what the algorithm sends over NVLink; those links are not what the group shares."""
    topology = load_topology("2x dgx-h100")
    cost = collective_cost(name, 1 << 28, tuple(range(16)), topology, algorithm)
    moved = dict(carried(cost))
    assert moved["n0/gpu0>n0/nvswitch"] == moved["n0/nvswitch>n0/gpu7"] == pytest.approx((1 << 28) * share)
    assert not any("nvswitch" in link for link, _ in cost.uses)
    assert collective_cost(name, 1 << 28, (0, 8), topology, "ring" if name != "all_to_all" else "auto").elsewhere == ()


def test_without_a_switch_each_nvlink_carries_its_share_of_what_a_group_over_nodes_moves() -> None:
    """Two of DGX-1's six links join a GPU to its neighbour; over xGMI a slice goes to each of seven peers."""
    ring = collective_cost("all_gather", 1 << 28, tuple(range(16)), load_topology("2x dgx1-v100"), "ring")
    assert sum(moved for _, moved in ring.elsewhere) == pytest.approx((1 << 28) * 15 / 16 * 7 / 8 / 6, rel=0.01)
    exchange = collective_cost("all_to_all", 1 << 28, tuple(range(16)), load_topology("2x mi300x-x8"))
    assert dict(exchange.elsewhere)["n0/gpu0>n0/gpu5"] == pytest.approx((1 << 28) / 16)
