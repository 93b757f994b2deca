"""What `steptwin topology show` says, to programs and to people: one set of facts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from reports.pages.topology import topology_page
from topologies.load import load_topology
from topologies.summary import facts, summary
from topologies.units import show_rate, show_size

MACHINES = ("dgx-h100", "4x dgx-h100", "2x cpu-host", "2x dgx-h100 + dgx-a100", "h100-pcie-x8")


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, path)
    else:
        yield path, value


@pytest.mark.parametrize("name", MACHINES)
def test_keys_are_words_without_blanks_and_quantities_are_numbers(name: str) -> None:
    for path, value in _leaves(facts(load_topology(name))):
        keys = [key for key in path.split(".") if not path.startswith("nics.")]  # by the names of their boards
        assert all(re.fullmatch(r"[a-z0-9_]+", key) for key in keys), path
        if path.rpartition(".")[2] not in ("name", "device", "link", "kind", "source"):
            assert value is None or isinstance(value, (int, float)), path


@pytest.mark.parametrize("name", MACHINES)
def test_words_are_of_the_same_facts(name: str) -> None:
    machine = load_topology(name)
    said, found = summary(machine), facts(machine)
    assert said["memory"] == show_size(found["memory_bytes"])
    assert [row["rate"] for row in said["rows"]] == [show_rate(row["bytes_per_s"]) for row in found["rows"]]
    assert set(said.get("paths from rank 0", {})) == {path["kind"] for path in found["paths"]}
    assert ("network" in said) == (machine.nodes > 1) == (found["network"] is not None)
    assert sum(run["nodes"] for run in found["machines"]) == machine.nodes


def test_a_dgx_in_numbers() -> None:
    found = facts(load_topology("2x dgx-h100"))
    assert found["peak_flops_per_s"]["bf16"] == 989e12
    assert [(path["kind"], path["rank"], path["bytes_per_s"]) for path in found["paths"]] == [("NVL", 1, 450e9), ("NET", 8, 50e9)]
    assert found["network"] == {"rails": 8, "leaf_nodes": 32, "spines": 32, "oversubscription": 1.0}
    assert {"link": "net", "count": 8, "bytes_per_s": 50e9, "latency_s": 6e-7} in found["rows"]


def test_what_was_changed_about_a_machine_stands_in_its_table_and_on_its_page() -> None:
    changed = load_topology("4x dgx-h100", ("link.nvlink.rate=200 GB/s", "without=spine"))
    assert summary(changed)["changed by"] == "link.nvlink.rate=200 GB/s, without=spine" and "changed by" not in summary(
        load_topology("dgx-h100")
    )
    assert "4x dgx-h100 with link.nvlink.rate=200 GB/s, without spine" in topology_page(changed)


def test_ranks_of_a_cpu_host_share_its_memory() -> None:
    """64 ranks of 1 TiB each, said the page of a host that has 2 TiB."""
    page = topology_page(load_topology("cpu-host"))
    assert "<b>64</b><span>ranks of a node</span><i>processes that share its cores and memory</i>" in page
    assert "<b>2 x xeon-8480c</b><span>host</span><i>112 cores; 1 TiB each" in page
    assert "<b>8 x h100-sxm</b><span>ranks of a node</span><i>79.18 GiB each" in topology_page(load_topology("dgx-h100"))
