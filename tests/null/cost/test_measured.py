"""Which source a kernel's cost comes from: a calibration, then the tables, then the fitted model; and each says which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.cost import tables
from sim.cost.calibration import Calibration, Sample, save_calibration
from sim.cost.gpu_pricer import GpuPricer
from sim.cost.measured import MeasuredPricer, lookups_of
from sim.predict import predict
from sim.program import COMPUTE, Op
from sim.setting.bind import Setting, bind
from sim.setting.pricer import pricer_for
from sim.work import Attention, Gemm, MemoryBound
from topologies.devices import gpu
from topologies.errors import Refused, UnknownName

H100 = gpu("h100-sxm")
PLAN: dict[str, Any] = {
    "model": {"family": "decoder", "name": "g", "layers": 2, "hidden": 1024, "heads": 8, "vocab": 4096, "dropout": 0.0},
    "seq_len": 1024,
    "batch": {"micro": 2},
}
SIZES = (256, 1024, 2048, 4096, 8192, 16384)
SECONDS_PER_FLOP = 1e-14
"""100 TFLOP/s: slower than any of the fitted ones at these sizes."""


def setting() -> Setting:
    return bind(PLAN, "dgx-h100")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tables of one GPU in the package's columns, without the package and without parquet files."""

    def fake(root: Path, folder: str, family: str, name: str, columns: list[str]) -> Iterable[dict[str, list[Any]]]:
        if folder == "h100_sxm" and family == "gemm":
            shapes = [(m, n, k) for m in SIZES for n in SIZES for k in SIZES]
            columns = ["gemm_dtype", "m", "n", "k", "latency"]
            values = [("bfloat16", m, n, k, 2e3 * m * n * k * SECONDS_PER_FLOP) for m, n, k in shapes]
            yield {column: list(line) for column, line in zip(columns, zip(*values, strict=True), strict=True)}

    monkeypatch.setattr(tables, "_rows", fake)
    monkeypatch.setattr(tables, "_root", lambda: Path("."))
    monkeypatch.setattr(tables, "check_installed", lambda: None)
    tables._gemms.cache_clear()
    tables._attentions.cache_clear()
    yield
    tables._gemms.cache_clear()
    tables._attentions.cache_clear()


@pytest.mark.usefixtures("rows")
def test_tables_where_they_cover_and_the_model_elsewhere() -> None:
    pricer, plain = pricer_for(setting(), costs="tables"), pricer_for(setting())
    assert isinstance(pricer, MeasuredPricer) and isinstance(plain, GpuPricer)
    inside, outside = Gemm(2048, 1024, 4096), Gemm(100, 1024, 4096)
    found = pricer.kernel(inside, H100)
    assert found.source == "measured"
    assert found.seconds >= 2.0 * 2048 * 1024 * 4096 * SECONDS_PER_FLOP * 0.999  # the benchmark's time, no shorter in training
    for other in (outside, MemoryBound("add", 1 << 20, 1 << 20), Attention(1, 8, 8, 512, 512, 64)):
        assert pricer.kernel(other, H100) == plain.kernel(other, H100)
        assert pricer.kernel(other, H100).source != "measured"


@pytest.mark.usefixtures("rows")
def test_a_prediction_says_how_much_is_measured() -> None:
    fitted, tabled = predict(PLAN, "dgx-h100"), predict(PLAN, "dgx-h100", costs="tables")
    assert fitted.sources["measured"] == 0.0
    assert 0.2 < tabled.sources["measured"] < 1.0
    assert sum(tabled.sources.values()) == pytest.approx(1.0)
    assert tabled.step_time_s > fitted.step_time_s  # these tables are of a slow GPU
    other = predict(PLAN, "aws-p4d", costs="tables")  # A100: the fake package has none
    assert other.sources["measured"] == 0.0 and other.step_time_s == predict(PLAN, "aws-p4d").step_time_s


