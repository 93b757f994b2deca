"""Reading samples on a CPU host: file by file from the page cache where the probe measured it."""

from __future__ import annotations

import pytest

from sim.cost.calibration import Calibration, Sample
from sim.cost.cpu_pricer import CpuPricer
from sim.program import HOST, Op
from sim.work import HostWork
from topologies.load import load_topology


def _pricer(points: dict[int, float]) -> CpuPricer:
    rows = tuple(Sample("read", "", (size,), seconds, seconds, seconds, 5) for size, seconds in points.items())
    tables = {"file": rows} if rows else {}
    return CpuPricer(load_topology("cpu-host"), Calibration(device="cpu", date="", machine="", cores=2, ranks=1, threads=1, tables=tables))


def _read(files: int, size: int, how: str = "disk") -> Op:
    return Op("data/read", "copy", "loader.0", (HostWork("file", files),), bytes=files * size, how=how, cls="data")


def test_many_small_files_cost_more_than_one_large_file_of_their_bytes() -> None:
    pricer = _pricer({4096: 30e-6, 1 << 20: 60e-6, 4 << 20: 200e-6})
    many, one = pricer.local(_read(1024, 4096), 0), pricer.local(_read(1, 4 << 20), 0)
    assert many.seconds == pytest.approx(1024 * 30e-6) and one.seconds == pytest.approx(200e-6)
    assert many.source == one.source == "measured"
    assert all(".cores" in resource for resource, _ in many.uses), "the page cache asks a core, not the disk"


def test_without_a_calibration_nothing_counts_as_measured_but_what_the_plan_says() -> None:
    pricer = _pricer({})
    called, said = (pricer.local(Op("x", "host", "host", (work,)), 0) for work in (HostWork("module", 3), HostWork("preprocess", 2, 1e-3)))
    assert called.source == pricer.local(Op("x", "copy", "host", bytes=1 << 20), 0).source == "assumed"
    assert (said.seconds, said.source) == (2e-3, "measured")


def test_without_a_measurement_and_for_a_store_the_device_is_asked() -> None:
    disk = _pricer({}).local(_read(32, 1 << 20), 0)
    assert disk.source == "assumed" and any("disk" in resource for resource, _ in disk.uses)
    stored = _pricer({4096: 30e-6}).local(_read(32, 1 << 20, "store"), 0)
    assert stored.source == "assumed"


def test_a_checkpoint_takes_what_torch_save_took_on_this_core() -> None:
    row = Sample("save", "", (1 << 20,), 1.5e-3, 1.5e-3, 1.5e-3, 5)
    timed = Calibration(device="cpu", date="", machine="", cores=2, ranks=1, threads=1, tables={"file": (row,)})
    write = Op("output/write", "copy", HOST, bytes=160 << 20, how="disk", cls="output")
    cost = CpuPricer(load_topology("cpu-host"), timed).local(write, 0)
    assert cost.seconds == pytest.approx(0.24) and [resource for resource, _ in cost.uses] == ["n0.cores"]
    assert _pricer({}).local(write, 0).uses[0][0] == "n0.disk.write"
