"""What the verbs print is what is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

import steptwin
from sim.files.chrome import write_trace
from sim.files.schema import FORMS, check, schema
from sim.predict import predict
from tests.null.verbs.test_verbs import Call, call
from topologies.errors import BadInput, UnknownName

__all__ = ["call"]
pytestmark = pytest.mark.no_cover
CALLS = {
    "predict": ("predict", "plan.toml"),
    "compare": ("compare", "plan.toml", "--measured", "runs/plan/predicted.json.gz"),
    "study": ("study", "copy-compute-overlap"),
    "spread": ("spread", "plan.toml", "--draws", "5"),
    "explain": ("explain", "plan.toml"),
    "collective": ("collective", "all_gather", "--bytes", "64 KiB"),
    "collective --calibrate": ("collective", "all_reduce", "--calibrate", "nccl.txt"),
    "validate": ("validate", "--limit", "3", "--workers", "1"),
    "validate --collectives": ("validate", "--collectives", "--data", "timings.csv"),
    "sweep": ("sweep", "plan.toml", "tp=1,2", "--workers", "1"),
    "capacity": ("capacity", "plan.toml", "--tokens", "1e9"),
    "faults": ("faults", "plan.toml", "--on", "dgx-h100"),
    "jobs": ("jobs", "plan.toml", "plan.toml", "--on", "dgx-h100", "--place", "compact"),
    "plan list": ("plan", "list"),
    "plan show": ("plan", "show", "plan.toml"),
    "topology list": ("topology", "list"),
    "topology show": ("topology", "show", "dgx-h100"),
    "doctor": ("doctor",),
}
TORCH = {"twin", "run", "here", "here --gpu", "probe"}
"""Verbs that need PyTorch: tests/gloo/test_published.py."""
LONG = {"accuracy"}
"""Needs the raw measurements and minutes; its form is that of any tables."""
CHAKRA = {"chakra export", "chakra replay"}
"""One reads what the other wrote: in a test of their own."""
TIMINGS = "kind,gpus,nodes,gpu,system,message_bytes,time_us\nall_reduce,8,1,NVIDIA H100,dgx-h100,1048576,40.0\nall_gather,8,1,NVIDIA A100,dgx-a100,1048576,50.0\n"
RUN = "# Collective test starting: all_reduce_perf\n" + "".join(
    f"# Rank {i} Group 0 Pid {i} on a device {i} [0x0f] GPU\n" for i in range(8)
)


@pytest.fixture
def ready(call: Call, tmp_path: Path) -> Call:
    """`call` where the files that some verbs read are there."""
    (tmp_path / "nccl.txt").write_text(RUN + "  1048576  262144  float  sum  -1  40.0  1.0  1.0  0  40.0  1.0  1.0  0\n")
    (tmp_path / "timings.csv").write_text(TIMINGS)
    trace = predict("plan.toml", "dgx-h100").trace
    assert trace is not None
    (tmp_path / "runs" / "plan").mkdir(parents=True)
    write_trace(trace, tmp_path / "runs" / "plan" / "predicted.json.gz")
    return call


def test_every_form_is_tested() -> None:
    assert set(CALLS) | TORCH | LONG | CHAKRA == set(FORMS)


@pytest.mark.parametrize("verb", CALLS)
def test_outputs_are_as_published(verb: str, ready: Call) -> None:
    said = ready(*CALLS[verb], "--json")
    assert said.code == 0, said.err
    check(verb, said.out)


def test_a_model_without_sequences_counts_samples(call: Call) -> None:
    words = ("predict", "plan.toml", "--set", "model=resnet50", "--set", "parallel.zero=0", "--set", "seq_len=1")
    said = call(*words, "--json")
    check("predict", said.out)
    assert "samples_per_s_per_gpu" in said.json and "tokens_per_s" not in said.json
    assert said.json["unit"] == "images" and "images per second" in call(*words).out


def test_memory_adds_up_and_what_is_missing_is_published(call: Call) -> None:
    said = call("predict", "plan.toml", "--set", "gpu.memory=1 GiB", "--json")
    assert said.code == 3
    check("predict", said.out)
    memory, missing = said.json["memory"], said.json["does_not_fit"]
    parts = ("parameters", "gradients", "optimizer", "activations", "working", "gathered", "slack", "context")
    assert sum(memory[part] for part in parts) == said.json["peak_memory_bytes"] == missing["needed"] > missing["available"] == 1 << 30


def _refs(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(_refs, value.values()))
    return set().union(*map(_refs, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("verb", FORMS)
def test_a_schema_is_whole_json(verb: str) -> None:
    found = schema(verb)
    assert json.loads(json.dumps(found)) == found
    names = {f"#/$defs/{name}" for name in found.get("$defs", {})}
    assert _refs(found) <= names
    assert all(one.get("description") for one in found.get("$defs", {}).values())


@pytest.mark.parametrize(
    ("change", "told"),
    [({"step_time_s": "1"}, "step_time_s"), ({"fits": None}, "fits"), ({"mark": "sure"}, "mark"), ({"gpus": 1.5}, "gpus")],
)
def test_what_is_not_as_published_is_found(change: dict[str, Any], told: str, call: Call) -> None:
    good = call("predict", "plan.toml", "--json").json
    with pytest.raises(BadInput, match=told):
        check("predict", json.dumps(good | change))
    del good["breakdown"]
    with pytest.raises(BadInput, match="breakdown"):
        check("predict", json.dumps(good))


def test_verbs_without_a_form() -> None:
    for function in (schema, lambda verb: check(verb, "{}")):
        with pytest.raises(UnknownName, match="predict"):
            function("predct")


def _json_verbs(group: Any, before: str = "") -> set[str]:
    """Names of the commands below a click group that take `--json`."""
    found: set[str] = set()
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= _json_verbs(command, f"{before}{name} ")
        elif any("--json" in one.opts for one in command.params):
            found.add(before + name)
    return found


def test_every_verb_with_json_has_a_published_form() -> None:
    app = typer.main.get_command(steptwin._app())
    found = _json_verbs(app)
    assert {"predict", "plan list", "topology show"} <= found <= set(FORMS)


def test_an_export_says_what_no_trace_holds(call: Call) -> None:
    rare = ("--set", "output.checkpoint_every=10", "--set", "output.log_every=1", "--set", "data.source=disk", "--set", "data.workers=2")
    said = call("chakra", "export", "plan.toml", "--out", "kept", *rare)
    assert said.code == 0
    assert "note: data.workers = 2: not in the traces" in said.err and "note: output.checkpoint_every = 10: not in" in said.err
    assert "log_every" not in said.err and "note" not in call("chakra", "export", "plan.toml", "--out", "kept").err


def test_a_plan_goes_out_as_chakra_traces_and_comes_back_in_as_long(call: Call) -> None:
    written = call("chakra", "export", "plan.toml", "--out", "et", "--json")
    check("chakra export", written.out)
    came = call("chakra", "replay", written.json["prefix"], "--json")
    check("chakra replay", came.out)
    assert came.json["step_time_s"] == pytest.approx(call("predict", "plan.toml", "--json").json["step_time_s"], rel=0.05)
    shown = call("chakra", "replay", written.json["prefix"]).out
    assert "step time:" in shown and "class of op" in shown and "('" not in shown, "a table, nothing of Python"
    assert call("chakra", "export", "plan.toml", "--out", "et", "--ranks", "0,x").code == 2
    assert call("chakra", "replay", "nothing").code == 2
    refused = call("chakra", "replay", written.json["prefix"], "--calibration", "mine.toml")
    assert refused.code == 2 and "leave --calibration out" in refused.err


def test_seconds_have_one_name_in_all_verbs(call: Call) -> None:
    """What ends in `_s` is seconds everywhere, intervals and critical paths have one form; rows of a sweep tell their units."""
    said = {verb: call(*CALLS[verb], "--json").json for verb in ("predict", "explain", "capacity", "spread", "sweep")}
    for verb in ("predict", "explain", "capacity"):
        assert set(said[verb]["interval_s"]) == {"low", "high", "level"}
    for verb in ("predict", "explain"):
        assert all(set(one) == {"class", "seconds"} for one in said[verb]["critical_path"])
    assert {"p50_s", "p95_s", "p99_s", "mean_s", "without_s", "samples_s"} < set(said["spread"])
    assert {"step_time_s", "memory_bytes", "samples_per_s"} < set(said["sweep"]["rows"][0])
    assert all(isinstance(row["detail"], dict) and row["detail"]["whole"] in (True, False) for row in said["sweep"]["rows"])
    assert said["explain"]["step_time_s"] == pytest.approx(said["predict"]["step_time_s"])
    old = {"mean", "p50", "without", "interval", "path", "seconds", "step_time", "infinitely_fast"}
    assert not any(old & set(one) for one in (*said.values(), said["sweep"]["rows"][0], said["explain"]["sensitivities"][0]))
