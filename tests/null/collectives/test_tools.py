"""What a published timing holds besides the collective, read from its row."""

import csv
from pathlib import Path

import msgspec
import pytest

from sim.accuracy.collectives.measuring import Tool, algorithm_of, source_of, tool_of
from sim.accuracy.collectives.timings import _timing, validate_collectives
from sim.cost.collective import best, collective_cost, group_shape, message_cost
from sim.cost.collective.table import collective_table
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
    [
        ("NCCL_NVLS_ENABLE=0", "auto"),
        ("no NVLS", "auto"),
        ("Tree (NVLS off)", "tree"),
        ("SHARP off", "auto"),
        ("without SHARP, ring", "ring"),
        ("NCCL_NVLS_ENABLE=1", "nvls"),
        ("Ring (NCCL_NVLS_ENABLE=0)", "ring"),
        ("NVLS", "nvls"),
        ("NVLSTree", "nvls"),
        ("SHARP", "collnet"),
        ("", "auto"),
        ("Tree", "tree"),
    ],
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


def test_racks_are_nodes_whatever_trays_a_row_counts(tmp_path: Path) -> None:
    with (tmp_path / "x.csv").open("w", newline="") as file:
        header = ("kind", "gpus", "nodes", "gpu", "message_bytes", "time_us")
        csv.writer(file).writerows([header, *(("all_reduce", n, n // 4, "NVIDIA GB200", 1 << 30, 1e4) for n in (8, 72, 144))])
    rows = validate_collectives(tmp_path / "x.csv")["rows"]
    assert [(row["span"], row["timings"]) for row in rows] == [("one node", 2), ("several nodes", 1)]


@pytest.mark.parametrize(("one", "other"), [("dgx-b200", "dgx-b300"), ("gb200-nvl72", "gb300-nvl72"), ("dgx-h100", "dgx-h200")])
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "all_to_all"])
def test_a_refresh_of_the_gpu_keeps_its_links_times(one: str, other: str, name: str) -> None:
    """The same generation of NVLink behind the same constants of NCCL: but for its clock B300 is no slower than B200, nor H200 than H100."""
    first, second = (group_shape(load_topology(machine), tuple(range(4))) for machine in (one, other))
    second = msgspec.structs.replace(second, clock=first.clock)
    for size in (1 << 9, 1 << 16, 1 << 20, 1 << 29):
        assert best(name, size, first).seconds == pytest.approx(best(name, size, second).seconds)


def test_a_message_is_one_peer_of_an_all_to_all() -> None:
    topology = load_topology("2x dgx-h100")
    near, far = message_cost(1 << 30, 0, 1, topology), message_cost(1 << 30, 0, 8, topology)
    pair = best("all_to_all", 1 << 31, group_shape(topology, (0, 1))).seconds
    assert 0.6 * pair < near.seconds < pair and near.seconds < far.seconds
    small, large = (message_cost(size, 0, 8, topology).latency for size in (1 << 14, 1 << 15))
    assert small < large < 3 * small


def _measured(**cells: str) -> float:
    """Predicted seconds of one timing of 4 GiB on an H200 node."""
    row = {"kind": "all_reduce", "gpus": "8", "gpu": "H200", "message_bytes": str(4 << 30), "time_us": "20000", "algo": "", "inter_net": ""}
    return _timing(row | cells, "given").predicted


def test_what_a_row_denies_is_not_predicted() -> None:
    """Without NVLS a node has rings and trees; kinds are known by the names of the tools."""
    ring, nvls = _measured(algo="Ring"), _measured(algo="NVLS")
    assert nvls < _measured(algo="NVLS off") <= ring
    assert _measured(kind="all-reduce") == _measured() == _measured(kind="AllReduce")
    assert _measured(kind="ReduceScatter") == _measured(kind="reduce_scatter")


@pytest.mark.parametrize(
    ("gpu", "gpus", "nodes", "machine"),
    [
        ("NVIDIA H100 80GB HBM3", 8, 1, "dgx-h100"),
        ("NVIDIA H100 NVL", 2, 1, "h100-nvl-x8"),
        ("NVIDIA H20", 8, 1, "dgx-h100"),
        ("NVIDIA L40", 4, 1, "l40s-x8"),
        ("AMD Instinct MI355X", 8, 1, "mi355x-x8"),
        ("NVIDIA VR200", 72, 18, "vr200-nvl72"),
        ("NVIDIA H200", 2, 2, "2x dgx-h200:1"),
        ("NVIDIA GB200", 72, 18, "gb200-nvl72"),
        ("NVIDIA GB200", 1440, 360, "20x gb200-nvl72:72"),
    ],
)
def test_a_timing_is_of_the_machine_that_a_step_would_be_of(gpu: str, gpus: int, nodes: int, machine: str) -> None:
    row = {"kind": "all_reduce", "gpus": str(gpus), "nodes": str(nodes), "gpu": gpu, "message_bytes": "65536", "time_us": "40"}
    found = _timing(row, "mine.csv")
    assert found.machine == machine and found.shape.nodes == (20 if gpus > 72 else 2 if nodes == 2 else 1)


def test_the_link_of_a_gpu_that_stands_in_is_the_timings() -> None:
    """H20 has H100's links: the same time. H800 has less than half of them."""
    row = {"kind": "all_reduce", "gpus": "8", "message_bytes": str(1 << 30), "time_us": "4000"}
    h100, h20, h800 = (_timing({**row, "gpu": gpu}, "mine.csv").predicted for gpu in ("H100", "H20", "H800"))
    assert h20 == pytest.approx(h100) and h800 > 1.5 * h100


def test_a_send_of_the_table_is_one_message() -> None:
    """From the first rank to the last, by one GPU's NICs: not by all of a node's."""
    found = collective_table("send", "1 GiB", "2x dgx-h100")
    topology = load_topology("2x dgx-h100")
    assert found["ranks"] == 2
    assert found["rows"][-1]["time_us"] == pytest.approx(1e6 * message_cost(1 << 30, 0, 15, topology).seconds)
