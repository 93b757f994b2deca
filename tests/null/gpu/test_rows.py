"""Rows of the GPU table: kept, read again, summed up, drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from executor.nvml import clocks, device_facts, first_gpu
from executor.validation.gpu_rows import OpClass, Row, classes_of, key_of, ops_within, rates, read_row, summary, write_row
from reports.pages.gpu import gpu_page, main
from sim.align import ClassError, Comparison, Measured, Pair
from sim.cost.calibration import Calibration, Sample
from sim.files.planfile import load_plan
from sim.files.runs import environment
from sim.files.schema import check


def _row(name: str, **more: Any) -> Row:
    return Row(plan=name, kind="GPT-2", model="gpt2-124m", ranks=1, **more)


def _measured(seconds: float) -> Measured:
    return Measured(seconds, 0.9 * seconds, 1.2 * seconds, 9)


def _pair(cls: str, predicted: float, measured: float, kind: str = "compute") -> Pair:
    return Pair(f"r0/{cls}", 0, "compute", cls, kind, predicted, measured)


def test_a_row_is_read_again_only_where_it_was_made_of_the_same(tmp_path: Path) -> None:
    row = _row("a", key="k", uncalibrated=0.02, stock=_measured(0.021), refused={"played": "no"})
    write_row(tmp_path, row)
    assert read_row(tmp_path, "k") == row
    assert read_row(tmp_path, "other") is None
    write_row(tmp_path, _row("a", key="k", failed={"stock": "out of memory"}))
    assert read_row(tmp_path, "k") is None, "what failed is tried again"
    (tmp_path / "row.json").write_text("{")
    assert read_row(tmp_path, "k") is None
    assert read_row(tmp_path / "absent", "k") is None


def test_the_key_names_plan_device_and_versions() -> None:
    plan, other = load_plan({"model": "gpt2-124m"}), load_plan({"model": "gpt2-124m", "seq_len": 512})
    assert key_of(plan, "h100-sxm", "2.11") == key_of(plan, "h100-sxm", "2.11")
    assert len({key_of(plan, "h100-sxm"), key_of(other, "h100-sxm"), key_of(plan, "h200-sxm")}) == 3


def test_errors_are_against_stock_where_there_is_such() -> None:
    both = _row("a", uncalibrated=1.1, calibrated=0.98, played_predicted=0.98, played=_measured(0.95), stock=_measured(1.0))
    played = _row("b", uncalibrated=1.2, calibrated=1.0, played_predicted=1.05, played=_measured(1.0))
    dead = _row("c", uncalibrated=1.0, failed={"stock": "rank 0 stopped with OutOfMemoryError"})
    found = summary([both, played, dead])
    assert (found.plans, found.measured) == (3, 2)
    assert found.uncalibrated == pytest.approx((0.1 + 0.2) / 2)
    assert found.calibrated == pytest.approx((0.02 + 0.05) / 2)
    assert found.against_played == pytest.approx((0.98 / 0.95 - 1 + 0.05) / 2)
    assert found.failed == {"c": "stock: rank 0 stopped with OutOfMemoryError"}
    assert summary([]).calibrated is None


def _calibration() -> Calibration:
    def row(name: str, dtype: str, shape: tuple[int, ...], seconds: float) -> Sample:
        return Sample(name, dtype, shape, seconds, seconds, seconds, 9)

    tables = {
        "gemm": (row("fwd", "bf16", (1000, 1000, 1000), 1e-5), row("fwd", "bf16", (10, 10, 10), 1e-5)),
        "copy": (row("h2d.pinned", "", (1 << 20,), 2e-5),),
        "host": (row("kernel", "", (), 5e-6),),
        "collective": (row("all_reduce", "", (8, 1 << 20), 1e-4),),
    }
    return Calibration(device="cuda", date="", machine="", cores=16, ranks=1, threads=1, tables=tables)


def test_the_best_rate_of_each_kind() -> None:
    assert rates(_calibration()) == pytest.approx({
        "gemm bf16 FLOP/s": 2e14, "copy h2d.pinned bytes/s": 2**20 / 2e-5, "launches/s": 2e5, "all_reduce over 8 algbw bytes/s": 2**20 / 1e-4,
    })  # fmt: skip


def test_without_a_calibration_nothing_counts_as_calibrated() -> None:
    row = _row("a", uncalibrated=1.0, played_predicted=1.0, played=_measured(1.0))
    assert row.error("calibrated", "played") is None and row.error("uncalibrated", "played") == 0.0


def test_share_of_the_time_in_ops_that_is_right() -> None:
    pairs = (_pair("gemm", 1.05, 1.0), _pair("norm", 2.0, 1.0), _pair("host", 9.0, 1.0, "host"))
    found = Comparison(1.0, _measured(1.0), (), pairs)
    assert ops_within(found) == pytest.approx(0.5)
    assert ops_within(Comparison(1.0, _measured(1.0), ())) is None


def test_classes_stand_side_by_side() -> None:
    plain = Comparison(1.0, _measured(1.0), (ClassError("gemm", 1.0, 2.0, 3),))
    good = Comparison(1.0, _measured(1.0), (ClassError("gemm", 1.9, 2.0, 3),))
    stock = Comparison(1.0, _measured(1.0), (ClassError("gemm", 1.9, 2.2, 3), ClassError("loss", 0.1, 0.3, 1)))
    assert classes_of(plain, good, stock) == (
        OpClass(cls="gemm", uncalibrated=1.0, calibrated=1.9, played=2.0, stock=2.2),
        OpClass(cls="loss", calibrated=0.1, stock=0.3),
    )


def test_the_page_and_the_summary_hold_forty_rows_in_little_space() -> None:
    classes = tuple(OpClass(cls=name, uncalibrated=1e-3, calibrated=1.1e-3, played=1.2e-3, stock=1.3e-3) for name in "abcdefgh")
    rows = [
        _row(f"plan-{i}", uncalibrated=0.02, calibrated=0.021, played_predicted=0.021, played=_measured(0.02), stock=_measured(0.022),
             classes=classes, ops_within=0.8, clocks={"sm_mhz": 1980.0}, made_with={"driver": f"57{i}.1", "torch": "2.11", "commit": ""})
        for i in range(40)
    ]  # fmt: skip
    rows.append(_row("<dead>", failed={"plan": "needs <90> GiB"}, refused={"stock": "no encoder"}))
    found = {
        "device": {"name": "H200", "driver": "570"}, "gpus": 1, "environment": environment(), "steps": 30, "probed": {"calibration-1": rates(_calibration())},
        "rows": msgspec.to_builtins(rows), "summary": msgspec.to_builtins(summary(rows)),
    }  # fmt: skip
    assert len(json.dumps(found, indent=1)) < 200_000
    check("here --gpu", json.dumps(found))
    text = gpu_page(found)
    assert "driver 5739.1, torch 2.11<" in text and "driver 570.1, torch 2.11<" in text
    assert "plan-39" in text and "1980 MHz" in text and "&lt;dead&gt;" in text and "<dead>" not in text
    assert "gemm bf16 FLOP/s" in text and "2e+14" in text
    assert "-4.5%" in text, "calibrated against stock: 21 / 22 - 1"


def test_a_page_that_is_drawn_again_links_to_traces_that_are_there(tmp_path: Path) -> None:
    committed = Path(__file__).parents[3] / "reports" / "measured" / "h200-sxm" / "summary.json"
    (tmp_path / "summary.json").write_bytes(committed.read_bytes())
    page, trace = tmp_path / "report.html", tmp_path / "gpt2-124m" / "predicted.json.gz"
    assert main([str(tmp_path / "summary.json")]) == 0 and "json.gz" not in page.read_text("utf-8")
    trace.parent.mkdir()
    trace.touch()
    assert main([str(tmp_path / "summary.json")]) == 0 and 'href="gpt2-124m/predicted.json.gz"' in page.read_text("utf-8")


class _Nvml:
    """A driver with one GPU that is idle in its first sample and busy later, and that tells no temperature."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        self.looks = 0

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.1"

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, at: int) -> int:
        return at

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetClockInfo(self, gpu: int, kind: int) -> int:
        self.looks += kind == 1
        return (300 if self.looks == 1 else 1980) if kind == 1 else 3201

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        return 500_000

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:
        return type("Rates", (), {"gpu": 0 if self.looks == 1 else 97})()

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: int) -> int:
        return 4 if self.looks > 1 else 1


