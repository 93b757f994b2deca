"""Steps of very many ops: predicted without a span for each, and said so; beyond all measure they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import asdict

import sim.steady.detail
import steptwin
from sim.files.planfile import load_plan
from sim.plan import Plan
from sim.planning import montecarlo
from sim.planning.montecarlo import spread
from sim.predict import predict
from sim.rules import MOST_MICROBATCHES
from sim.sections import Batch
from sim.steady.detail import coarse
from topologies.errors import Refused

PLAN = {
    "model": "gpt2-124m",
    "seq_len": 256,
    "batch": {"global": 64, "micro": 1},
    "parallel": {"dp_shard": 4, "zero": 3},
    "output": {"log_every": 1},
}


@pytest.mark.no_cover
def test_coarser_traces_have_the_same_times_and_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = predict(PLAN, "dgx-h100")
    monkeypatch.setattr(sim.steady.detail, "OPS_APART", 100)
    fused = predict(PLAN, "dgx-h100")
    monkeypatch.setattr(sim.steady.detail, "OPS_FUSED", 100)
    least = predict(PLAN, "dgx-h100")
    assert fused.step_time_s == pytest.approx(fine.step_time_s, rel=1e-9) == least.step_time_s
    assert asdict(fused.breakdown) == pytest.approx(asdict(fine.breakdown), rel=1e-9, abs=1e-12)
    assert fine.trace is not None and fused.trace is not None and least.trace is not None
    assert len(fine.trace.spans) > len(fused.trace.spans) > len(least.trace.spans)
    assert not any("micro-batches in a step" in text for text in fine.warnings)
    assert "runs of kernels are one span each; no memory" in fused.warnings[-1]
    assert "runs of kernels and layers are one span each" in least.warnings[-1]


def test_a_page_is_made_of_a_coarse_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sim.steady.detail, "OPS_APART", 100)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["steptwin", "predict", "gpt2-ddp8", "--out", "run"])
    with pytest.raises(SystemExit) as end:
        steptwin.main()
    assert not end.value.code, capsys.readouterr().err
    page = (tmp_path / "run" / "report.html").read_text()
    # What a span of many ops holds and moves is not known: no lines that would say otherwise.
    assert "Device memory over time" not in page and "Link use over time" not in page


@pytest.mark.no_cover
def test_figures_of_many_micro_batches_are_told_by_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no trace is asked for: each round of a pipeline's 36 micro-batches lengthens each figure by the same."""
    model = {"base": "llama3-8b", "layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 4096, "vocab": 50304}
    plan = {"model": model, "framework": "megatron-core", "seq_len": 4096, "batch": {"global": 72, "micro": 1}}
    plan |= {"parallel": {"dp_shard": 2, "zero": 1, "tp": 2, "pp": 4}, "output": {"checkpoint_every": 50}}
    whole = predict(plan, "2x dgx-h100")
    monkeypatch.setattr(sim.steady.detail, "OPS_QUICK", 1000)
    few = predict(plan, "2x dgx-h100", detail=False)
    assert len(few.trace.spans) < len(whole.trace.spans) / 4
    assert few.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert (few.mfu, *few.interval) == pytest.approx((whole.mfu, *whole.interval))
    assert (few.mark, few.sources) == (whole.mark, pytest.approx(whole.sources))
    assert asdict(few.breakdown) == pytest.approx(asdict(whole.breakdown), abs=1e-3 * whole.step_time_s)
    assert few.breakdown.output_s == pytest.approx(whole.breakdown.output_s) and few.breakdown.output_s > 0
    assert sum(seconds for _, seconds in few.critical_path) == pytest.approx(whole.step_time_s)
    first = spread(plan, "2x dgx-h100", 20)
    monkeypatch.setattr(montecarlo, "shortens", lambda setting: False)
    other = spread(plan, "2x dgx-h100", 20)
    assert first.samples == pytest.approx(other.samples, rel=1e-9) and first.without == pytest.approx(other.without)


def test_micro_batches_without_end_are_refused() -> None:
    tree = {"model": "gpt2-124m", "batch": {"global": MOST_MICROBATCHES + 1, "micro": 1}}
    with pytest.raises(Refused, match=r"Raise batch\.micro"):
        load_plan(tree)


def test_a_coarse_trace_of_one_micro_batch_is_not_told_to_have_fewer() -> None:
    one, two = (Plan(model="gpt2-124m", batch=Batch(global_=count, micro=1)) for count in (1, 2))
    assert "(2 micro-batches in a step)" in coarse(two, 10_000_000) and coarse(two, 1).endswith(
        "Predict fewer micro-batches to see every op"
    )
    assert "micro-batch" not in coarse(one, 10_000_000) and coarse(one, 1).endswith("Predict fewer layers or ranks to see every op")
