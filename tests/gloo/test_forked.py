"""Forked ranks run and end as those that are started for a task do; and what of launching is the same however ranks begin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from executor.ranks.alone import alone_in
from executor.ranks.launch import QUEUES, launch
from tests.gloo.bodies_for_launch import Name, Order
from topologies.errors import BadInput, RunFailed

pytestmark = pytest.mark.usefixtures("forked")


def test_each_has_its_own_surroundings(tmp_path: Path) -> None:
    body = "tests.gloo.bodies_for_launch:surroundings"
    first, second = launch(body, Name("STEPTWIN_TEST"), 2, tmp_path / "a", dict[str, str], variables={"STEPTWIN_TEST": "yes"})
    (third,) = launch(body, Name("STEPTWIN_TEST"), 1, tmp_path / "b", dict[str, str])
    assert len({first["pid"], second["pid"], third["pid"]}) == 3
    assert first["parent"] == third["parent"] != str(os.getpid()), "one mother for all"
    assert (first["STEPTWIN_TEST"], third["STEPTWIN_TEST"]) == ("yes", "")
    assert "speaks" in (tmp_path / "a" / "rank1.log").read_text() and "speaks" in (tmp_path / "b" / "rank0.log").read_text()


@pytest.mark.parametrize(
    ("what", "words", "stall"),
    [("kill", "rank 1 of 2 was killed by SIGKILL", 60.0), ("raise", "ValueError", 60.0), ("stop", "rank 1 of 2: stopped by a signal", 5.0)],
)
def test_a_bad_end_is_explained(what: str, words: str, stall: float, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=words):
        launch("tests.gloo.bodies_for_launch:work", Order(what=what), 2, tmp_path, list[float], stall=stall)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    body = "tests.gloo.bodies_for_launch:work"
    with alone_in(tmp_path), pytest.raises(BadInput, match="another run is at work"):
        launch(body, Order(), 1, tmp_path, list[float])
    assert not (tmp_path / "task.json").exists(), "the other run's files are left alone"
    assert len(launch(body, Order(), 1, tmp_path, list[float])) == 1


def test_a_player_has_a_queue_for_each_of_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer, what stands behind a stream that waits for another rank waits too, and both may wait for ever."""
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    body, name = "tests.gloo.bodies_for_launch:surroundings", Name("CUDA_DEVICE_MAX_CONNECTIONS")

    def found(**more: Any) -> str:
        (one,) = launch(body, name, 1, tmp_path, dict[str, str], **more)
        return one[name.name]

    assert found(variables=QUEUES) == "32"
    assert found() == "", "training has what users have"
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert found(variables=QUEUES) == "1", "who says a number gets it"