def test_clocks_are_those_of_the_busy_samples() -> None:
    driver = _Nvml()
    with clocks(period=0.001, nvml=driver) as found:
        while driver.looks < 5:
            pass
    assert found["sm_mhz"] == 1980 and found["watts"] == 500.0 and found["memory_mhz"] == 3201
    assert found["held_down"] == 1.0 and "celsius" not in found and found["samples"] >= 3
    assert device_facts(driver) == {"driver": "570.1", "count": 1, "name": "NVIDIA H200"}


def test_a_driver_that_does_not_tell_what_holds_clocks_down_is_not_taken_to_say_nothing_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_Nvml, "nvmlDeviceGetCurrentClocksThrottleReasons")
    driver = _Nvml()
    with clocks(period=0.001, nvml=driver) as found:
        while driver.looks < 5:
            pass
    assert found["sm_mhz"] == 1980 and "held_down" not in found


class _Several(_Nvml):
    """Three GPUs; the newer bindings give text, older ones bytes."""

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetUUID(self, gpu: int) -> bytes | str:
        return ("GPU-1a2b-0", b"GPU-8d3f-1", "GPU-8d40-2")[gpu]

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return f"GPU {gpu}"


def test_the_first_gpu_is_the_one_that_cuda_sees_first(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _Several()
    for words, gpu in (("2,1", 2), ("GPU-8d3f", 1), ("GPU-8d40-2,GPU-1a2b-0", 2), ("", 0)):
        assert first_gpu(driver, {"CUDA_VISIBLE_DEVICES": words}) == gpu
    assert first_gpu(driver, {}) == 0
    assert first_gpu(driver, {}, at=2) == 2 and first_gpu(driver, {"CUDA_VISIBLE_DEVICES": "2,1"}, at=1) == 1
    with pytest.raises(LookupError, match="GPU-ffff"):
        first_gpu(driver, {"CUDA_VISIBLE_DEVICES": "GPU-ffff"})
    with pytest.raises(LookupError, match="MIG-8d40 is a slice of a GPU"):  # of whatever GPU: the first one's draw was taken for its own
        first_gpu(driver, {"CUDA_VISIBLE_DEVICES": "MIG-8d40"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8d40")
    assert device_facts(driver)["name"] == "GPU 2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ffff")
    assert "name" not in device_facts(driver)