def calibration(tmp_path: Path, device: str, gpu: str = "") -> Path:
    shapes = [(m, n, k) for m in (256, 2048) for n in (1024, 16384) for k in (256, 4096)]
    samples = tuple(Sample("fwd", "bf16", (m, n, k), 4e-14 * m * n * k, 1e-6, 1.0, 9) for m, n, k in shapes)
    known = {"gpu": gpu} if gpu else {}
    found = Calibration(device=device, date="2026", machine="test", cores=8, ranks=1, threads=1, tables={"gemm": samples}, versions=known)  # type: ignore[arg-type]
    save_calibration(found, tmp_path / "c.toml")
    return tmp_path / "c.toml"


@pytest.mark.usefixtures("rows")
def test_a_calibration_comes_before_tables(tmp_path: Path) -> None:
    path, work = calibration(tmp_path, "cuda"), Gemm(2048, 1024, 4096)
    both, tabled = pricer_for(setting(), path, "tables"), pricer_for(setting(), costs="tables")
    assert isinstance(both, MeasuredPricer) and isinstance(tabled, MeasuredPricer)
    assert both.kernel(work, H100).seconds == pytest.approx(2 * tabled.kernel(work, H100).seconds, rel=1e-3)  # files keep four digits
    assert both.kernel(Gemm(2048, 1024, 4096, role="wgrad"), H100) == tabled.kernel(Gemm(2048, 1024, 4096, role="wgrad"), H100)


def test_sources_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match=r"cost source 'table'.*Did you mean tables"):
        lookups_of("table")
    with pytest.raises(Refused, match=r"holds kernels of GPUs; .* has CPUs"):
        predict(PLAN | {"precision": "fp32"}, "this-machine", costs="tables")
    with pytest.raises(Refused, match="was measured on a CPU"):
        predict(PLAN, "dgx-h100", calibration=calibration(tmp_path, "cpu"))
    with pytest.raises(Refused, match="was measured on GPUs; this-machine has CPUs"):
        predict(PLAN | {"precision": "fp32"}, "this-machine", calibration=calibration(tmp_path, "cuda"))
    monkeypatch.setattr(tables, "PACKAGE", "no_such_package_of_tables")
    with pytest.raises(Refused, match=r"pip install 'steptwin\[tables\]'"):
        predict(PLAN, "dgx-h100", costs="tables")


def test_a_calibration_is_of_the_machine_s_own_gpus(tmp_path: Path) -> None:
    """One of an H200 was taken for an H100's, and what-ifs of a device changed nothing of what was measured, without a word."""
    own = calibration(tmp_path, "cuda", "NVIDIA H100 80GB HBM3")
    assert not predict(PLAN, "dgx-h100", calibration=own, edits=("link.nvlink.rate=100 GB/s", "gpu.memory=96 GiB")).warnings
    changed = predict(PLAN, "dgx-h100", calibration=own, edits=("gpu.clock=1 GHz",)).warnings
    assert changed == ["gpu.clock=1 GHz does not reach what the calibration has, which is of the device as it was: leave one of them out"]
    for on, edits in (("dgx-h200", ()), ("dgx-h100", ("gpu=h200-sxm",))):
        with pytest.raises(Refused, match=r"was measured on NVIDIA H100 80GB HBM3; dgx-h\d00 has h200-sxm"):
            predict(PLAN, on, calibration=own, edits=edits)


@pytest.mark.parametrize("measured", [False, True])
def test_devices_of_one_name_that_differ_are_priced_apart(tmp_path: Path, measured: bool) -> None:
    """A machine may change a figure of a catalog's GPU and leave its name as it is."""
    slow = tmp_path / "slow.toml"
    slow.write_text('base = "dgx-h100"\ngpu = { base = "h100-sxm", bandwidth = "1 TB/s" }\n')
    both = bind(PLAN | {"parallel": {"dp_replicate": 16}}, f"dgx-h100 + {slow}")
    pricer = MeasuredPricer(both.topology, both.framework, ()) if measured else pricer_for(both)
    copy = Op("copy", "compute", COMPUTE, (MemoryBound("copy", 10**9, 10**9),))
    assert pricer.local(copy, 8).seconds == pytest.approx(3.35 * pricer.local(copy, 0).seconds, rel=0.01)
    assert pricer.local(copy, 15) == pricer.local(copy, 8) and pricer.local(copy, 1) == pricer.local(copy, 0)
