"""Tables of accuracy: each with its target and with a baseline that knows less."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sim.accuracy import tables
from sim.accuracy.neusight import roofline_seconds
from sim.accuracy.training import validate_training
from sim.work import Gemm, MemoryBound
from topologies.devices import gpu


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
