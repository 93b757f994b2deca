"""Predictions and comparisons print in a few lines, whatever they hold, and become rows of a table."""

from __future__ import annotations

import json

import pytest

from reports.pages.prediction import headline
from reports.tables import show
from sim.align import align_by_id
from sim.predict import predict, predict_setting
from sim.result.prediction import Prediction
from sim.setting.bind import bind

PLAN = {"model": "gpt2-124m", "name": "small", "batch": {"global": 16, "micro": 2}, "parallel": {"dp_replicate": 8}}


@pytest.fixture(scope="module")
def found() -> Prediction:
    """One that fits."""
    return predict(PLAN, "dgx-h100")


def test_a_prediction_prints_its_figures_with_units(found: Prediction) -> None:
    lines = str(found).splitlines()
    assert lines[0] == "small on dgx-h100, 8 ranks"
    assert len(lines) < 12 and max(map(len, lines)) <= 140
    told = {line[:13].strip(): line[14:] for line in lines[1:]}
    assert "ms, 80% interval" in told["step time"] and "tokens/s per GPU" in told["throughput"]
    assert f"MFU {found.mfu:.1%}" in told["model FLOPs"] and told["peak memory"].endswith("per GPU, fits")
    shares = [float(part.rsplit(" ", 1)[1].rstrip("%")) for part in told["the step"].split(", ")]
    assert sum(shares) == pytest.approx(100.0, abs=0.5) and shares == sorted(shares, reverse=True)


def test_what_a_prompt_shows_is_one_line(found: Prediction) -> None:
    assert len(repr(found)) < 140 and repr(found).startswith("Prediction('small', 'dgx-h100', step_time_s=")


def test_a_prediction_is_a_row_of_its_figures(found: Prediction) -> None:
    (row,) = found._rows()
    assert json.loads(json.dumps(row)) == row and not any(isinstance(value, (dict, list)) for value in row.values())
    parts = ("compute_s", "exposed_comm_s", "bubble_s", "host_s", "data_s", "optimizer_s", "output_s")
    assert sum(row[name] for name in parts) == pytest.approx(row["step_time_s"])
    assert row["interval_low_s"] < row["step_time_s"] < row["interval_high_s"]
    table = found.to_frame()
    assert len(table) == 1 and table["mfu"][0] == found.mfu


def test_what_does_not_fit_and_hosts_without_a_peak_are_said() -> None:
    large = predict_setting(bind({"model": "llama3-70b", "seq_len": 8192}, "dgx-h100"), steps=2, detail=False)
    assert "DOES NOT FIT" in str(large) and str(large.does_not_fit) in str(large)
    cpu = predict({"model": "gpt2-124m", "seq_len": 64, "batch": {"global": 2, "micro": 1}, "parallel": {"dp_replicate": 2}}, "cpu-host")
    assert "per rank" in str(cpu) and "MFU" not in str(cpu) and cpu._rows()[0]["mfu"] is None


def test_ranks_of_a_cpu_host_are_no_gpus_and_small_figures_have_digits(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the host states its peak: its page and table spoke of GPUs, of 0.00 TFLOP/s and of 0.00 GiB."""
    cpu = predict("tiny-ddp", "cpu-host")
    show(cpu.to_dict(), "prediction")
    told = capsys.readouterr().out
    assert cpu.mfu is not None and "MFU" in told
    assert "GPU" not in told + str(cpu) + str(headline(cpu.to_dict())) and " GFLOP/s" in told
    show(predict("cpu-data-bound", "cpu-host").to_dict(), "prediction")
    assert " MiB\n" in capsys.readouterr().out


def test_a_comparison_prints_and_is_a_table(found: Prediction) -> None:
    assert found.trace is not None
    same = align_by_id(found.trace, found.trace, [found.step_time_s])
    lines = str(same).splitlines()
    assert lines[0].startswith("step: predicted ") and lines[0].endswith("error +0.0%")
    assert len(lines) == 2 + len(same.classes) and len(same.to_frame()) == len(same.classes)


def test_what_is_long_shows_itself_in_a_line(found: Prediction) -> None:
    assert repr(found.trace) == f"Trace('predicted', {len(found.trace.spans):,} spans, world=8, steps=3)"  # type: ignore[union-attr]
    assert repr(found.program).startswith("Program('") and len(repr(found.program)) < 100
