"""CPU hosts and trays: what needs no GPU, and what is joined by less than a tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topologies.errors import BadInput
from topologies.load import load_topology
from topologies.summary import summary
from topologies.thismachine import document

TRAYS = """
gpu = "h100-sxm"
nic = "ethernet-100g"
[tree]
tray0 = ["socket0"]
tray1 = ["socket1"]
socket0 = ["gpu0", "nic0"]
socket1 = ["gpu1"]
[nvlink]
mesh = "all"
"""


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_cpu_host_needs_no_tree(tmp_path: Path) -> None:
    found = load_topology(write(tmp_path, "host.toml", 'kind = "cpu"\ncpu = "xeon-8480c"\nranks = 4\n'))
    assert (found.kind, found.gpus, len(found.sockets(0)), found.cores(0)) == ("cpu", 4, 1, 56)
    assert found.path(0, 3).links == ("n0/dram@socket0",) * 2 and found.path(0, 3).staged
    assert found.path(0, 3).rate == found.host(0).bandwidth / 2
    assert found.host_path(2, True) == found.host_path(2, False)


def test_hosts_with_one_and_two_ports_on_two_rails(tmp_path: Path) -> None:
    """From the port that a host has, over a spine to the rail that it has not."""
    one = write(tmp_path, "one.toml", 'kind = "cpu"\nranks = 2\nnic = "ethernet-10g"\n[tree]\nsocket0 = ["nic0"]\n')
    two = write(tmp_path, "two.toml", 'kind = "cpu"\nranks = 2\nnic = "ethernet-10g"\n[tree]\nsocket0 = ["nic0", "nic1"]\n')
    found = load_topology(f"2x {one} + 2x {two}", ("rails=2",))
    near, far = found.path(0, 2), found.path(1, 6)
    assert near.links[2:4] == ("n0/nic0>net/leaf0.0", "net/leaf0.0>n1/nic0")
    assert {found.path(0, rank).rate for rank in (2, 4, 6)} == {1.25e9}
    back = found.path(6, 0)
    assert [link for link in back.links if "net/" in link] == ["n3/nic0>net/leaf0.0", "net/leaf0.0>n0/nic0"]
    assert far.kind == "NET" and far.links[-1] == "n3/dram@socket0"
    third = [found.path(rank, 4) for rank in (2, 3)]  # node 1 sends to node 2's second port
    assert all("n2/nic1" in path.links[-3] and "net/spine" in path.links[3] for path in third)


def test_the_graph_of_hosts_on_one_leaf_has_no_spine() -> None:
    kinds = {data["kind"] for _, data in load_topology("2x cpu-host").graph().nodes(data=True)}
    assert "leaf" in kinds and "spine" not in kinds and "gpu" not in kinds


def test_trays_joined_by_nvlink_alone(tmp_path: Path) -> None:
    """One node of them trains; where the network is needed, the GPU that reaches no NIC is named."""
    trays = write(tmp_path, "trays.toml", TRAYS)
    found = load_topology(trays)
    assert found.path(0, 1).kind == "NVL" and found.nic_of(1) is None and found.nics(1) == ()
    assert [nic.name for nic in found.nics(0)] == ["ethernet-100g"]
    with pytest.raises(BadInput, match="gpu1 reaches no NIC"):
        load_topology(f"2x {trays}")
    with pytest.raises(BadInput, match="disconnected"):
        load_topology(trays, ("without=nvlink",))


def test_gpus_that_only_others_join(tmp_path: Path) -> None:
    """NVLink goes over one GPU in between, not over three: what is further apart needs the network, and there is none."""
    sockets = [f'tray{i} = ["socket{i}"]\nsocket{i} = ["gpu{i}"]\n' for i in range(5)]
    text = f'gpu = "h100-sxm"\n[tree]\n{"".join(sockets)}[nvlink]\nmesh = [[0, 1, 4], [0, 2, 4], [1, 3, 4], [2, 4, 4]]\n'
    found = load_topology(write(tmp_path, "star.toml", text))
    assert [found.path(0, rank).kind for rank in (1, 2, 3, 4)] == ["NVL", "NVL", "NVB", "NVB"]
    with pytest.raises(BadInput, match=r"gpu[34] of machine 'star' is disconnected: it reaches no NIC"):
        found.path(3, 4)


def test_sockets_that_nothing_joins(tmp_path: Path) -> None:
    trays = 'kind = "cpu"\nranks = 4\nnic = "ethernet-10g"\n[tree]\ntray0 = ["socket0"]\ntray1 = ["socket1"]\nsocket0 = ["nic0"]\n'
    found = load_topology(write(tmp_path, "apart.toml", trays + "socket1 = []\n"))
    assert found.path(0, 2).kind == "PHB"
    with pytest.raises(BadInput, match="socket1 and nic0 are not joined"):
        found.path(0, 1)


def test_a_summary_tells_of_the_first_rank() -> None:
    host, gpu = summary(load_topology("2x cpu-host")), summary(load_topology("dgx-h100"))
    assert "peak TFLOP/s" not in host and gpu["peak TFLOP/s"]["bf16"] == pytest.approx(989, abs=1)
    assert host["paths from rank 0"]["NET"].startswith("rank ")
    assert host["paths from rank 0"]["PHB"].endswith("through host memory")
    assert set(gpu["paths from rank 0"]) == {"NVL"} and gpu["nics"] == {"ib-ndr-400g": 8}


def test_a_summary_without_a_source(tmp_path: Path) -> None:
    assert "source" not in summary(load_topology(write(tmp_path, "trays.toml", TRAYS)))
    assert summary(load_topology("dgx-h100"))["source"]


def test_a_topology_says_what_it_is() -> None:
    assert repr(load_topology("2x dgx-h100")) == "Topology('2x dgx-h100', nodes=2, ranks=16)"
    assert load_topology("dgx-h100").device(0).kind == "cuda" and load_topology("cpu-host").device(0).kind == "cpu"


def test_a_system_that_tells_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc and without the size of memory there is still a host."""

    def unknown(name: str) -> int:
        raise ValueError(name)

    def absent(self: Path, **_: object) -> str:
        raise FileNotFoundError(self)

    assert "memory" in document()["cpu"]  # type: ignore[operator]
    monkeypatch.setattr(os, "sysconf", unknown)
    monkeypatch.setattr(Path, "read_text", absent)
    found = document()
    assert "memory" not in found["cpu"] and found["sockets"] == 1  # type: ignore[operator]
