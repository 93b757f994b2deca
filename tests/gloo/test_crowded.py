"""A probe that others' work disturbed says so, and so does who uses it again."""

from __future__ import annotations

import datetime
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from executor import twin, usage
from executor.twin import calibrated
from sim.cost.calibration import Calibration, save_calibration
from topologies.load import load_topology

psutil = pytest.importorskip("psutil")
Core = namedtuple("Core", ("user", "nice", "system", "idle", "iowait", "guest", "guest_nice"))


def test_what_others_take_of_the_cores_is_told_from_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of two of three cores; guests are counted as user time, too."""
    cores = [Core(5, 1, 2, 90, 4, 1, 1), Core(99, 0, 0, 0, 0, 0, 0), Core(7, 0, 0, 9, 0, 0, 0)]
    monkeypatch.setattr(usage, "cores_of_process", lambda: [0, 2])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cores)
    monkeypatch.setattr(usage.os, "times", lambda: (1.0, 2.0, 3.0, 0.5, 99.0))
    assert usage.taken_by_others() == pytest.approx(5 + 1 + 2 + 7 - 6.5)


@pytest.mark.parametrize("others", [0.6, 0.02])
def test_a_calibration_that_was_made_beside_other_work_is_used_with_a_word(others: float, tmp_path: Path) -> None:
    path, said = tmp_path / "calibration.toml", list[str]()
    now, versions = datetime.datetime.now(datetime.UTC).isoformat(), {"torch": str(torch.__version__)}
    save_calibration(Calibration(device="cpu", date=now, machine="", cores=2, ranks=1, threads=1, versions=versions, others=others), path)
    calibrated(1, path, said.append, load_topology("this-machine"))
    assert [f"other programs took {others:.0%} of the cores" in text for text in said] == [True] * (others > 0.1)


def test_a_calibration_of_another_device_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = tmp_path / "calibration.toml", list[str]()
    now, versions = datetime.datetime.now(datetime.UTC).isoformat(), {"torch": str(torch.__version__)}
    save_calibration(Calibration(device="cpu", date=now, machine="a CPU", cores=2, ranks=1, threads=1, versions=versions), path)
    made = Calibration(device="cuda", date=now, machine="", cores=2, ranks=1, threads=1, versions=versions)
    monkeypatch.setattr(twin, "probe", lambda ranks, path, quick: made)
    assert calibrated(1, path, said.append, load_topology("dgx-h100")) is made
    assert "was measured on a CPU (a CPU); dgx-h100 has" in said[0] and "probing again" in said[0]
