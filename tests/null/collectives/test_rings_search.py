"""Rings over NVLinks without a switch: what a machine's links hold, against what vTrain measured on DGX-1 V100."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.collective import best, group_shape
from sim.cost.collective.rates import bus_factor
from sim.cost.collective.rings import ring_rate
from topologies.hardware import Gpu
from topologies.load import load_topology

MEASURED = {2: 22.55, 3: 45.14, 4: 85.36, 6: 45.74, 7: 87.01, 8: 134.5}
"""GB/s of bus bandwidth, all_reduce of 1 GiB on so many of the 8 GPUs of a DGX-1 V100 (vTrain, MIT). Five GPUs, 37, mix NVLink and PCIe."""


@pytest.mark.parametrize(("gpus", "rate"), MEASURED.items())
def test_a_cube_mesh_reaches_what_was_measured(gpus: int, rate: float) -> None:
    shape = group_shape(load_topology("dgx1-v100"), tuple(range(gpus)))
    reached = (1 << 30) / best("all_reduce", 1 << 30, shape).seconds * bus_factor("all_reduce", gpus) / 1e9
    assert reached == pytest.approx(rate, rel=0.15)


@pytest.mark.parametrize(
    ("machine", "gpus", "rings"), [("a100-x4-nvlink", 4, 12), ("dgx1-v100", 8, 6), ("dgx1-v100", 3, 2), ("rtx-3090-x2", 2, 4)]
)
def test_rings_take_all_links_where_they_can(machine: str, gpus: int, rings: int) -> None:
    topology = load_topology(machine)
    device = topology.device(0)
    assert isinstance(device, Gpu) and device.nvlink is not None and device.nvlink_links
    assert ring_rate(topology, range(gpus)) == pytest.approx(rings * device.nvlink / device.nvlink_links)


def test_bridged_pairs_close_no_ring_and_go_over_pcie() -> None:
    topology = load_topology("rtx-3090-x4")
    assert ring_rate(topology, range(2)) > 0.0 and ring_rate(topology, range(4)) == 0.0
    pair, all_four = (group_shape(topology, tuple(range(n))) for n in (2, 4))
    assert pair.link == "NVL" and all_four.link == "PHB" and all_four.intra < pair.intra


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])
@pytest.mark.parametrize("machine", ["h100-nvl-x8", "h200-nvl-x8", "rtx-3090-x4"])
def test_bridges_make_nothing_slower(machine: str, name: str) -> None:
    """A GPU that one neighbour reaches over a bridge has one hop left through host memory, not two; its own PCIe link is as wide as it was."""
    bridged, bare = load_topology(machine), load_topology(machine, ("without=nvlink",))
    for gpus in range(2, bridged.ranks_per_node + 1):
        with_, without = (best(name, 1 << 28, group_shape(on, tuple(range(gpus)))).seconds for on in (bridged, bare))
        assert with_ <= without * 1.01, gpus


@pytest.mark.parametrize("machine", ["dgx1-v100", "dgx1-p100", "frontier-mi250x", "mi300x-x8", "a100-x4-nvlink"])
def test_an_all_to_all_waits_for_the_most_loaded_link_of_a_mesh(machine: str) -> None:
    """DGX-1: a quarter of the pairs reach each other over a third GPU, and a single link carries three slices."""
    topology = load_topology(machine)
    for count in range(2, topology.ranks_per_node + 1):
        pairs = [topology.path(a, b) for a in range(count) for b in range(count) if a != b]
        if not all(path.kind in ("NVL", "NVB") for path in pairs):
            continue
        crossed = Counter(link for path in pairs for link in path.links)
        last = max(times / topology.rates[link] for link, times in crossed.items())
        found = best("all_to_all", 1 << 30, group_shape(topology, tuple(range(count)))).seconds
        assert found * count / (1 << 30) > last


@pytest.mark.no_cover
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["dgx1-v100", "mi300x-x8", "a100-x4-nvlink", "frontier-mi250x"]), st.data())
def test_rings_keep_to_the_links_of_every_member(machine: str, data: st.DataObject) -> None:
    topology = load_topology(machine)
    members = data.draw(st.lists(st.integers(0, topology.ranks_per_node - 1), min_size=2, max_size=topology.ranks_per_node, unique=True))
    ways = [{b: topology.path(a, b) for b in members if b != a} for a in members]
    most = min(sum(path.rate for path in way.values() if path.kind in ("NVL", "NVB")) for way in ways)
    assert 0.0 <= ring_rate(topology, members) <= most * (1 + 1e-9)
    turned = [*members[1:], *members[:1]]
    assert ring_rate(topology, turned) == pytest.approx(ring_rate(topology, members))


@pytest.mark.parametrize(
    ("name", "gpus", "rate"),
    [
        ("all_reduce", 2, 20.9),
        ("all_reduce", 4, 20.8),
        ("all_reduce", 8, 12.5),
        ("all_gather", 8, 13.5),
        ("all_to_all", 2, 20.9),
        ("all_to_all", 4, 19.1),
        ("all_to_all", 8, 8.3),
    ],
)
def test_pcie_nodes_reach_what_simumax_fitted(name: str, gpus: int, rate: float) -> None:
    """GB/s of bus bandwidth on 8 A100 PCIe (SimuMax's a100_pcie.json: 30 GB/s times its efficiencies); nothing here was fitted to it."""
    shape = group_shape(load_topology("a100-pcie-x8"), tuple(range(gpus)))
    reached = (1 << 30) / best(name, 1 << 30, shape).seconds * bus_factor(name, gpus) / 1e9
    assert reached == pytest.approx(rate, rel=0.17)


@pytest.mark.parametrize(
    ("on", "kind", "spec"), [("mi300x-x8", "xgmi", 64), ("leonardo-a100", "nvlink", 50), ("alps-gh200", "nvlink", 150)]
)
def test_rings_take_what_edited_links_carry(on: str, kind: str, spec: int) -> None:
    """Never more than a GPU's own links, never less than one, and never less for a faster one. (Rates were rounded to whole NVLinks: 33
    GB/s counted as 64, and 31 as none.)"""
    found = []
    for rate in (spec / 2, spec * 0.51, spec * 0.8, spec, spec * 1.2, spec * 1.5, 2 * spec):
        topology = load_topology(on, (f"link.{kind}.rate={rate} GB/s",))
        members = range(topology.gpus)
        own = sum(topology.path(0, peer).rate for peer in members[1:])
        found.append(ring_rate(topology, members))
        assert rate * 1e9 <= found[-1] <= own * (1 + 1e-9)
    assert found == sorted(found)


def test_links_of_any_rate_are_looked_through_in_no_time() -> None:
    """A thousand times a link's rate is no thousand links. (It never ended.)"""
    topology = load_topology("mi300x-x8", ("link.xgmi.rate=1000 TB/s",))
    assert 6e15 <= ring_rate(topology, range(8)) <= 7e15 * (1 + 1e-9)
