"""Ranks that have imported torch beforehand run as those that are started for a task do, and none is left behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from executor.ranks.environment import SHARED, sharing
from executor.ranks.launch import launch
from executor.ranks.spare import Spares, spares
from tests.gloo.bodies_for_launch import Name
from tests.reliability.faults import processes
from topologies.errors import RunFailed

BODY = "tests.gloo.bodies_for_launch:surroundings"


@pytest.mark.timeout(200)
def test_each_takes_one_task_with_its_own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    fill = Spares._fill
    monkeypatch.setattr(Spares, "_fill", lambda self, variables: (made.append(1), fill(self, variables))[1])
    with spares(2):
        with sharing():
            first, second = launch(BODY, Name("STEPTWIN_TEST"), 2, tmp_path / "a", dict[str, str], variables={"STEPTWIN_TEST": "yes"})
        (third,) = launch(BODY, Name("STEPTWIN_TEST"), 1, tmp_path / "b", dict[str, str])
    assert len(made) == 2, "two wait, and two more once they are taken"
    assert len({first["pid"], second["pid"], third["pid"]}) == 3
    assert {first["parent"], third["parent"]} == {str(os.getpid())}
    assert (first["STEPTWIN_TEST"], first[SHARED], first["OMP_NUM_THREADS"]) == ("yes", "1", "1")
    assert (third["STEPTWIN_TEST"], third[SHARED]) == ("", ""), "nothing is left of the environment that it was started in"
    assert "speaks" in (tmp_path / "a" / "rank1.log").read_text() and "speaks" in (tmp_path / "b" / "rank0.log").read_text()
    assert processes(tmp_path) == []
    listed = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False).stdout
    assert "--wait" not in listed


@pytest.mark.timeout(200)
def test_what_is_imported_may_speak(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('a library greets its users', flush=True)")
    path = os.pathsep.join((str(Path(__file__).parents[2]), str(tmp_path)))
    own = Spares(1)
    own._fill({**os.environ, "PYTHONPATH": path})
    ready = len(own._waiting)
    own.close()
    assert ready == 1 and own._waiting == []


@pytest.mark.timeout(200)
def test_where_none_comes_a_rank_is_started_for_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.ranks.spare.PATIENCE", 0.0)
    with spares(1):
        assert launch(BODY, Name(""), 1, tmp_path, dict[str, str])[0]["parent"] == str(os.getpid())
    assert processes(tmp_path) == []


@pytest.mark.timeout(200)
def test_a_bad_end_is_explained_as_ever(tmp_path: Path) -> None:
    with spares(1), pytest.raises(RunFailed, match=r"stopped with KeyError \(bodies_for_launch"):
        launch(BODY, Name("raise"), 1, tmp_path, dict[str, str])
