"""A plan with every default filled in is a plan file: read back it is the very same plan, whichever way it was written."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steptwin
from sim.files.fullplan import full_plan, full_tree, said_size, said_time
from sim.files.planfile import load_plan, presets
from sim.files.schema import check
from sim.plan import Plan
from tests.null.test_plan import plans
from tests.null.verbs.test_verbs import Call, call
from topologies import units
from topologies.errors import BadInput, UnitError

__all__ = ["call"]
MODEL: dict[str, Any] = {"family": "decoder", "layers": 2, "hidden": 64, "heads": 4, "vocab": 128, "ffn": 128}


@pytest.mark.parametrize("name", presets())
def test_what_is_shown_is_the_very_same_plan(name: str, tmp_path: Path) -> None:
    plan = load_plan(name)
    for file, text in (("a.toml", full_plan(plan)), ("a.json", json.dumps(full_tree(plan)))):
        (tmp_path / file).write_text(text)
        assert load_plan(tmp_path / file) == plan
    assert steptwin.plan(full_tree(plan)) == plan
    check("plan show", json.dumps(full_tree(plan)))


@pytest.mark.no_cover
@settings(deadline=None)
@given(plans)
def test_any_plan_is_shown_as_itself(plan: Plan) -> None:
    assert load_plan(tomllib.loads(full_plan(plan))) == plan == load_plan(full_tree(plan))


def test_a_plan_whose_model_is_not_here_is_shown() -> None:
    plan = Plan(model="elsewhere/config.json")
    assert load_plan(tomllib.loads(full_plan(plan))) == plan


def test_every_key_is_there_said_or_in_a_comment() -> None:
    text = full_plan(Plan(model="llama3-8b"))
    for section, values in full_tree(Plan(model="llama3-8b")).items():
        for key in values if isinstance(values, dict) else (section,):
            assert any(line.removeprefix("# ").startswith((f"{key} = ", f"{key}:")) for line in text.splitlines()), key
    assert "# compile = false  # not set: pytorch's default" in text and "# global = 1  # not set: micro x" in text
    assert "# bucket: not set, DDP's 25 MiB, and 1 MiB for the first" in text and 'recompute = "none"  # none selective full' in text


def test_what_is_said_in_comments_holds_when_it_is_said() -> None:
    """The comment's own sign taken away, the step is the same one."""
    plan = load_plan("llama3-8b-fsdp8")
    lines = [line.removeprefix("# ") if "  # not set: " in line else line for line in full_plan(plan).splitlines()]
    said = load_plan(tomllib.loads("\n".join(lines)))
    assert said != plan
    assert steptwin.predict(said, "dgx-h100").step_time_s == steptwin.predict(plan, "dgx-h100").step_time_s


def test_a_model_of_ones_own_and_a_model_that_is_not_here() -> None:
    plan = load_plan({"model": MODEL | {"moe": {"experts": 4, "top_k": 2, "ffn": 64}}, "parallel": {"dp_shard": 2, "ep": 2}})
    assert load_plan(tomllib.loads(full_plan(plan))) == plan
    away = Plan(model="away/config.json")
    assert load_plan(tomllib.loads(full_plan(away))) == away and "# seq_len: not set, the model's usual length" in full_plan(away)


@given(st.integers(0, 2**50))
def test_sizes_are_said_exactly(count: int) -> None:
    assert units.size(said_size(count)) == count


@given(st.floats(0, 1e6))
def test_times_are_said_exactly(seconds: float) -> None:
    assert units.duration(said_time(seconds)) == seconds


def test_quantities_are_said_as_people_do() -> None:
    assert [said_size(n) for n in (0, 26214400, 153600, 1000)] == ["0 B", "25 MiB", "150 KiB", "1000 B"]
    assert [said_time(t) for t in (0.0, 0.002, 1.5, 35e-6)] == ["0 s", "2 ms", "1.5 s", "35 us"]


def test_bytes_without_a_unit_are_told_as_bytes() -> None:
    with pytest.raises(UnitError, match=r'got 26214400\. Write "26214400 B" or "25 MiB"'):
        load_plan({"model": "mlp", "comm": {"bucket": 26214400}})


@pytest.mark.no_cover
def test_a_shown_plan_is_predicted(call: Call, tmp_path: Path) -> None:
    for words, file in ((("plan", "show", "gpt2-ddp8"), "my.toml"), (("plan", "show", "gpt2-ddp8", "--json"), "my.json")):
        (tmp_path / file).write_text(call(*words).out)
        assert call("predict", file, "--json").json == call("predict", "gpt2-ddp8", "--json").json


def test_a_predictions_plan_is_a_plan() -> None:
    found = steptwin.predict("gpt2-ddp8", "dgx-h100")
    assert found.to_dict()["plan"]["comm"]["bucket"] is None and found.to_dict()["plan"]["data"]["sample"] == "0 B"
    assert steptwin.plan(found.to_dict()["plan"]) == found.plan


def test_how_gradients_are_cut_is_said_as_the_framework_does_it() -> None:
    for framework, said in (
        ("tf1-horovod", "tf1-horovod's 64 MiB"),
        ("megatron-core", "Megatron's 40 million elements"),
        ("pytorch", "DDP's"),
    ):
        assert f"# bucket: not set, {said}" in full_plan(Plan(model="llama3-8b", framework=framework))
    said = load_plan({"model": "llama3-8b", "comm": {"bucket": "25 MiB"}})
    assert 'bucket = "25 MiB"' in full_plan(said) and load_plan(full_tree(said)) == said != Plan(model="llama3-8b")


@pytest.mark.parametrize(("text", "told"), [("{", "not valid JSON"), ("[1]", "must hold an object"), ('{"modl": 1}', "Did you mean model")])
def test_json_that_is_no_plan(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadInput, match=told):
        load_plan(tmp_path / "a.json")
