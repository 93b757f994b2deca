"""A run that is hurt ends soon, says what happened, keeps what it measured and leaves nothing behind (`make reliability`: all phases)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from executor.ranks.launch import launch
from tests.gloo.bodies_for_launch import Order, Skew
from tests.reliability.faults import hurt, interrupted
from topologies.errors import RunFailed


@pytest.mark.parametrize("phase", ["joining the process group", "step "])
def test_a_killed_rank_ends_the_run(phase: str, tmp_path: Path) -> None:
    ended = hurt(tmp_path, phase)
    assert "rank 1 of 2 was killed by SIGKILL" in ended.message
    assert str(tmp_path) in ended.message
    assert 0 <= ended.seconds < 15
    assert ended.left == 0


def test_a_stopped_rank_is_found(tmp_path: Path) -> None:
    ended = hurt(tmp_path, "profiled step", signal.SIGSTOP, stall=15.0)
    assert "rank 1 of 2: stopped by a signal" in ended.message
    assert ended.left == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_rank_that_cannot_write_its_log_says_why_it_failed(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"rank 1 of 2 stopped with ValueError .*a batch has no samples"):
        launch("tests.gloo.bodies_for_launch:work", Order(what="full"), 2, tmp_path, list[float])


def test_nothing_that_was_kept_for_a_failure_stays(tmp_path: Path) -> None:
    launch("tests.gloo.bodies_for_launch:work", Order(what="none"), 2, tmp_path, list[float])
    assert not [*tmp_path.glob("*.failure"), *tmp_path.glob("*.part")]


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    code, said, seconds, left = interrupted(tmp_path)
    assert code == 4
    assert "interrupted" in said
    assert "Traceback" not in said
    assert seconds < 15
    assert left == 0


def test_clocks_of_other_hosts_are_read_as_rank_0s(tmp_path: Path) -> None:
    found = launch("tests.gloo.bodies_for_launch:skewed", Skew(5.0), 3, tmp_path, list[float])
    assert found[0] == [0.0]
    assert found[1] == [pytest.approx(-5.0, abs=5e-3)]
    assert found[2] == [pytest.approx(-10.0, abs=5e-3)]
