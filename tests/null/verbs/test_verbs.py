"""Every verb that needs no PyTorch, called as from a shell: its JSON, its files, its exit code, and its words when it refuses."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import steptwin
from sim.accuracy import tables
from sim.accuracy.training import validate_training
from sim.planning.sweeps.sweep import sweep

GPT2 = """model = "gpt2-124m"
seq_len = 256
[batch]
micro = 1
global = 4
[parallel]
dp_shard = 4
zero = 3
"""


PROJECT = Path(__file__).parents[3] / "pyproject.toml"


class Said(NamedTuple):
    """What a verb printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Said]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Runs `steptwin WORDS` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(GPT2)

    def run(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["steptwin", *words])
        try:
            steptwin.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


def test_predict_prints_the_published_fields(call: Call) -> None:
    said = call("predict", "plan.toml", "--on", "dgx-h100", "--json")
    assert said.code == 0
    found = said.json
    parts = ("compute_s", "exposed_comm_s", "bubble_s", "host_s", "data_s", "optimizer_s", "output_s")
    assert sum(found["breakdown"][part] for part in parts) == pytest.approx(found["step_time_s"])
    assert found["fits"] is True and found["gpus"] == 4 and found["tokens_per_s"] > 0
    assert found["model"]["parameters"] == pytest.approx(124e6, rel=0.01)
    assert sum(found["sources"].values()) == pytest.approx(1.0)


@pytest.mark.no_cover
def test_predict_prints_a_table_and_writes_a_folder(call: Call, tmp_path: Path) -> None:
    said = call("predict", "plan.toml", "--out", "run")
    assert said.code == 0
    assert "step" in said.out and "run/report.html" in said.err
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files >= {"plan.toml", "program.txt", "summary.json", "environment.json", "predicted.json.gz", "report.html"}


@pytest.mark.no_cover
def test_what_ifs_reach_the_plan_and_the_machine(call: Call) -> None:
    base = call("predict", "plan.toml", "--json").json["step_time_s"]
    slow = call("predict", "plan.toml", "--json", "--set", "link.nvlink.rate=10 GB/s").json["step_time_s"]
    more = call("predict", "plan.toml", "--json", "--set", "batch.global=32").json["step_time_s"]
    assert slow > base
    assert more > 3 * base


