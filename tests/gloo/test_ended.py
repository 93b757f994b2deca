"""What is left of a run or a probe that came to no end."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

import executor.play
import executor.probe
import executor.stock
import executor.twin
from executor.ranks.alone import alone_among, alone_in
from sim.files.planfile import load_plan
from sim.framework.chosen import framework_of
from sim.lower.step import lower
from sim.setting.bind import network_of
from topologies.errors import BadInput, RunFailed


def _dies(*_: Any, **__: Any) -> Any:
    raise RunFailed("rank 1 of 2 was killed by SIGKILL", "/somewhere")


def test_a_probe_keeps_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is a temporary one, gone by the time that the message is read."""
    monkeypatch.setattr(executor.probe, "launch", _dies)
    with pytest.raises(RunFailed, match=r"no calibration was written: rank 1 of 2 was killed by SIGKILL$") as told:
        executor.probe.probe(2, tmp_path / "calibration.toml")
    assert told.value.partial == "" and list(tmp_path.iterdir()) == []


def test_a_played_run_drops_the_file_that_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_plan({"model": {"family": "mlp", "widths": [8, 8]}, "precision": "fp32"})
    habits = framework_of(plan)
    program = lower(plan, network_of(plan, habits), habits, "cpu", 2)
    monkeypatch.setattr(executor.play, "launch", _dies)
    with pytest.raises(RunFailed, match="kept in /somewhere"):
        executor.play.run_play(program, {}, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} - {"lock"} == {"program.json.gz"}


def test_a_played_run_leaves_no_half_of_the_file_that_it_would_read(tmp_path: Path) -> None:
    """Files may not grow past 1 MiB (RLIMIT_FSIZE), as on a full disk, which half of the file would keep full."""
    plan = load_plan({"model": {"family": "mlp", "widths": [8, 8]}, "precision": "fp32"})
    habits = framework_of(plan)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(RunFailed, match=r"cannot write 8388608 bytes to .*read\.bin"):
            executor.play.run_play(lower(plan, network_of(plan, habits), habits, "cpu", 2), {}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {path.name for path in tmp_path.iterdir()} - {"lock"} == {"program.json.gz"}


def test_a_refused_run_leaves_the_one_at_work_in_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training beside playing too: the one at work reads the files that the other would write anew, and take away at its end."""
    plan = load_plan({"model": {"family": "mlp", "widths": [8, 8]}, "precision": "fp32", "data": {"source": "disk", "sample": "4 KiB"}})
    habits = framework_of(plan)
    program = lower(plan, network_of(plan, habits), habits, "cpu", 2)
    for module in (executor.play, executor.stock):
        monkeypatch.setattr(module, "launch", _dies)
    (tmp_path / "read.bin").write_text("is read")
    with alone_in(tmp_path):
        for begin in (
            lambda: executor.play.run_play(program, {}, tmp_path),
            lambda: executor.stock.run_stock(plan, tmp_path),
            lambda: executor.twin.run_plan(plan, tmp_path, "stock", 2),
            lambda: executor.twin.twin(plan, tmp_path, say=lambda _: None),  # before it probes, which would be beside the other's steps
        ):
            with pytest.raises(BadInput, match=r"another run is at work in .*: wait for its end"):
                begin()
    assert {path.name for path in tmp_path.iterdir()} - {"lock"} == {"read.bin"}
    with alone_among(tmp_path), pytest.raises(RunFailed, match="killed by SIGKILL"):
        executor.stock.run_stock(plan, tmp_path)  # a part of the run that holds the folder


def test_more_ranks_than_a_machine_takes_are_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor.probe, "launch", _dies)
    with pytest.raises(BadInput, match="1000 ranks are more than the 64"):
        executor.probe.probe(1000, tmp_path / "calibration.toml")
