"""The network between nodes: three tiers of switches, their rates and failures, and fabrics that stand on others."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cost.collective.group import group_shape
from sim.cost.collective.nccl import best
from sim.planning.disturbed.faults import usual
from topologies.errors import BadInput
from topologies.graph import Topology
from topologies.load import load_topology
from topologies.summary import summary
from topologies.unfelt import unfelt

TIERS = ("pod=2", "block=2")
"""Pods of two nodes, blocks of four."""


def three(nodes: int = 16, *edits: str) -> Topology:
    return load_topology(f"{nodes}x dgx-h100", (*TIERS, *edits))


def switches(topology: Topology, a: int, b: int) -> list[str]:
    ends = [link.partition(">")[2] for link in topology.path(a, b).links]
    return [name.removeprefix("net/") for name in ends if name.startswith("net/")]


def test_a_path_climbs_as_high_as_it_must() -> None:
    found = three()
    assert switches(found, 0, 8) == ["leaf0.0"]
    assert switches(found, 0, 16) == ["leaf0.0", "spine0.0", "leaf1.0"]
    assert switches(found, 0, 32) == ["leaf0.0", "spine0.0", "core0", "spine1.0", "leaf2.0"]
    assert switches(found, 0, 8 * 15) == ["leaf0.0", "spine0.1", "core1", "spine3.1", "leaf7.0"]
    near, far = found.path(0, 16), found.path(0, 32)
    assert far.rate == near.rate == 50e9 and far.latency - near.latency == pytest.approx(2 * 0.3e-6)


def test_a_spine_has_its_leaves_rates_up_or_a_share_of_them() -> None:
    """Two spines a block, eight rails of two pods each: 16 uplinks of 50 GB/s come up to a spine."""
    assert three().rates["net/leaf2.5>net/spine1.0"] == 50e9
    assert three().rates["net/spine1.0>net/core0"] == three().rates["net/core0>net/spine1.0"] == 16 * 50e9
    assert three(16, "core_oversubscription=4").rates["net/spine1.0>net/core0"] == 4 * 50e9
    assert three(16, "link.spine.rate=10 GB/s").rates["net/spine1.0>net/core0"] == 16 * 10e9


def test_links_that_are_listed_are_there_and_no_others() -> None:
    found = three(7)
    names = list(found.rates)
    assert len(set(names)) == len(names) and all(found.rates[name] > 0 for name in names)
    assert "net/spine1.1>net/core1" in names
    wrong = (
        "net/spine2.0>net/core0",
        "net/spine0.0>net/core1",
        "net/spine0>net/core0",
        "net/leaf0.0>net/spine1.0",
        "net/leaf0.0>net/core0",
    )
    assert not any(name in found.rates for name in wrong)
    assert not any("core" in name for name in three(4).rates)  # one block has nothing above its spines
    assert not any("core" in name for name in load_topology("16x dgx-h100", ("pod=2",)).rates)


def test_the_graph_has_the_core() -> None:
    graph = three(8).graph()
    assert {data["kind"] for name, data in graph.nodes(data=True) if name.startswith("net/")} == {"leaf", "spine", "core"}
    assert graph.has_edge("net/spine1.0", "net/core0") and not graph.has_edge("net/leaf0.0", "net/spine1.0")


def test_failed_spines_and_cores_are_avoided() -> None:
    assert switches(three(16, "fail=spine:0.0"), 0, 32)[1:4] == ["spine0.1", "core1", "spine1.1"]
    assert switches(three(16, "fail=core:0"), 0, 32)[1:4] == ["spine0.1", "core1", "spine1.1"]
    assert switches(three(16, "fail=core:0"), 0, 16)[1] == "spine0.0"  # inside a block nothing has changed
    for name in ("spine:9.0", "spine:0.9", "spine:0", "core:9"):
        with pytest.raises(BadInput, match=r"has no switch .* spines 0\.0 to 0\.1"):
            three(16, f"fail={name}")
    with pytest.raises(BadInput, match="no spine is left"):
        three(16, "fail=core:0", "fail=core:1").path(0, 32)


def test_rings_of_all_rails_spread_over_the_spines_to_the_core() -> None:
    """Eight rings over the nodes leave a block by eight cables of their own."""
    found = load_topology("64x dgx-h100", ("pod=8", "block=2"))
    links = [link for rail in range(8) for link in found.path(8 * 15 + rail, 8 * 16 + rail).links if "core" in link]
    assert len(set(links)) == len(links) == 2 * 8


def all_to_all(topology: Topology, each: int = 1) -> float:
    """Among every `each`-th rank."""
    return best("all_to_all", 1 << 34, group_shape(topology, tuple(range(0, topology.gpus, each)))).seconds


def test_all_to_all_on_one_rail_has_the_uplinks_of_one_rail() -> None:
    """Of what 32 NICs below a leaf send, 32 parts of 63 leave it, over 32 x 50 / 4 GB/s. (Was as fast as without oversubscription.)"""
    wide, narrow = (load_topology("64x dgx-h100", edits) for edits in ((), ("oversubscription=4",)))
    share = (32 * 50 / 4) / (32 * 50 * 32 / 63)
    assert all_to_all(narrow, 8) == pytest.approx(all_to_all(wide, 8) / share, rel=0.02)
    assert all_to_all(load_topology("64x dgx-h100", ("oversubscription=4", "rails=1")), 8) == all_to_all(wide, 8)  # the leaf is all GPUs'


def test_all_to_all_waits_for_the_narrowest_tier() -> None:
    """16 nodes in 4 blocks of 4: of what a block's 32 NICs send, 12 parts of 15 leave it. Over two spines of 16 x 50 / 8 GB/s to the core."""
    flat, wide, narrow = (
        all_to_all(load_topology("16x dgx-h100", edits)) for edits in (("pod=2",), TIERS, (*TIERS, "core_oversubscription=8"))
    )
    assert wide == pytest.approx(flat, rel=1e-3)
    share = (2 * 16 * 50 / 8) / (32 * 50 * 12 / 15)
    assert narrow == pytest.approx(flat / share, rel=0.02)
    assert all_to_all(load_topology("16x dgx-h100", (*TIERS, "oversubscription=8"))) > narrow * 0.99


