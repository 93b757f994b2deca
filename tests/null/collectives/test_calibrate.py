"""Calibration finds the links of the machine that a run of nccl-tests came from."""

from pathlib import Path

import pytest

from sim.cost.collective import collective_cost
from sim.cost.ncclimport import calibrate
from topologies.errors import BadInput
from topologies.load import load_topology


def _run(path: Path, topology: str, edits: tuple[str, ...], ranks: tuple[int, ...], each: int) -> Path:
    """The output of nccl-tests that a machine would print if the cost model were right."""
    made = load_topology(topology, edits)
    lines = ["# Collective test starting: all_reduce_perf"]
    lines += [f"#  Rank {i:2} Group  0 Pid {100 + i} on host{i // each} device {i % each} [0x0f] GPU" for i in range(len(ranks))]
    for size in [1 << power for power in range(10, 33, 2)]:
        micro = collective_cost("all_reduce", size, ranks, made).seconds * 1e6
        lines.append(f"  {size}  {size // 4}  float  sum  -1  {micro:.2f}  1.00  1.00  0  {micro:.2f}  1.00  1.00  0")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("topology", "hidden", "nodes", "each"),
    [
        ("dgx-a100", ("link.nvlink.rate=200 GB/s",), 1, 8),
        ("l40s-x8", ("link.pcie.rate=14 GB/s",), 1, 2),
        ("2x dgx-a100", ("nic.rate=100 Gbit/s", "link.net.latency=20 us"), 2, 8),
        ("2x aws-p5", ("nic.rate=50 Gbit/s",), 2, 8),  # of each of four ports
    ],
)
def test_the_hidden_link_is_found(tmp_path: Path, topology: str, hidden: tuple[str, ...], nodes: int, each: int) -> None:
    made = load_topology(topology, hidden)
    ranks = tuple(range(nodes * each))
    found = calibrate(_run(tmp_path / "run.txt", topology, hidden, ranks, each), topology)
    assert found.before > 0.1 > 0.03 > found.after
    fitted = load_topology(topology, found.edits)
    a, b = ranks[0], ranks[-1]
    assert fitted.path(a, b).rate == pytest.approx(made.path(a, b).rate, rel=0.1)
    assert found.table[0]["bytes"] == 1024 and all(abs(float(str(row["error_after"]))) < 0.2 for row in found.table)


def test_where_the_machine_is_right_nothing_gets_worse(tmp_path: Path) -> None:
    found = calibrate(_run(tmp_path / "run.txt", "dgx-h100", (), tuple(range(8)), 8), "dgx-h100")
    assert found.after <= found.before + 1e-9 < 0.01


def test_a_machine_that_is_too_small_is_refused(tmp_path: Path) -> None:
    path = _run(tmp_path / "run.txt", "2x dgx-h100", (), tuple(range(16)), 8)
    with pytest.raises(BadInput, match="16 ranks on 2 hosts"):
        calibrate(path, "dgx-h100")
    with pytest.raises(BadInput, match="cannot be read"):
        calibrate(tmp_path / "none.txt", "dgx-h100")
