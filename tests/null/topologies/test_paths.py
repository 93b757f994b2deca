"""Paths, link by link, on machines whose wiring is known."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.errors import BadInput
from topologies.load import Topology, load_topology

CUBE = {  # nvidia-smi topo -m of a DGX-1: NVLinks to each peer, 0 where there is none
    0: (0, 1, 1, 2, 2, 0, 0, 0),
    1: (1, 0, 2, 1, 0, 2, 0, 0),
    2: (1, 2, 0, 2, 0, 0, 1, 0),
    3: (2, 1, 2, 0, 0, 0, 0, 1),
    4: (2, 0, 0, 0, 0, 1, 1, 2),
    5: (0, 2, 0, 0, 1, 0, 2, 1),
    6: (0, 0, 1, 0, 1, 2, 0, 2),
    7: (0, 0, 0, 1, 2, 1, 2, 0),
}


def test_nvswitch_is_two_links_each_way() -> None:
    found = load_topology("dgx-h100")
    assert found.path(0, 5).links == ("n0/gpu0>n0/nvswitch", "n0/nvswitch>n0/gpu5")
    assert found.path(5, 0).links == ("n0/gpu5>n0/nvswitch", "n0/nvswitch>n0/gpu0")


def test_hybrid_cube_mesh() -> None:
    found = load_topology("dgx1-v100")
    for a, row in CUBE.items():
        for b, links in enumerate(row):
            if a != b:
                path = found.path(a, b)
                assert path.kind == ("NVL" if links else "NVB")
                assert path.rate == 25e9 * links if links else path.rate in (25e9, 50e9)
    assert found.path(0, 7).links == ("n0/gpu0>n0/gpu4", "n0/gpu4>n0/gpu7")


def test_without_peer_access_copies_go_through_host_memory_twice() -> None:
    found = load_topology("rtx-4090-x4")
    path = found.path(0, 1)
    assert path.staged and path.kind == "PHB"
    assert path.links == (
        "n0/gpu0>n0/root0",
        "n0/root0>n0/socket0",
        "n0/dram@socket0",
        "n0/dram@socket0",
        "n0/socket0>n0/root1",
        "n0/root1>n0/gpu1",
    )
    assert path.loads[2] == ("n0/dram@socket0", 2)


def test_peer_access_ends_at_the_switch() -> None:
    found = load_topology("a100-pcie-x8")
    assert (found.path(0, 1).kind, found.path(0, 1).staged) == ("PIX", False)
    assert (found.path(0, 2).kind, found.path(0, 2).staged) == ("PHB", True)
    assert (found.path(0, 4).kind, found.path(0, 4).staged) == ("SYS", True)
    allowed = load_topology("a100-pcie-x8", ("p2p=SYS",))
    assert (allowed.path(0, 4).kind, allowed.path(0, 4).staged) == ("SYS", False)


def test_host_paths_end_at_a_copy_engine() -> None:
    found = load_topology("dgx-a100")
    there, back = found.host_path(0, True), found.host_path(0, False)
    assert there.links[0] == "n0/dram@numa3" and there.links[-1] == "n0/gpu0>n0/gpu0.h2d"
    assert back.links[0] == "n0/gpu0.d2h>n0/gpu0" and back.links[-1] == "n0/dram@numa3"
    assert there.rate == back.rate == 25e9 and not set(there.links) & set(back.links) - {"n0/dram@numa3"}


def test_grace_reaches_its_gpu_over_c2c() -> None:
    path = load_topology("gb200-nvl72").host_path(5, True)
    assert path.kind == "C2C" and path.rate == 360e9 and "n0/socket2>n0/gpu5" in path.links


def test_same_rail_is_one_leaf_and_another_rail_goes_over_nvlink_first() -> None:
    found = load_topology("4x dgx-h100")
    same, other = found.path(2, 10), found.path(2, 11)
    assert same.kind == "NET" and same.links == (
        "n0/gpu2>n0/sw2",
        "n0/sw2>n0/nic2",
        "n0/nic2>net/leaf0.2",
        "net/leaf0.2>n1/nic2",
        "n1/nic2>n1/sw2",
        "n1/sw2>n1/gpu2",
    )
    assert other.kind == "PXN" and other.links[:4] == ("n0/gpu2>n0/nvswitch", "n0/nvswitch>n0/gpu3", "n0/gpu3>n0/sw3", "n0/sw3>n0/nic3")


def test_without_nvlink_another_rail_goes_over_a_spine() -> None:
    found = load_topology("4x dgx-h100", ("without=nvswitch",))
    path = found.path(2, 11)
    assert path.kind == "NET" and path.links[3].startswith("net/leaf0.2>net/spine") and path.links[4].endswith(">net/leaf0.3")


def test_shifts_do_not_collide_on_spines() -> None:
    """d-mod-k routing: every rank of a pod sends to the next pod, and no uplink carries two flows."""
    found = load_topology("64x dgx-h100")
    links = [link for rank in range(256) for link in found.path(rank, rank + 256).links if "spine" in link]
    assert len(links) == 512 and len(set(links)) == 512


def test_trays_of_an_nvl72_that_are_nodes_of_their_own_meet_over_the_network() -> None:
    found = load_topology("18x gb200-nvl72:4")
    assert found.path(0, 1).kind == "NVL" and found.path(0, 4).kind == "NET"


def test_cpu_ranks_share_memory_and_take_turns_on_sockets() -> None:
    found = load_topology("2x cpu-host", ("ranks_per_node=4",))
    assert found.path(0, 2).links == ("n0/dram@socket0", "n0/dram@socket0")
    assert found.path(0, 1).links == ("n0/dram@socket0", "n0/dram@socket0", "n0/socket0>n0/socket1")
    assert found.path(0, 4).kind == "NET" and found.path(0, 4).links[0] == "n0/dram@socket0"
    assert found.device(0) == found.host(0) and found.cores(0) == 112


def test_a_rank_to_itself_crosses_nothing() -> None:
    path = load_topology("dgx-h100").path(3, 3)
    assert path.links == () and path.kind == "LOC" and path.latency == 0 and path.rate == 3.35e12


def test_ranks_that_do_not_exist() -> None:
    for rank in (-1, 8, 10**9):
        with pytest.raises(BadInput, match="ranks 0 to 7"):
            load_topology("dgx-h100").path(0, rank)


NAMES = (
    "3x dgx-h100",
    "dgx1-v100",
    "2x dgx2-v100",
    "2x aws-p4d",
    "3x a100-pcie-x8",
    "2x gb200-nvl72",
    "2x rtx-4090-x8",
    "2x cpu-host",
    "dgx-a100 + dgx-h100:4",
)
FOUND: dict[str, Topology] = {}


@pytest.mark.no_cover
@settings(deadline=None)
@given(name=st.sampled_from(NAMES), a=st.integers(0, 10**6), b=st.integers(0, 10**6))
def test_every_path_is_a_chain_of_known_links(name: str, a: int, b: int) -> None:
    found = FOUND.setdefault(name, load_topology(name))
    a, b = a % found.gpus, b % found.gpus
    path = found.path(a, b)
    ends = [link.split(">") for link in path.links if ">" in link]
    assert all(x[1] == y[0] for x, y in pairwise(ends))
    if a != b and found.kind == "cuda":
        assert (ends[0][0], ends[-1][1]) == (found.device_name(a), found.device_name(b))
    assert path.rate == min((found.rates[link] / times for link, times in path.loads), default=path.rate)
    assert path.latency == pytest.approx(sum(found.link(link).latency for link in path.links))
    back = found.path(b, a)
    assert len(back.links) == len(path.links) or path.kind in ("PXN", "NET")


def test_nics_are_shared_by_the_ranks_in_use() -> None:
    rates = [load_topology(f"2x aws-p4d:{used}").nic_of(0).rate for used in (1, 2, 8)]  # type: ignore[union-attr]
    assert rates == [12.5e9, 6.25e9, 6.25e9]
    assert load_topology("2x cpu-host:4").nic_of(5).rate == 3.125e9 / 4  # type: ignore[union-attr]


def test_a_single_copy_engine_serves_both_directions(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('[gpu]\nbase = "l4"\ncopy_engines = 1\n[tree]\nsocket0 = ["gpu0"]\n')
    found = load_topology(str(tmp_path / "one.toml"))
    there, back = found.host_path(0, True).links, found.host_path(0, False).links
    assert there[-1] == back[0] == "n0/copy@gpu0" and found.rates["n0/copy@gpu0"] == 25e9
    assert "n0/copy@gpu0" in found.graph()
