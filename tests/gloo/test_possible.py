"""What cannot run here is said before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor import twin
from sim.files.planfile import load_plan
from topologies.errors import NoRoom, Refused

TINY: dict[str, Any] = {"model": {"family": "mlp", "name": "m", "widths": [64, 64]}, "parallel": {"dp_replicate": 2}}


@pytest.fixture(autouse=True)
def _nothing_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "calibrated", lambda *_: pytest.fail("probed"))


def test_what_is_not_played_is_refused_before_the_probe(tmp_path: Path) -> None:
    plan = load_plan(TINY | {"update": {"mode": "async"}})
    for how in ("stock", "play"):
        with pytest.raises(Refused, match="parameter server"):
            twin.run_plan(plan, tmp_path / "run", how, 1)
    with pytest.raises(Refused, match=r"checkpoint_mode = .async"):
        twin.twin(load_plan(TINY | {"output": {"checkpoint_every": 1, "checkpoint_mode": "async"}}), tmp_path / "run")
    split = TINY | {"parallel": {"dp_shard": 2, "zero": 3}, "output": {"checkpoint_every": 1, "checkpoint_mode": "full"}}
    with pytest.raises(Refused, match=r"checkpoint_mode = .full"):
        twin.run_plan(load_plan(split), tmp_path / "run", "stock", 1)
    assert not (tmp_path / "run").exists()


def test_ranks_that_together_need_more_memory_than_there_is(tmp_path: Path) -> None:
    many = load_plan({"model": "gpt3-175b", "seq_len": 1024, "batch": {"micro": 8}, "parallel": {"dp_replicate": 64}})
    with pytest.raises(NoRoom, match="each of 64 ranks needs") as said:
        twin.twin(many, tmp_path / "run")
    assert said.value.exit_code == 3
