"""The scorer of collectives: quantiles, groups, files, and what is judged."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.accuracy.collectives.timings import target, validate_collectives
from sim.cost.collective import message_cost
from sim.cost.collective.rates import params
from sim.quantile import quantile
from topologies.errors import BadInput
from topologies.load import load_topology

HEADER = ("kind", "gpus", "nodes", "gpu", "system", "message_bytes", "time_us")


def _write(path: Path, rows: Sequence[tuple[object, ...]], header: tuple[str, ...] = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=40), st.floats(0.0, 1.0))
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9, abs=1e-9)


def test_rows_are_split_and_badly_placed_hosts_are_not_judged(tmp_path: Path) -> None:
    rows = [("all_reduce", n, 1, "NVIDIA L40S", "l40s", 1 << 24, 2000.0) for n in (2, 4, 8)]
    rows += [("all_reduce", 16, 2, "H100", "AWS p5", size, 500.0) for size in (1 << 12, 1 << 24)]
    found = validate_collectives(_write(tmp_path / "collectives.csv", rows))["rows"]
    assert [(row["gpu"][:6], row["span"], row["size"], row["timings"]) for row in found] == [
        ("H100", "several nodes", "< 1 MiB", 1),
        ("H100", "several nodes", ">= 1 MiB", 1),
        ("L40S n", "one node", ">= 1 MiB", 1),
        ("L40S n", "one node", ">= 1 MiB", 2),
    ]
    assert [row["target"] for row in found] == [0.25, 0.15, 0.10, None] and found[3]["met"] is None


def test_a_file_beside_is_scored_in_its_own_rows(tmp_path: Path) -> None:
    main = _write(tmp_path / "groundtruth" / "collectives.csv", [("all_reduce", 8, 1, "H100", "h100", 1 << 24, 100.0)])
    header = ("system", "op", "nodes", "n_gpus", "bytes", "time_us")
    _write(tmp_path / "facts" / "nccl_other_measured.csv", [("aws_p5_h100_efa3200", "alltoall", 2, 16, 1 << 25, 700.0)], header)
    found = validate_collectives(main)["rows"]
    assert {(row["collective"], row["file"]) for row in found} == {
        ("all_reduce", "collectives.csv"),
        ("all_to_all", "nccl_other_measured.csv"),
    }


def test_ranks_that_send_to_the_next_wait_for_the_longest_way(tmp_path: Path) -> None:
    """nccl-tests' sendrecv: over nodes the NIC of one GPU, on a DGX-1 two GPUs with one link. (Such rows were refused.)"""
    rows = [
        ("sendrecv", gpus, nodes, gpu, "dgx", 1 << 26, 1e3) for gpus, nodes, gpu in ((8, 1, "H100"), (16, 2, "H100"), (8, 1, "V100 DGX-1"))
    ]
    found = validate_collectives(_write(tmp_path / "collectives.csv", rows))
    assert found["scored"] == 3 and found["refused"] == []
    seconds = {(row["gpu"], row["span"]): 1e-3 * (1.0 + row["bias"]) for row in found["rows"]}
    near, far = (message_cost(1 << 26, 0, peer, load_topology("2x dgx-h100")).seconds for peer in (1, 8))
    assert seconds["H100", "one node"] == pytest.approx(near, rel=1e-3) and seconds["H100", "several nodes"] == pytest.approx(far, rel=1e-3)
    cube = [message_cost(1 << 26, rank, (rank + 1) % 8, load_topology("dgx1-v100")).seconds for rank in range(8)]
    assert seconds["V100", "one node"] == pytest.approx(max(cube), rel=1e-3) and max(cube) > 1.9 * min(cube)


def test_targets_are_those_of_the_span_and_the_size() -> None:
    assert (target("H100", "one node", True), target("H100", "several nodes", True), target("H100", "one node", False)) == (
        0.10,
        0.15,
        0.25,
    )


def test_files_without_the_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="message_bytes"):
        validate_collectives(_write(tmp_path / "x.csv", [("a", 1)], ("kind", "gpus")))
    with pytest.raises(BadInput, match=r"absent\.csv cannot be read"):  # a root has no folder above it
        validate_collectives(Path(tmp_path.anchor) / "absent.csv")


@pytest.mark.no_cover
def test_left_out_types_cost_more_and_the_parameters_come_back(tmp_path: Path) -> None:
    rows = [
        ("all_reduce", n, 1, gpu, gpu.lower(), size, 20.0 * n) for gpu in ("A100", "H100") for n in (2, 8) for size in (1 << 12, 1 << 22)
    ]
    path = _write(tmp_path / "collectives.csv", rows)
    before = json.dumps(params(), sort_keys=True)
    first = validate_collectives(path)["rows"]
    assert json.dumps(params(), sort_keys=True) == before
    assert validate_collectives(path)["rows"] == first
    assert any(row["left_out"] != row["median_ape"] for row in first) and all(row["left_out"] >= 0 for row in first)
