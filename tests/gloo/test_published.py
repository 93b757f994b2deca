"""What the verbs that need PyTorch print with `--json` is what is published (`sim.files.schema`)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from executor.twin import Twin, run_plan
from executor.validation.gpu_rows import Summary as GpuSummary
from executor.validation.here import Row, Summary
from sim.align import align_by_class
from sim.files.planfile import load_plan
from sim.files.schema import check
from sim.predict import predict
from sim.timeline.metrics import step_times
from tests.gloo.test_twin import PLAN
from tests.null.verbs.test_verbs import Call, call

__all__ = ["call"]


@pytest.mark.usefixtures("forked")
def test_a_run(tmp_path: Path) -> None:
    said = run_plan(load_plan(PLAN | {"parallel": {}}), tmp_path / "run", "stock", 2, say=lambda _: None)
    check("run", json.dumps(said))
    assert len(said["steps_s"]) == 2 and said["warning"] == ""


@pytest.mark.usefixtures("forked")
def test_a_loss_that_is_no_number_is_said(tmp_path: Path) -> None:
    """All of a model in fp16, without a loss that is scaled: the times are those of any numbers, but nobody should take it for training."""
    said = run_plan(load_plan(PLAN | {"parallel": {}, "precision": "fp16"}), tmp_path / "run", "stock", 2, say=lambda _: None)
    check("run", json.dumps(said))
    assert "the loss is nan from step" in said["warning"] and len(said["steps_s"]) == 2


def test_a_twin() -> None:
    found = predict("gpt2-ddp8", "dgx-h100")
    assert found.trace is not None
    times = step_times(found.trace)
    beside = {"stock": align_by_class(found.trace, found.trace, times)}
    twin = Twin(
        plan=found.plan,
        prediction=found,
        traces=[found.trace],
        comparisons=beside,
        times={"stock": times},
        notes=["noisy"],
        calibration="a.toml",
    )
    check("twin", json.dumps(twin.to_dict(), default=str))
    lines = str(twin).splitlines()
    assert lines[0] == "gpt2-ddp8 on dgx-h100, 8 ranks" and "stock" in lines and lines[-1] == "noisy" and len(lines) < 40
    assert repr(twin).startswith("Twin(Prediction('gpt2-ddp8'") and "stock +0.0%" in repr(twin) and len(repr(twin)) < 140
    assert [row["run"] for row in twin._rows()] == ["stock"] * len(beside["stock"].classes)


def test_here(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(plan="ddp", kind="data parallel", ranks=2, how="stock", failed="no room"), Row(plan="a", kind="b", ranks=1, how="play")]
    summary = Summary(plans=2, failed=1, mean_error=0.1, pairs=1, ranked=1, bounds=2, named=1)
    monkeypatch.setattr("executor.validation.here.here", lambda *_, **__: (rows, summary))
    said = call("here", "ddp", "--json")
    check("here", said.out)
    assert said.json["rows"] == msgspec.to_builtins(rows)


def test_here_on_a_gpu(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = (Path(__file__).parents[2] / "reports" / "measured" / "h200-sxm" / "summary.json").read_bytes()
    (tmp_path / "summary.json").write_bytes(measured)
    total = msgspec.convert(json.loads(measured)["summary"], GpuSummary)
    monkeypatch.setattr("executor.validation.gpu_twin.twin_gpu", lambda *_, **__: ([], total, tmp_path))
    check("here --gpu", call("here", "--gpu", "--json").out)


def test_a_probe(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.probe.probe", lambda *_, **__: SimpleNamespace(entries=395, missing="gemms: -", crowded="beside others"))
    said = call("probe", "--json")
    check("probe", said.out)
    assert said.json["entries"] == 395 and "not measured: gemms: -" in said.err and "note: beside others" in said.err
