"""A longer wire is felt by whatever crosses it, whichever way NCCL goes."""

from __future__ import annotations

import pytest

from sim.cost.collective import collective_cost, message_cost
from topologies.load import load_topology

WAYS = [
    ("all_reduce", "auto"),
    ("all_reduce", "nvls"),
    ("all_gather", "nvls"),
    ("all_gather", "auto"),
    ("all_to_all", "auto"),
    ("broadcast", "auto"),
]


@pytest.mark.parametrize("on", ["dgx-h100", "2x dgx-h100", "dgx1-v100"])
@pytest.mark.parametrize(("name", "algorithm"), WAYS)
@pytest.mark.parametrize("size", [1024, 2**30])
def test_longer_nvlinks_make_every_collective_slower(on: str, name: str, algorithm: str, size: int) -> None:
    if algorithm == "nvls" and on != "dgx-h100":
        pytest.skip("NVLS of one node with switches")
    usual, long = (load_topology(on, edits) for edits in ((), ("link.nvlink.latency=1 ms",)))
    before, after = (collective_cost(name, size, tuple(range(machine.gpus)), machine, algorithm).seconds for machine in (usual, long))
    assert after > before + 1e-3


def test_sharp_waits_for_the_switches_of_the_nodes() -> None:
    usual, long = (load_topology("4x dgx-h100", edits) for edits in ((), ("link.nvlink.latency=1 ms",)))
    ranks = tuple(range(32))
    assert (
        collective_cost("all_reduce", 2**20, ranks, long, "collnet").seconds
        > 3e-3
        > collective_cost("all_reduce", 2**20, ranks, usual, "collnet").seconds
    )


def test_a_message_waits_for_its_wires() -> None:
    """Two links of 1 ms, in place of 0.7 us each."""
    usual, long = (load_topology("dgx-h100", edits) for edits in ((), ("link.nvlink.latency=1 ms",)))
    found = message_cost(2**20, 0, 1, long).seconds - message_cost(2**20, 0, 1, usual).seconds
    assert found == pytest.approx(2 * (1e-3 - 0.7e-6), rel=0.2)
