"""Forked ranks run and end as those that are started for a task do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from executor.ranks.launch import launch
from tests.gloo.bodies_for_launch import Name, Order
from topologies.errors import RunFailed

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