def test_a_cluster_file_changes_what_it_says_of_its_machines_fabric(tmp_path: Path) -> None:
    (tmp_path / "box.toml").write_text('base = "dgx-h100"\n[fabric]\npod = 4\nhop = "2 us"\nuplink = "20 GB/s"\nblock = 2\n')
    (tmp_path / "cluster.toml").write_text('nodes = "16x box.toml"\n[fabric]\ncore_oversubscription = 3\n')
    fabric = load_topology(str(tmp_path / "cluster.toml")).cluster.fabric
    assert (fabric.pod, fabric.hop, fabric.uplink, fabric.block, fabric.core_oversubscription) == (4, 2e-6, 20e9, 2, 3.0)


@pytest.mark.parametrize("mesh", ["[[0, 1, 19]]", "[[0, 1, 9], [0, 2, 10]]"])
def test_a_gpu_has_no_more_links_than_its_maker_gave_it(tmp_path: Path, mesh: str) -> None:
    (tmp_path / "box.toml").write_text(f'gpu = "h100-sxm"\n[tree]\nsocket0 = ["gpu0", "gpu1", "gpu2"]\n[nvlink]\nmesh = {mesh}\n')
    with pytest.raises(BadInput, match="19 links end at gpu0, but a h100-sxm has 18"):
        load_topology(str(tmp_path / "box.toml"))


def test_the_summary_tells_of_other_machines_and_of_the_network() -> None:
    found = summary(load_topology("2x dgx-h100 + dgx-a100", (*TIERS, "core_oversubscription=7", "oversubscription=2")))
    assert found["machines"].startswith("2x dgx-h100 + 1x dgx-a100")
    assert found["network"] == ("8 rails, leaf switches of 2 nodes, 1 spine over them, 2 : 1, core switches over blocks of 4 nodes, 7 : 1")
    assert not {"machines", "network"} & set(summary(load_topology("dgx-h100")))


@pytest.mark.parametrize("text", ["nodes = 16", 'base = "dgx-h100"\nnodes = "4x dgx-h100"', 'nodes = ["dgx-h100", "dgx-a100"]'])
def test_what_is_a_machine_and_what_a_cluster_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(BadInput, match='nodes = "16x dgx-h100"'):
        load_topology(str(tmp_path / "mine.toml"))


