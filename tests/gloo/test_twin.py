"""The whole way on two real ranks: probe, predict, play, train, compare, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import executor.twin
from executor.play import PlayResult
from executor.twin import Twin, bucket_bytes, calibrated, twin
from reports.folder import write_comparison
from sim.cost.calibration import Sample, load_calibration, save_calibration
from sim.files.planfile import dump_plan, load_plan
from sim.imported.kineto import read_trace
from sim.predict import predict, predict_setting
from sim.program import Program
from sim.setting.bind import Setting
from tests.gloo.conftest import Probed
from tests.null.verbs.test_verbs import Call, call
from topologies.load import load_topology

__all__ = ["call"]
HERE = load_topology("this-machine")

PLAN = {
    "model": {"family": "decoder", "name": "two-layers", "layers": 2, "hidden": 64, "heads": 2, "vocab": 256, "norm": "layernorm",
              "activation": "gelu", "bias": True, "position": "learned", "dropout": 0.0},
    "seq_len": 32, "precision": "fp32", "batch": {"global": 8, "micro": 2}, "parallel": {"dp_replicate": 2},
    "comm": {"bucket": "64 KiB"}, "data": {"source": "disk", "workers": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def found(probed: Probed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Twin, Path]:
    folder = tmp_path_factory.mktemp("twin")
    return twin(load_plan(PLAN), folder / "run", steps=6, calibration=probed.file, say=lambda _: None), folder


@pytest.mark.timeout(280)
def test_every_predicted_op_is_played_once(found: tuple[Twin, Path]) -> None:
    predicted, played = found[0].traces[0], found[0].traces[1]
    assert sorted(s.id for s in predicted.spans) == sorted(s.id for s in played.spans)
    assert not found[0].comparisons["played"].missing and not found[0].comparisons["played"].extra


@pytest.mark.timeout(280)
def test_the_buckets_are_pytorchs(found: tuple[Twin, Path]) -> None:
    program = found[0].prediction.program
    assert program is not None
    assert len(bucket_bytes(program, 0)) >= 1 and len(bucket_bytes(program, 1)) > 1
    assert not [note for note in found[0].notes if "buckets differ" in note]


@pytest.mark.timeout(280)
def test_steps_are_measured_and_costs_are(found: tuple[Twin, Path]) -> None:
    one = found[0]
    assert len(one.times["stock"]) == 6 and len(one.times["played"]) >= 6
    assert one.prediction.sources["measured"] > 0.2
    assert {"gemm", "optimizer", "comm.dp"} <= {
        row.cls for row in one.comparisons["stock"].classes if row.measured > 0 and row.predicted > 0
    }


@pytest.mark.timeout(280)
def test_what_pytorch_itself_does_not_train_is_played_alone(probed: Probed, tmp_path: Path) -> None:
    said: list[str] = []
    plan = load_plan(PLAN | {"parallel": {"dp_shard": 2, "zero": 1}})
    found = twin(plan, tmp_path / "run", steps=3, calibration=probed.file, say=said.append)
    (why,) = [line for line in said if "not trained by PyTorch itself" in line]
    assert why in found.notes and "zero = 1" in why
    assert list(found.comparisons) == list(found.times) == ["played"] and not found.comparisons["played"].missing
    assert [trace.origin for trace in found.traces] == ["predicted", "played"] and len(found.times["played"]) >= 3


def test_a_quick_calibration_is_said_to_be_one(probed: Probed, tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "calibration.toml"  # of a machine left alone, whatever ran beside the probe
    save_calibration(replace(load_calibration(probed.file), others=0.0), file)
    assert calibrated(2, file, said.append, HERE).quick
    (line,) = said
    assert str(file) in line and "--quick" in line
    said.clear()
    assert calibrated(2, file, said.append, HERE, quick=True).quick and not said


@pytest.mark.timeout(280)
def test_the_folder_holds_all_that_is_needed(found: tuple[Twin, Path]) -> None:
    one, folder = found
    result = one.to_dict()
    report = write_comparison(folder / "run", one.plan, one.prediction.program, result, one.traces, one.comparisons, one.times)
    text = report.read_text("utf-8")
    assert len(text) < 8 << 20 and "Plotly" in text and "two-layers" in text
    names = {path.name for path in (folder / "run").iterdir()}
    assert {"plan.toml", "program.txt", "environment.json", "summary.json", "predicted.json.gz", "played.json.gz", "stock.json.gz"} <= names
    assert json.loads((folder / "run" / "summary.json").read_text()) == json.loads(json.dumps(result)), "what is printed with --json, once"
    assert result["runs"]["stock"]["measured_step_s"]["count"] == 6
    assert load_plan(folder / "run" / "plan.toml") == one.plan
    assert read_trace(folder / "run" / "predicted.json.gz").spans


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs are what is predicted: a twin and a run by a made calibration, which nobody probes, without a process. Returns the calibration."""
    gemm = Sample("fwd", "fp32", (16, 64, 64), 3.3e-3, 3.3e-3, 3.3e-3, 5)
    file = tmp_path / "runs" / "calibration-2.toml"
    file.parent.mkdir()
    save_calibration(replace(load_calibration(None), tables={"gemm": (gemm,)}), file)

    def runs(program: Program, setting: Setting, calibration: Path, *_: Any) -> PlayResult:
        trace = predict_setting(setting, calibration=calibration, fold=False).trace
        assert trace is not None
        return PlayResult(step_times=[1e-3, 2e-3], trace=replace(trace, origin="played"), by_rank=[[1e-3, 2e-3]])

    monkeypatch.setattr(executor.twin, "calibrated", lambda *_: None)
    monkeypatch.setattr(executor.twin, "run_program", runs)
    return file


@pytest.mark.parametrize("verb", ["twin plan.toml", "run plan.toml --how play"])
def test_the_folder_is_predicted_again_as_it_was(verb: str, beside: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(dump_plan(load_plan(PLAN | {"parallel": {"dp_shard": 2, "zero": 1}})))
    made = call(*verb.split(), "--out", "runs/run", "--json")
    assert made.code == 0, made.err
    words = "predict runs/run/plan.toml --on runs/run/topology.toml --json"
    again = call(*words.split(), "--calibration", "runs/run/calibration.toml")
    assert again.code == 0, again.err
    first = predict(load_plan(tmp_path / "plan.toml"), "this-machine", calibration=beside)
    assert again.json["step_time_s"] == first.step_time_s != call(*words.split()).json["step_time_s"]
    if verb.startswith("twin"):
        assert again.json["step_time_s"] == json.loads((tmp_path / "runs/run/summary.json").read_text())["prediction"]["step_time_s"]
    (tmp_path / "runs/run/calibration.toml").write_text("mine")
    assert "calibration.toml was not written by StepTwin" in call(*verb.split(), "--out", "runs/run").err
