"""Tables of accuracy: each with its target and with a baseline that knows less."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sim.accuracy import tables
from sim.accuracy.kernels import KernelScore
from sim.accuracy.neusight import Label, roofline_seconds
from sim.accuracy.training import validate_training
from sim.work import Gemm, MemoryBound
from topologies.devices import gpu


@pytest.mark.no_cover
def test_peaks_of_what_was_allocated_are_within_the_target() -> None:
    table = {row["source"]: row for row in tables._peaks()}
    found = table["simumax-b200"]
    assert found["rows"] == 35 and found["target"] == tables.PEAKS
    assert isinstance(found["mape"], float) and isinstance(found["states_only"], float)
    assert found["mape"] <= tables.PEAKS < found["states_only"]
    assert table["torchtitan"]["target"] == "-"


def test_a_roofline_is_the_slower_of_units_and_memory() -> None:
    a100 = gpu("a100-sxm-80gb")
    product, copy = Gemm(4096, 4096, 4096, dtype="fp32"), MemoryBound("copy", 1 << 28, 1 << 28, dtype="fp32")
    assert roofline_seconds([product], a100) == pytest.approx(2 * 4096**3 / a100.flops["fp32"])
    assert roofline_seconds([product, copy], a100) == pytest.approx(2 * 4096**3 / a100.flops["fp32"] + copy.bytes / a100.bandwidth)


@pytest.mark.no_cover
def test_what_ships_is_scored_where_the_measurements_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "validate_training", partial(validate_training, limit=4))
    told: list[str] = []
    found = tables.accuracy_tables(tmp_path, workers=1, say=told.append)
    assert {"peak memory", "published steps", "published steps by GPU"} <= set(found) and "kernels" not in found
    assert any("is absent" in text for text in told)
    (whole,) = found["published steps"]
    assert whole["rows"] == 4 and whole["target"] == tables.STEPS and {"mape", "baseline", "in_interval"} <= set(whole)
    assert len(found["furthest off"]) == 4
    assert sum(row["rows"] for row in found["published steps by source"]) == 4


def score(kind: str, gpu: str, error: float) -> KernelScore:
    return KernelScore(kind=kind, gpu=gpu, dtype="bf16", rows=9, median=error, p90=2 * error, bias=0.0, left_out=3 * error,
                       left_out_from="other", roofline=0.5, roofline_p90=0.9)  # fmt: skip


def test_tables_of_kernels_and_passes_stand_beside_their_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the measurements are there: each kind's median over its GPUs, its worst, and what is aimed at."""
    for name in ("facts", "groundtruth"):
        (tmp_path / name).mkdir()
    (tmp_path / "groundtruth" / "collectives.csv").write_text(
        "kind,gpus,gpu,message_bytes,time_us\nall_reduce,8,NVIDIA H100 SXM,1073741824,4800\n"
    )
    scores = [score("gemm", "h100-sxm", 0.05), score("gemm", "a100-sxm-80gb", 0.07), score("attention", "h100-sxm", 0.2)]
    labels = [
        Label(gpu=gpu, case="m", training=training, measured=1.0, predicted=1.1, roofline=0.5)
        for gpu, training in (("a100", True), ("t4", True), ("t4", False))
    ]
    monkeypatch.setattr("sim.accuracy.kernels.kernel_scores", lambda facts: scores)
    monkeypatch.setattr("sim.accuracy.neusight.neusight_labels", lambda facts: labels)
    monkeypatch.setattr(tables, "validate_training", partial(validate_training, limit=3))
    found = tables.accuracy_tables(tmp_path, workers=1)
    gemm, attention = found["kernels"]
    assert (gemm["gpus"], gemm["median_ape"], gemm["worst_gpu"]) == (2, 0.06, "a100-sxm-80gb")
    assert (gemm["target"], gemm["left_out_target"]) == tables.KERNELS["gemm"] and attention["left_out_target"] == "-"
    passes = {row["gpu"]: row for row in found["passes (NeuSight, training)"]}
    assert passes["all"]["target"] == tables.PASSES and passes["t4"]["target"] == "-"
    (row,) = found["collectives"]
    assert (row["collective"], row["timings"], row["target"]) == ("all_reduce", 1, 0.1)