def rail_only(nodes: int, *edits: str) -> Topology:
    return load_topology(f"{nodes}x dgx-h100", ("without=spine", *edits))


def test_rails_without_spines_are_reached_over_nvlink() -> None:
    """Wang et al. 2023: what goes to another rail takes NVLink to a GPU of its own node first."""
    found, whole = rail_only(16), load_topology("16x dgx-h100")
    assert found.path(0, 9) == whole.path(0, 9) and found.path(0, 9).kind == "PXN"
    assert not any("spine" in name for name in found.rates) and not found.narrow
    assert "spine" not in {data["kind"] for _, data in rail_only(2).graph().nodes(data=True)}
    assert str(summary(found)["network"]).endswith("no spine over them")
    for name in ("all_reduce", "all_to_all"):
        assert best(name, 1 << 28, group_shape(found, tuple(range(128)))) == best(name, 1 << 28, group_shape(whole, tuple(range(128))))


def test_what_only_a_spine_would_join_is_refused() -> None:
    with pytest.raises(BadInput, match=r"without spines nothing joins the nodes of net/leaf0\.0 and net/leaf1\.0: .* pod=64"):
        rail_only(64).path(0, 8 * 32)
    assert rail_only(64, "pod=64").path(0, 8 * 32).kind == "NET"
    for edit in ("without=nvlink", "fail=nic:n0/nic1"):
        with pytest.raises(BadInput, match=r"nothing joins the rails of .*, and no NVLink leads to a GPU"):
            rail_only(2, edit).path(1, 9 if edit.startswith("fail") else 10)
    assert rail_only(2, "without=nvlink", "rails=1").path(1, 10).kind == "NET"
    with pytest.raises(BadInput, match=r"leaves leaf:0\.0 to leaf:0\.7 .*, and no spines"):
        rail_only(2, "fail=spine:0")


def test_a_file_may_leave_the_spines_out(tmp_path: Path) -> None:
    (tmp_path / "rails.toml").write_text('nodes = "16x dgx-h100"\n[fabric]\nrail_only = true\npod = 16\n')
    found = load_topology(str(tmp_path / "rails.toml"))
    assert found.cluster.fabric.rail_only and found.path(0, 9).kind == "PXN"
    (tmp_path / "rails.toml").write_text('nodes = "16x dgx-h100"\n[fabric]\nrail_only = 1\n')
    with pytest.raises(BadInput, match="rail_only must be true or false, got 1"):
        load_topology(str(tmp_path / "rails.toml"))


def test_what_spines_would_have_changed_has_no_effect() -> None:
    told = unfelt(rail_only(2, "oversubscription=4", "pod=1", "core_oversubscription=2"), 16)
    assert told == [f"{edit} has no effect: there are no spines" for edit in ("oversubscription=4", "core_oversubscription=2")]
    assert unfelt(load_topology("dgx-h100", ("without=spine",)), 8)
    assert not any("fail=nic" in fault or "spine" in fault for fault in usual(rail_only(2), 16))
    assert any("fail=nic" in fault for fault in usual(rail_only(2, "rails=1"), 16))


@pytest.mark.parametrize(
    ("on", "rails", "told"),
    [("2x dgx-h100", 9, "has 8 NICs.* 1 to 8"), ("dgx-h100", 64, "1 to 8"), ("2x gh200", 2, "1 NIC, .* rails = 1,")],
)
def test_rails_without_a_nic_are_refused(on: str, rails: int, told: str, tmp_path: Path) -> None:
    """By an edit, in a cluster's file and in a machine's; unequal rails are plain leaf switches of which some have more cables."""
    with pytest.raises(BadInput, match=told):
        load_topology(on, (f"rails={rails}",))
    head = f'nodes = "{on}"' if "x " in on else f'base = "{on}"'
    (tmp_path / "own.toml").write_text(f"{head}\n[fabric]\nrails = {rails}\n")
    with pytest.raises(BadInput, match=told):
        load_topology(str(tmp_path / "own.toml"))
    assert load_topology("2x dgx-h100", ("rails=3",)).cluster.fabric.rails == 3