def test_a_plan_that_does_not_fit_ends_with_3(call: Call) -> None:
    said = call("predict", "llama3-8b-fsdp8", "--on", "dgx-a100-40gb", "--set", "batch.micro=8", "--set", "batch.global=64", "--json")
    assert said.code == 3
    assert said.json["fits"] is False


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("predict", "llama3-8b-fsdp9"), "llama3-8b-fsdp8"),
        (("predict", "plan.toml", "--on", "dgx-h1000"), "dgx-h100"),
        (("predict", "plan.toml", "--set", "batch.mico=2"), "micro"),
        (("predict", "plan.toml", "--set", "parallel.dp_shard=3"), "batch"),
        (("predict", "plan.toml", "--set", "precision=nvfp4", "--on", "dgx-a100"), "no units"),
        (("predict", "plan.toml", "--set", "precision=fp8", "--on", "cpu-host"), "no kernels for it on a CPU"),
        (("predict", "plan.toml", "--set", "parallel.dp_shard=16", "--set", "batch.global=16"), 'Use more machines ("2x dgx-h100") or'),
        (("predict", "llama3.1-405b-16k", "--on", "dgx-h100 + dgx-a100"), "Use more machines or"),
        (("collective", "all_redce"), "all_reduce"),
        (("collective", "all_reduce", "--bytes", "12"), "B"),
        (("collective", "all_reduce", "--calibrate", "timings.txt", "--plot", "page.html"), "draws no page"),
        (("topology", "show", "nowhere"), "unknown machine"),
        (("topology", "import", "missing.xml"), "missing.xml"),
        (("validate", "--collectives"), "--data"),
        (("validate", "--collectives", "--data", "timings.csv", "--report", "page.html"), "draws no page"),
        (("validate", "--collectives", "--data", "timings.csv", "--limit", "5"), "scores every timing"),
        (("validate", "--data", "missing.csv"), "missing.csv"),
        (("sweep", "plan.toml", "tq=1,2"), "tq"),
        (("sweep", "plan.toml"), "or both"),
        (("sweep", "plan.toml", "tp=1,2", "--seed", "3"), "Add --trials"),
        (("sweep", "plan.toml", "gpus=4", "--auto", "8"), "in place of gpus"),
        (("sweep", "plan.toml", "--auto", "9"), "dgx-h100 has 1 to 8 GPUs"),
        (("capacity", "plan.toml", "--tokens", "1e9", "--prices", "missing.toml"), "missing.toml"),
        (("compare", "plan.toml", "--measured", "missing.json"), "missing.json"),
        (("here", "ddp", "--gpus", "2", "--device", "cpu"), "--gpus, --device: only with the table of GPU plans. Add --gpu"),
        (("nonsense",), "nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_ends_with_2_and_says_what(call: Call, words: tuple[str, ...], told: str) -> None:
    said = call(*words)
    assert said.code == 2
    assert told in said.err
    assert "Traceback" not in said.err and len(said.err) < 2500


def test_collective_prints_a_row_for_each_size(call: Call, tmp_path: Path) -> None:
    said = call("collective", "all_reduce", "--on", "2x dgx-h100", "--bytes", "1 MiB", "--json", "--plot", "page.html")
    assert said.code == 0
    rows = said.json["rows"]
    assert [row["bytes"] for row in rows] == sorted({row["bytes"] for row in rows})
    assert rows[-1]["bytes"] == 2**20
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_the_version_is_that_of_the_distribution(call: Call) -> None:
    said = call("--version")
    assert (said.code, said.out) == (0, f"steptwin {tomllib.loads(PROJECT.read_text('utf-8'))['project']['version']}\n")


def test_catalogs_are_listed(call: Call) -> None:
    plans, machines = call("plan", "list", "--json").json, call("topology", "list", "--json").json
    assert "tiny-ddp" in {row["plan"] for row in plans["rows"]} and "llama3-8b" in plans["models"] and "pytorch-amp" in plans["frameworks"]
    assert "dgx-h100" in machines["machines"] and "h100-sxm" in machines["gpus"]


def test_a_plan_is_shown_with_its_defaults(call: Call) -> None:
    found = call("plan", "show", "plan.toml", "--set", "seq_len=128", "--json").json
    assert found["seq_len"] == 128
    assert found["optimizer"]["name"] == "adamw"


def test_a_machine_is_shown_and_drawn(call: Call, tmp_path: Path) -> None:
    said = call("topology", "show", "dgx-h100", "--without", "nvswitch", "--json", "--report", "machine.html")
    assert said.code == 0 and said.json["name"].startswith("dgx-h100")
    assert (tmp_path / "machine.html").is_file()


MATRIX = """        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      NV4     0-31    0
GPU1    NV4      X      0-31    0
"""


def test_another_tools_matrix_becomes_a_machine(call: Call, tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(MATRIX)
    printed = call("topology", "import", "topo.txt", "--gpu", "a100-sxm-80gb")
    assert printed.code == 0 and "a100-sxm-80gb" in printed.out
    assert call("topology", "import", "topo.txt", "--gpu", "a100-sxm-80gb", "--out", "mine.toml").code == 0
    assert (tmp_path / "mine.toml").read_text() == printed.out
    assert call("topology", "show", "mine.toml", "--json").code == 0


@pytest.mark.no_cover
def test_a_trace_of_ones_own_is_compared(call: Call, tmp_path: Path) -> None:
    assert call("predict", "plan.toml", "--out", "run").code == 0
    said = call("compare", "plan.toml", "--measured", "run/predicted.json.gz", "--json", "--out", "both")
    assert said.code == 0
    assert said.json["prediction"]["step_time_s"] > 0 and set(said.json["runs"]) == {"imported"}
    assert [note.partition(":")[0] for note in said.json["notes"]] == ["the trace is a prediction itself"]
    assert (tmp_path / "both" / "report.html").is_file()


def test_a_sweep_resumes_and_ranks(call: Call) -> None:
    words = ("sweep", "plan.toml", "tp=1,2 micro=1,2", "--workers", "1", "--out", "found.sqlite")
    first = call(*words, "--json")
    assert first.code == 0
    again = call(*words, "--json")
    assert again.json == first.json
    assert first.json["best"] and first.json["counts"]["done"] >= 1
    assert call(*words).code == 0


def test_a_sweep_says_why_points_are_no_plans(call: Call) -> None:
    words = ("sweep", "plan.toml", "tp=1,5,7 micro=1,3", "--workers", "1")
    said = call(*words, "--json").json
    refusals = said["refusals"]
    assert sum(one["plans"] for one in refusals) == said["counts"]["refused"] > 2
    assert [one["plans"] for one in refusals] == sorted((one["plans"] for one in refusals), reverse=True)
    assert any("does not divide mlp width" in one["such_as"] for one in refusals)
    assert "points that are no plan" in call(*words).out


def test_a_sweep_is_drawn(call: Call, tmp_path: Path) -> None:
    said = call("sweep", "plan.toml", "tp=1,2", "--workers", "1", "--report", "sweep.html")
    assert said.code == 0 and "sweep.html" in said.err and "runs/sweep-" in said.out and ".sqlite" in said.out
    assert (tmp_path / "sweep.html").stat().st_size > 10_000


def test_trials_look_at_some_points_alone(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def search(plan: Any, space: Any, on: str, out: Path, **options: Any) -> Any:
        asked.update(options, on=on, space=space)
        return sweep(plan, space, on, out)

    monkeypatch.setattr("sim.planning.sweeps.search.search", search)
    words = ("sweep", "plan.toml", "tp=1,2", "--trials", "7", "--seed", "3", "--workers", "1")
    assert call(*words, "--json").json["counts"]["done"] == 2
    assert (asked["trials"], asked["seed"], asked["workers"], asked["on"]) == (7, 3, 1, "dgx-h100")
    assert asked["space"] == {"tp": ("1", "2")}


@pytest.mark.no_cover
def test_explain_names_what_more_is_worth(call: Call) -> None:
    said = call("explain", "plan.toml", "--json")
    assert said.code == 0
    assert said.json["verdict"] and said.json["sensitivities"]
    table = call("explain", "plan.toml")
    assert table.code == 0 and "gain" in table.out
    assert "critical path" in table.out and said.json["critical_path"][0]["class"] in table.out


def test_capacity_counts_days_and_money(call: Call, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text("dgx-h100 = 2.0\n")
    found = call("capacity", "plan.toml", "--tokens", "1e9", "--prices", "prices.toml", "--json").json
    assert found["money"] == pytest.approx(2.0 * found["gpu_hours"])
    assert found["days"] == pytest.approx(found["elapsed_s"] / 86400)


TIMINGS = """kind,gpus,nodes,gpu,system,message_bytes,time_us
all_reduce,8,1,NVIDIA H100 SXM,dgx,1073741824,4800
all_gather,8,1,NVIDIA H100 SXM,dgx,1024,20
all_reduce,16,2,NVIDIA A100,dgx,268435456,2900
all_reduce,8,1,Abacus,home,1024,20
all_reduce,8,1,NVIDIA H100 SXM,dgx,1024,0
"""


def test_timings_of_collectives_are_scored(call: Call, tmp_path: Path) -> None:
    (tmp_path / "timings.csv").write_text(TIMINGS)
    found = call("validate", "--collectives", "--data", "timings.csv", "--json").json
    assert found["scored"] == 3
    assert [one["row"] for one in found["refused"]] == [5, 6]
    assert {row["span"] for row in found["rows"]} == {"one node", "several nodes"}
    assert found["median_ape"] < 0.5


@pytest.mark.parametrize(("text", "told"), [("kind,gpus\nx,1\n", "lacks the columns"), (TIMINGS.splitlines()[0] + "\n", "columns")])
def test_files_without_timings_are_refused(call: Call, tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    said = call("validate", "--collectives", "--data", "bad.csv")
    assert said.code == 2 and told in said.err


@pytest.mark.no_cover
def test_published_steps_are_scored(call: Call, tmp_path: Path) -> None:
    said = call("validate", "--limit", "4", "--workers", "1", "--json", "--report", "validation.html")
    assert said.code == 0
    found = said.json
    assert 1 <= found["scored"] <= 4 and found["mape"] < 1.0
    assert (tmp_path / "validation.html").is_file()
    assert call("validate", "--limit", "2", "--workers", "1").code == 0


@pytest.mark.no_cover
def test_all_tables_of_accuracy_are_printed(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose measurements are not there are left out, and named."""
    monkeypatch.setattr(tables, "validate_training", partial(validate_training, limit=3))
    said = call("accuracy", "--shared", ".", "--workers", "1", "--json")
    assert said.code == 0 and said.json["published steps"][0]["rows"] == 3
    assert "kernels" not in said.json and "facts is absent" in said.err
    shown = call("accuracy", "--shared", ".", "--workers", "1")
    assert shown.code == 0 and "published steps by GPU" in shown.out and "peak memory" in shown.out


@pytest.mark.no_cover
def test_a_spread_prints_its_quantiles_and_not_its_draws(call: Call) -> None:
    words = ("spread", "plan.toml", "--draws", "50", "--step", "0.1")
    shown, found = call(*words), call(*words, "--json").json
    assert shown.code == 0 and "samples" not in shown.out and len(found["samples_s"]) == 50
    assert "samples" in call("schema", "spread").out


def test_help_comes_with_examples(call: Call) -> None:
    said = call("predict", "--help")
    assert said.code == 0 and "Example" in said.out


def test_capacity_finds_the_smallest_cluster(call: Call) -> None:
    one = call("capacity", "plan.toml", "--tokens", "1e11", "--json").json
    found = call("capacity", "plan.toml", "--tokens", "1e11", "--days", str(one["days"] / 1.5), "--set", "batch.global=64", "--json")
    assert found.code == 0
    assert found.json["days"] <= one["days"] / 1.5 and found.json["fits"]
    never = call("capacity", "plan.toml", "--tokens", "1e11", "--days", "0.001", "--set", "batch.global=64")
    assert never.code == 2 and "the fastest was" in never.err


def test_capacity_takes_a_data_set_by_its_samples(call: Call) -> None:
    words = ("capacity", "plan.toml", "--epochs", "3", "--dataset", "50k samples")
    assert call(*words, "--json").json["steps"] == 37_500
    assert "150,000 samples of 256 tokens, 38.4 M tokens" in call(*words).out
    wrong = call("capacity", "plan.toml", "--tokens", "50k smples")
    assert wrong.code == 2 and "15T" in wrong.err and "50k samples" in wrong.err


@pytest.mark.parametrize("verb", [("sweep", "plan.toml", "micro=1,2", "--workers", "1"), ("capacity", "plan.toml", "--tokens", "1e9")])
def test_pages_of_studies_are_headed_by_the_plan_and_the_machine(verb: tuple[str, ...], call: Call, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(GPT2.replace("global = 4\n", "global = 8\n"))
    assert call(*verb, "--on", "2x dgx-h100", "--set", "nic.rate=25 GB/s", "--report", "p.html").code == 0
    assert "<h1>gpt2-124m on 2x dgx-h100 with nic.rate=25 GB/s</h1>" in (tmp_path / "p.html").read_text("utf-8")


def test_the_table_of_rooms_names_every_verb_and_no_other() -> None:
    from typer.main import get_command

    def verbs(app: Any) -> set[str]:
        return {name for name, command in get_command(app).commands.items() if getattr(command, "commands", True)}  # type: ignore[attr-defined]

    every = {verb for room in steptwin._ROOMS.values() for verb in room}
    assert verbs(steptwin._app()) == every
    for verb in every:
        assert verb in verbs(steptwin._app(verb))
        assert verbs(steptwin._app(verb)) < every


def test_a_sweep_in_which_nothing_fits_ends_with_3(call: Call) -> None:
    tight = call("sweep", "llama3-8b-fsdp8", "gpus=1 zero=0", "--workers", "1", "--out", "tight.sqlite")
    assert tight.code == 3 and "nothing in the space fits into memory; closest: " in tight.err
    none = call("sweep", "plan.toml", "tp=5", "--workers", "1", "--out", "none.sqlite")
    assert none.code == 2 and "nothing in the space can run" in none.err


@pytest.mark.no_cover
def test_a_terminal_says_how_many_rows_it_leaves_out(call: Call) -> None:
    words = ("sweep", "plan.toml", "micro=1,2,4 global=64 zero=0,1,2,3 recompute=none,full", "--every", "short", "--workers", "1")
    shown, found = call(*words).out, call(*words, "--json").json
    assert len(found["rows"]) == 24 and shown.count("batch.micro=") == 10 + 1, "ten rows, and the best"
    assert "shown: the best 10 of 24 simulated; --json and the file have all" in shown
    assert "shown:" not in call("sweep", "plan.toml", "micro=1", "--workers", "1").out
