"""Groups whose nodes differ: two kinds of machine, a failure on one node, more members on one node than on another."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cost.collective.algorithms import all_to_all
from sim.cost.collective.group import GroupShape, group_shape
from sim.cost.collective.nccl import best
from topologies.errors import Refused
from topologies.load import load_topology

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def whole(expression: str, *edits: str) -> GroupShape:
    topology = load_topology(expression, edits)
    return group_shape(topology, tuple(range(topology.gpus)))


def seconds(name: str, expression: str, *edits: str, size: int = 1 << 30) -> float:
    return best(name, size, whole(expression, *edits)).seconds


@pytest.mark.no_cover
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("other", ["dgx-a100", "rtx-4090-x8", "h100-pcie-x8", "a100-x4-nvlink"])
def test_the_order_of_machines_changes_nothing(name: str, other: str) -> None:
    one, two, between = (
        seconds(name, e) for e in (f"2x dgx-h100 + 2x {other}", f"2x {other} + 2x dgx-h100", f"dgx-h100 + 2x {other} + dgx-h100")
    )
    assert one == pytest.approx(two, rel=1e-3) and between == pytest.approx(two, rel=1e-2)  # a hop over spines is longer


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("other", ["dgx-a100", "rtx-4090-x8"])
def test_a_slow_machine_among_fast_ones_sets_the_pace(name: str, other: str) -> None:
    assert seconds(name, f"3x dgx-h100 + {other}") > 0.95 * seconds(name, f"4x {other}")
    assert seconds(name, f"3x dgx-h100 + {other}") > 1.5 * seconds(name, "4x dgx-h100")


@pytest.mark.no_cover
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("what", ["nic:n{}/nic0", "nvswitch:n{}/2"])
def test_a_failure_costs_the_same_on_any_node(name: str, what: str) -> None:
    sound, *hurt = (seconds(name, "4x dgx-h100", *edits) for edits in ((), *((f"fail={what.format(node)}",) for node in range(4))))
    assert max(hurt) == pytest.approx(min(hurt), rel=5e-3)
    assert min(hurt) > 1.05 * sound or (name == "all_to_all" and "nvswitch" in what)  # the NICs are its bottleneck


@pytest.mark.no_cover
@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100"])
@pytest.mark.parametrize("name", OPS)
def test_a_gpu_without_its_nvlinks_is_missed_whichever_it_is(name: str, machine: str) -> None:
    """Where a GPU has no link to the switches left, what goes round passes PCIe, and nothing is summed in the switches. Rings lead to it from the
    GPUs nearest to it, whatever their numbers are."""
    sound, *cut = (seconds(name, machine, *edits) for edits in ((), *((f"fail=link:gpu{gpu}-nvswitch",) for gpu in range(8))))
    assert min(cut) > 5 * sound and max(cut) < 1.01 * min(cut)


def test_the_slowest_links_to_a_switch_set_the_pace(tmp_path: Path) -> None:
    for gpu in range(8):
        for link in (f"gpu{gpu}>nvswitch", f"nvswitch>gpu{gpu}"):
            file = tmp_path / "slow.toml"
            file.write_text(f'base = "dgx-h100"\n[links]\n"{link}" = {{ rate = "45 GB/s" }}\n')
            assert whole(str(file)).intra == 45e9
            assert not load_topology(str(file)).even


@pytest.mark.timeout(20)
def test_rings_are_not_sought_where_a_gpu_is_in_none() -> None:
    assert whole("gb200-nvl72", "fail=link:gpu1-nvswitch").link not in ("NVL", "NVB")


def test_the_node_with_fewest_members_gives_the_nics() -> None:
    """Twelve ranks on two nodes: the second has four, and so four NICs of 50 GB/s."""
    topology = load_topology("2x dgx-h100")
    shape = group_shape(topology, tuple(range(12)))
    assert (shape.local, shape.inter) == (8, 4 * 50e9)


def test_a_ring_leaves_a_node_by_the_nic_whose_rail_takes_it_to_the_next() -> None:
    """Ranks 36, 40, 44 ... of a stage that begins in the middle of a node: the first sits on place 4, which the next nodes have, too."""
    shape = group_shape(load_topology("9x dgx-h100"), tuple(range(36, 72, 4)))
    assert shape.inter_links and all("/nic4" in link for link in shape.inter_links)


@pytest.mark.parametrize("name", OPS[1:])  # an all_reduce over two nodes sends half as much
def test_nodes_that_join_add_no_speed(name: str) -> None:
    times = [seconds(name, f"{n}x dgx-h100 + {n}x dgx-a100") for n in (1, 2, 4)]
    assert times == sorted(times)


def test_a_nic_sends_no_more_than_its_gpus_bring_to_it() -> None:
    """A faster NIC than the PCIe link before it is as fast as that link, to collectives as to messages."""
    wide = load_topology("2x dgx-h100", ("nic.rate=400 GB/s",))
    link = wide.rates["n0/gpu0>n0/sw0"]
    assert group_shape(wide, tuple(range(16))).inter == pytest.approx(8 * link)
    assert group_shape(wide, (0, 8), siblings=8).inter == pytest.approx(link) == wide.path(0, 8).rate
    assert group_shape(load_topology("2x dgx-h100"), tuple(range(16))).inter == pytest.approx(8 * 50e9)


@pytest.mark.parametrize("name", ["dgx-b300", "gb300-nvl72", "dgx-h100", "aws-p5", "gcp-a3-high", "dgx1-v100"])
def test_gpus_reach_the_whole_rate_of_their_nics(name: str) -> None:
    topology = load_topology(f"2x {name}")
    size = topology.ranks_on(0)
    rates = {nic: one.rate for rank in range(size) if (use := topology.nic_of(rank)) for nic, one in zip(use.names, use.nics, strict=True)}
    assert group_shape(topology, tuple(range(2 * size))).inter == pytest.approx(sum(rates.values()))


def test_gpus_of_two_makers_are_in_no_group_together() -> None:
    with pytest.raises(Refused, match=r"h100-sxm and mi300x cannot be in one group of ranks: NCCL .* by itself"):
        whole("dgx-h100 + mi300x-x8")
    beside = load_topology("dgx-h100 + mi300x-x8")
    assert group_shape(beside, tuple(range(8, 16))).ranks == 8


@pytest.mark.parametrize(("machine", "full"), [("13x dgx-h100", 104), ("4x dgx-b200", 32), ("3x aws-p5", 24)])
def test_an_all_to_all_over_a_node_that_is_partly_filled_takes_as_long_as_over_a_full_one(machine: str, full: int) -> None:
    """Of a node's GPUs a half brings half of its NICs and has half as much to send: each GPU has as many slices for the ranks elsewhere as one of a
    full node, and a NIC to itself."""
    topology = load_topology(machine)

    def spent(gpus: int, copies: int = 0) -> float:
        return all_to_all(gpus << 20, group_shape(topology, tuple(range(gpus))), copies).seconds  # a slice of 1 MiB for each rank

    for gpus in range(full - 7, full):
        assert spent(gpus) == pytest.approx(spent(full), rel=1e-6) and spent(full - 8) < spent(gpus)
        assert spent(gpus, 8) < 1.1 * spent(full, 8)


def test_where_members_share_nics_the_node_with_most_to_send_is_waited_for() -> None:
    shape = group_shape(load_topology("2x rtx-4090-x8"), tuple(range(12)))
    assert shape.last == (8, shape.inter), "as much goes out of either node, by one NIC each"
