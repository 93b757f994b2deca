"""What cannot run here is said before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor import twin
from executor.possible import without_stock
from sim.files.planfile import load_plan
from sim.setting.bind import bind
from topologies.errors import NoRoom, Refused

TINY: dict[str, Any] = {"model": {"family": "mlp", "name": "m", "widths": [64, 64]}, "parallel": {"dp_replicate": 2}}


@pytest.fixture(autouse=True)
def _nothing_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "calibrated", lambda *_: pytest.fail("probed"))


def test_what_is_not_played_is_refused_before_the_probe(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"no parameter server to train through.*--how play"):
        twin.run_plan(load_plan(TINY | {"update": {"mode": "async"}}), tmp_path / "run", "stock", 1)
    with pytest.raises(Refused, match=r"checkpoint_mode = .async"):
        twin.run_plan(load_plan(TINY | {"output": {"checkpoint_every": 1, "checkpoint_mode": "async"}}), tmp_path / "run", "stock", 1)
    split = TINY | {"parallel": {"dp_shard": 2, "zero": 3}, "output": {"checkpoint_every": 1, "checkpoint_mode": "full"}}
    with pytest.raises(Refused, match=r"checkpoint_mode = .full"):
        twin.run_plan(load_plan(split), tmp_path / "run", "stock", 1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": {"base": "efficientnet-b0", "image": 64}, "optimizer": {"name": "muon"}}, "no matrices"),
        ({"memory": {"offload": "activations"}}, "on a CPU they are the same"),
        ({"framework": "nemo", "comm": {"reduce_dtype": "fp16"}}, "one buffer"),
    ],
)
def test_what_is_not_predicted_is_not_trained_as_something_else(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    plan = load_plan(TINY | more)
    for how in ("stock", "play"):
        with pytest.raises(Refused, match=said):
            twin.run_plan(plan, tmp_path / "run", how, 1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("noise", [{"stragglers": "r1: 2x"}, {"imbalance": "r1: 2x"}])
def test_noise_is_refused_however_the_plan_is_run(tmp_path: Path, noise: dict[str, str]) -> None:
    plan = load_plan(TINY | {"noise": noise})
    for how in ("stock", "play"):
        with pytest.raises(Refused, match="noise is for predictions"):
            twin.run_plan(plan, tmp_path / "run", how, 1)
    with pytest.raises(Refused, match="noise is for predictions"):
        twin.twin(plan, tmp_path / "run")


def test_why_a_plan_is_played_alone() -> None:
    def why(**more: Any) -> str:
        return without_stock(bind(load_plan(TINY | more), "this-machine"))

    assert why() == ""
    assert why(update={"aggregate": "cpu"}) == "sums on the host are not done by stock training"
    deep, both = TINY["model"] | {"widths": [64] * 3}, {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "zero": 0}
    assert why(model=deep, parallel=both, batch={"micro": 1, "global": 8}).startswith("DDP over dp_replicate and dp_shard at once")
    assert why(parallel={"dp_shard": 2, "zero": 1}) == "zero = 1: PyTorch's FSDP2 splits gradients too. Use zero = 2"


def test_ranks_that_together_need_more_memory_than_there_is(tmp_path: Path) -> None:
    many = load_plan({"model": "gpt3-175b", "seq_len": 1024, "batch": {"micro": 8}, "parallel": {"dp_replicate": 64}})
    with pytest.raises(NoRoom, match="each of 64 ranks needs") as said:
        twin.twin(many, tmp_path / "run")
    assert said.value.exit_code == 3
