"""The plan in a run's folder says the same as the one that was run, wherever it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from executor.twin import keep_run
from reports.folder import write_prediction
from sim.files.inputs import write_inputs
from sim.files.kept import kept
from sim.files.planfile import dump_plan, load_plan
from sim.model.captured import Captured
from sim.plan import Plan
from sim.predict import predict
from sim.sections import Batch
from sim.setting.bind import model_of
from sim.trace import Span, Trace

DENSE: dict[str, Any] = {"family": "decoder", "layers": 2, "hidden": 64, "heads": 4, "vocab": 128, "ffn": 128}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_tables_inside_a_model_are_written_as_toml(tmp_path: Path) -> None:
    """A mixture of experts has a table in its table."""
    plan = load_plan({"model": DENSE | {"moe": {"experts": 4, "top_k": 2, "ffn": 64}}, "parallel": {"dp_shard": 2, "ep": 2}})
    (tmp_path / "plan.toml").write_text(dump_plan(plan))
    assert load_plan(tmp_path / "plan.toml") == plan


@pytest.mark.parametrize("name", ["config.json", "mine.toml"])
def test_a_model_from_a_file_stands_in_the_plan(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    rows = "\n".join(f"{key} = {json.dumps(value)}" for key, value in DENSE.items())
    (here / name).write_text(json.dumps(LLAMA) if name.endswith(".json") else rows + "\n[moe]\nexperts = 4\ntop_k = 2\nffn = 64\n")
    monkeypatch.chdir(here)
    plan = load_plan({"model": name})
    spec = model_of(plan)
    write_inputs(here / "run", plan, None)
    monkeypatch.chdir(there)
    again = load_plan(here / "run" / "plan.toml")
    assert model_of(again) == spec
    assert msgspec.structs.replace(again, model=name) == plan, "nothing else is another"


def test_a_shipped_model_stays_a_name_and_a_captured_one_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_plan("gpt2-ddp8")
    assert kept(plan) == plan
    monkeypatch.chdir(tmp_path)
    Path("m.model.json").write_bytes(msgspec.json.encode(Captured(order=(), low=(), high=())))
    assert kept(msgspec.structs.replace(plan, model="m.model.json")).model == str(tmp_path / "m.model.json")


def _left(folder: Path, plan: Plan, how: str, trace: Trace) -> set[str]:
    """What is in a folder after a run of the plan."""
    keep_run(folder, plan, None, {"how": how}, replace(trace, origin={"stock": "stock", "play": "played"}[how]))
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_runs_of_two_plans_do_not_mix_in_a_folder(tmp_path: Path) -> None:
    """`compare` took what was trained of one plan beside the prediction of the other, which was played."""
    plan = load_plan({"model": {"family": "mlp", "widths": [8, 8]}, "precision": "fp32"})
    other, trace = msgspec.structs.replace(plan, batch=Batch(micro=2)), Trace([Span(0, "compute", "r0/s0/fwd/a", 0.0, 1.0)])
    stock, played = ({f"{origin}.json.gz", f"hta/{origin}/rank0.json.gz", f"summary-{how}.json"} for origin, how in
                     (("stock", "stock"), ("played", "play")))  # fmt: skip
    assert stock <= _left(tmp_path, plan, "stock", trace)
    (tmp_path / "notes.txt").write_text("mine")
    assert stock | played <= _left(tmp_path, msgspec.structs.replace(plan, name="the same"), "play", trace), (
        "of one plan they lie side by side"
    )
    left = _left(tmp_path, other, "play", trace)
    assert played | {"notes.txt"} <= left and not stock & left
    assert {f"before/{name}" for name in stock | played} <= left, "what took hours to measure is not lost"
    assert load_plan(tmp_path / "before/plan.toml") == msgspec.structs.replace(plan, name="the same")
    assert load_plan(tmp_path / "plan.toml") == other
    (tmp_path / "plan.toml").write_text('model = "gpt2-124m"  # mine\n')
    assert stock | played <= _left(tmp_path, plan, "stock", trace), "beside a plan of one's own nothing is removed"


def test_a_prediction_of_another_plan_does_not_mix_with_a_run(tmp_path: Path) -> None:
    """Its page and summary stood beside the trace that was measured of the plan before, which `compare` then took for this one's."""
    plan, trace = load_plan({"model": {"family": "mlp", "widths": [8, 8]}}), Trace([Span(0, "compute", "r0/s0/fwd/a", 0.0, 1.0)])
    _left(tmp_path, plan, "stock", trace)
    for micro, kept_there in ((1, True), (2, False)):
        found = predict(replace(plan, batch=Batch(micro=micro)), "dgx-h100")
        assert found.trace
        write_prediction(tmp_path, found.plan, found.program, found.to_dict(), found.trace)
        assert (tmp_path / "stock.json.gz").exists() is kept_there
        assert (tmp_path / "before/stock.json.gz").exists() is not kept_there
        assert load_plan(tmp_path / "plan.toml").batch.micro == micro
