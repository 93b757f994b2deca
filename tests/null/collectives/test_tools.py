"""What a published timing holds besides the collective, read from its row."""

import csv
from pathlib import Path

import pytest

from sim.accuracy.collectives import validate_collectives
from sim.accuracy.collectives_tools import Tool, algorithm_of, source_of, tool_of
from sim.cost.collective import best, collective_cost, group_shape
from sim.cost.host import host_seconds
from topologies.errors import Refused
from topologies.load import load_topology


def test_a_tool_adds_and_bounds() -> None:
    assert Tool().seconds(3.0) == 3.0 and Tool(added=1.0).seconds(3.0) == 4.0 and Tool(least=5.0).seconds(3.0) == 5.0


def test_tools_are_told_by_their_columns() -> None:
    topology = load_topology("azure-nd-a100-v4")
    cpu = topology.host(0)
    torch = tool_of({"lib": "torch all_reduce_bench.py (RCCL)"}, topology, 8)
    assert torch == Tool(added=host_seconds("collective", "light", cpu))
    one_thread = tool_of({"source": "Azure/AI-benchmarking-guide Azure_Results (MIT), nccl-tests"}, topology, 8)
    assert one_thread == Tool(least=8 * host_seconds("kernel", "light", cpu))
    assert tool_of({"lib": "NCCL (nccl-tests)"}, topology, 8) == Tool()


@pytest.mark.parametrize(
    ("told", "name"),
    [("Ring (NCCL_NVLS_ENABLE=0)", "ring"), ("NVLS", "nvls"), ("NVLSTree", "nvls"), ("SHARP", "collnet"), ("", "auto"), ("Tree", "tree")],
)
def test_algorithms_of_rows_are_ours(told: str, name: str) -> None:
    assert algorithm_of({"algo": told}) == name


def test_a_publisher_has_one_name_in_every_file() -> None:
    named = {source_of({"source_id": "ml-engineering"}), source_of({"source": "stas00/ml-engineering network/README.md"})}
    assert named == {"ml-engineering"} and source_of({}) == "unnamed" and source_of({"source_id": "mine"}) == "mine"


def test_rows_are_scored_with_their_tool_and_algorithm(tmp_path: Path) -> None:
    topology = load_topology("dgx-h100")
    ring = best("all_reduce", 1 << 33, group_shape(topology, tuple(range(8))), "ring").seconds
    small = collective_cost("all_reduce", 1 << 10, tuple(range(8)), topology).seconds
    late = host_seconds("collective", "light", topology.host(0))
    header = ("kind", "gpus", "gpu", "message_bytes", "time_us", "algo", "lib")
    rows = [
        ("all_reduce", 8, "H100", 1 << 33, ring * 1e6, "Ring (NCCL_NVLS_ENABLE=0)", ""),
        ("all_reduce", 8, "H100", 1 << 10, (small + late) * 1e6, "PAT", "torch all_reduce_bench.py"),
    ]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    assert [row["median_ape"] for row in validate_collectives(tmp_path / "x.csv")["rows"]] == pytest.approx([0.0, 0.0], abs=1e-4)


def test_sharp_is_for_infiniband_and_asked_for() -> None:
    infiniband, efa = (group_shape(load_topology(name), tuple(range(64))) for name in ("8x dgx-h100", "8x aws-p5"))
    sharp = best("all_reduce", 1 << 33, infiniband, "collnet")
    assert sharp.algorithm == "collnet" and sharp.seconds < best("all_reduce", 1 << 33, infiniband).seconds
    assert (1 << 33) / sharp.seconds <= infiniband.inter
    with pytest.raises(Refused, match="SHARP"):
        best("all_reduce", 1 << 33, efa, "collnet")


def test_one_rank_on_each_node_gathers_by_trees_where_the_ring_is_long() -> None:
    topology = load_topology("64x aws-p5")  # EFA: no LL, so each hop of a ring is a Simple one
    shape = group_shape(topology, tuple(range(0, 512, 8)), siblings=8)
    assert best("all_gather", 1 << 10, shape).algorithm == "pat"
    assert best("all_gather", 1 << 32, shape).algorithm == "ring"
    with pytest.raises(Refused, match="one rank"):
        best("all_gather", 1 << 10, group_shape(topology, tuple(range(16))), "pat")
