"""The table of GPU plans walked on a CPU: one plan for real, the others' ends by hand. No GPU, no timing."""

from __future__ import annotations

import io
import json
import os
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from executor.doctor import doctor
from executor.play import PlayResult
from executor.ranks.environment import ON_GPUS
from executor.stock import StockResult
from executor.twin import torch_version
from executor.validation import gpu_calibration, gpu_cases, gpu_fit, gpu_measure, gpu_run, gpu_twin
from executor.validation.gpu_cases import cases, shared_machine, slow
from executor.validation.gpu_measure import NOT_RUN
from executor.validation.gpu_rows import Row
from executor.validation.gpu_site import Site
from executor.validation.gpu_twin import twin_gpu
from reports.pages.gpu import main as page_main
from sim.cost.calibration import Calibration, Sample, load_calibration, save_calibration
from sim.files.runs import environment
from sim.imported.kineto import read_trace
from sim.predict import predict
from sim.trace import Trace
from topologies.errors import BadInput, Refused, RunFailed, UnknownName
from topologies.load import load_topology

VERSIONS = {"torch": torch_version()}


def _calibration(ranks: int, path: Path, say: object, machine: object = None, quick: bool = False) -> Calibration:
    """A file with one point, in the place of half a minute of probing."""
    if not path.is_file():
        rows = {"gemm": (Sample("fwd", "fp32", (64, 64, 64), 2e-5, 1e-5, 3e-5, 9),)}
        save_calibration(
            Calibration(device="cpu", date="", machine="", cores=2, ranks=ranks, threads=1, versions=VERSIONS, tables=rows), path
        )
    return load_calibration(path)


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_calibration, "calibrated", _calibration)
    monkeypatch.setattr(gpu_calibration, "comm_probe", lambda ranks, quick=False: _calibration(ranks, Path("/nonexistent/x"), None))


def _walk(names: list[str], folder: Path, **more: Any) -> dict[str, Row]:
    rows, _, _ = twin_gpu(names, folder, device="cpu", steps=3, quick=True, say=lambda _: None, **more)
    return {row.plan: row for row in rows}


@pytest.mark.timeout(200)
def test_one_plan_for_real(tmp_path: Path) -> None:
    row = _walk(["item-every-step"], tmp_path, keep=tmp_path / "kept")["item-every-step"]
    assert row.failed == {} and row.refused == {}
    assert row.uncalibrated and row.calibrated and row.played and row.stock and row.ops_within is not None
    assert row.played.count >= 3 and row.stock.count == 5
    assert {"gemm", "optimizer"} <= {one.cls for one in row.classes if one.played and one.stock}
    folder = tmp_path / "cpu" / "item-every-step"
    assert all(read_trace(folder / f"{name}.json.gz").spans for name in ("predicted", "played", "stock"))
    kept = json.loads((tmp_path / "kept" / "cpu" / "summary.json").read_text())
    assert kept["rows"][0]["plan"] == "item-every-step" and kept["summary"]["measured"] == 1
    assert str(tmp_path) not in json.dumps(kept)
    assert load_calibration(tmp_path / "kept" / "cpu" / "calibration.toml").entries == 1


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Played and trained plans by name, each with a step of 10 ms, but the ones that end badly."""
    seen: list[str] = []

    def play(program: Any, host: Any, folder: Path, steps: int) -> PlayResult:
        seen.append(f"play {folder.name}")
        if folder.name == "bert-base":
            raise RunFailed("rank 0 of 1 stopped with OutOfMemoryError (bodies.py:1): CUDA out of memory", str(folder))
        return PlayResult(step_times=[0.01] * 4, trace=Trace([], "played", 1, 2), by_rank=[[0.01]])

    def train(plan: Any, folder: Path, steps: int, every: int) -> tuple[StockResult, list[float]]:
        seen.append(f"stock {folder.name}")
        if folder.name == "bert-base":
            raise Refused("stock training knows decoders and MLPs")
        if folder.name == "pageable":
            raise ZeroDivisionError("nobody thought of this")
        trace = Trace([], "stock", 1, 2)
        return StockResult(step_times=[0.01], losses=[], trace=trace, first_buckets=[], buckets=[], by_rank=[], memory=5), [0.01]

    monkeypatch.setattr("executor.twin.run_play", play)
    monkeypatch.setattr(gpu_measure, "trained", train)
    return seen


NAMES = ["gpt2-124m", "bert-base", "pageable", "ladder"]


def test_what_dies_is_reported_and_the_others_go_on(tmp_path: Path, runs: list[str]) -> None:
    rows = _walk(NAMES, tmp_path)
    assert rows["bert-base"].failed.keys() == {"played"} and "OutOfMemoryError" in rows["bert-base"].failed["played"]
    assert rows["bert-base"].refused.keys() == {"stock"} and rows["bert-base"].uncalibrated
    assert str(tmp_path) not in rows["bert-base"].failed["played"]
    assert rows["pageable"].failed == {"stock": "nobody thought of this"} and rows["pageable"].played
    assert (tmp_path / "cpu" / "pageable" / "stock.error.txt").read_text().startswith("Traceback")
    assert rows["ladder"].failed == {} and rows["ladder"].stock and rows["ladder"].stock_memory == 5
    assert "no kernels" in rows["ladder"].notes[-1] and all(one.stock is None for one in rows["ladder"].classes), "these traces are empty"


def test_predicted_memory_is_of_tensors_as_the_measured_one_is(tmp_path: Path, runs: list[str]) -> None:
    setting, _ = gpu_fit.fitting(cases(1)["gpt2-124m"], _site("dgx-h100", tmp_path))
    row = Row(plan="", kind="", model="", ranks=1, key="")
    gpu_measure._fill(row, cases(1)["gpt2-124m"], _site("dgx-h100", tmp_path), tmp_path)
    found = predict(setting.plan, "dgx-h100")
    assert row.predicted_memory == found.memory.allocated < found.peak_memory_bytes


def test_the_next_call_runs_only_what_is_missing(tmp_path: Path, runs: list[str]) -> None:
    first = _walk(NAMES, tmp_path)
    runs.clear()
    again = _walk(NAMES, tmp_path)
    assert runs == ["play bert-base", "stock bert-base", "play pageable", "stock pageable"]
    assert again["gpt2-124m"] == first["gpt2-124m"]
    kept = json.loads((tmp_path / "cpu" / "summary.json").read_text())
    runs.clear()
    _walk(["ladder"], tmp_path)
    assert runs == []
    alone = json.loads((tmp_path / "cpu" / "summary.json").read_text())
    stay = {"gpt2-124m", "ladder", "pageable"}  # of pageable, the played half
    assert {row["plan"] for row in alone["rows"]} == stay, "what earlier calls have measured stays in the summary"
    assert len(kept["rows"]) == 4


def test_rows_of_several_calls_say_with_which_code_each_was_made(tmp_path: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of another commit keeps what is measured; its summary must not pass the older rows off as its own."""
    for commit, names in (("aaaa", ["ladder"]), ("bbbb", ["gpt2-124m"])):
        monkeypatch.setattr(gpu_twin, "environment", lambda commit=commit: environment() | {"commit": commit})
        _walk(names, tmp_path)
    kept = json.loads((tmp_path / "cpu" / "summary.json").read_text())
    assert {row["plan"]: row["made_with"]["commit"] for row in kept["rows"]} == {"ladder": "aaaa", "gpt2-124m": "bbbb"}
    assert all(row["made_with"]["torch"] for row in kept["rows"])


def test_what_failed_is_tried_again_last_and_kept_where_time_is_over(tmp_path: Path, runs: list[str]) -> None:
    half = _walk(["bert-base", "pageable"], tmp_path)
    runs.clear()
    _walk(["pageable", "ladder"], tmp_path)
    assert runs == ["play ladder", "stock ladder", "play pageable", "stock pageable"]
    again = _walk(NAMES, tmp_path, minutes=-1.0)
    assert again["pageable"].played == half["pageable"].played and again["pageable"].failed == half["pageable"].failed
    assert again["gpt2-124m"].failed == {"plan": NOT_RUN}


def test_when_the_minutes_are_over_nothing_is_begun(tmp_path: Path, runs: list[str]) -> None:
    rows = _walk(NAMES, tmp_path, minutes=-1.0)
    assert runs == [] and {row.failed["plan"] for row in rows.values()} == {NOT_RUN}
    assert not list(tmp_path.glob("cpu/*/row.json")), "not begun is not done: the next call begins it"


def test_what_is_asked_for_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="gpt2-124m"):
        _walk(["gpt2-124"], tmp_path)
    with pytest.raises(Refused, match="--device cpu"):
        twin_gpu(None, tmp_path, device="cuda")


def test_tiny_twins_of_all_plans_of_a_node(tmp_path: Path) -> None:
    large, tiny = cases(8), cases(8, small=True)
    assert large.keys() == tiny.keys() and {case.where for case in large.values()} == {"one", "node", "shared"}
    assert not [name for name, case in cases(1).items() if case.where == "node"]


def test_ranks_that_share_a_gpu_have_shares_of_it(tmp_path: Path) -> None:
    plan = cases(1)["two-on-one"].plan
    machine = shared_machine(2, "h100-sxm", tmp_path)
    whole = predict(msgspec.structs.replace(plan, parallel=msgspec.structs.replace(plan.parallel, dp_replicate=1)), machine)
    halves = predict(plan, machine, edits=(*slow(2), "without=p2p"))
    assert halves.gpus == 2 and halves.breakdown.compute_s > 1.8 * whole.breakdown.compute_s


def test_a_driver_that_draws_no_tree_still_counts_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: object) -> object:
        if name == "this-machine":
            raise BadInput("topo -m said nothing")
        return load_topology(name)  # type: ignore[arg-type]

    monkeypatch.setattr(gpu_cases, "load_topology", none)
    monkeypatch.setattr(gpu_cases, "device_facts", lambda: {"name": "NVIDIA H200", "memory_bytes": 143771 << 20, "count": 4})
    machine = gpu_cases.this_machine("cuda", tmp_path)
    assert (machine.kind, machine.gpus, machine.device(0).name) == ("cuda", 4, "h200-sxm")
    with pytest.raises(Refused, match=r"sees no GPU|\+cpu"):
        gpu_cases.visible_gpus(machine)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert gpu_cases.visible_gpus(machine) == 2
    monkeypatch.setattr(gpu_cases, "device_facts", dict)
    with pytest.raises(BadInput, match="said nothing"):
        gpu_cases.this_machine("cuda", tmp_path)


def test_a_driver_that_is_too_old_for_torch_is_said_before_cpus_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML counts GPUs that CUDA cannot start on; ranks would find none and compute on the CPU, under a GPU's name."""
    told = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12020). Please update (Triggered internally at x.cpp:1)"

    def old() -> bool:
        warnings.warn(told, stacklevel=1)
        return False

    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.is_available", old)
    with pytest.raises(Refused, match=r"too old \(found version 12020\)\. Please update\. Install a build"):
        gpu_cases.visible_gpus(load_topology("dgx-h100"))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda at: 1 / 0)
    assert "8 GPUs" in doctor()["devices"][0] and "too old" in doctor()["devices"][0]


def test_gpus_are_counted_where_the_drivers_tool_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(gpu_cases, "device_facts", lambda: {"name": "NVIDIA H200", "memory_bytes": 143771 << 20, "count": 1})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = gpu_cases.this_machine("cuda", tmp_path)
    assert (machine.kind, machine.gpus, machine.device(0).name) == ("cuda", 1, "h200-sxm")
    assert gpu_cases.this_machine("cpu", tmp_path).kind == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(Refused, match="--device cpu"):
        gpu_cases.this_machine("cuda", tmp_path)


def test_torch_counts_where_neither_the_tool_nor_its_library_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(gpu_cases, "device_facts", dict)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(Refused, match="--device cpu"):
        gpu_cases.this_machine("cuda", tmp_path)  # this torch sees none
    monkeypatch.setattr(gpu_cases, "_LOOK", "print(1, 85017493504, 'NVIDIA H100 80GB HBM3')")
    machine = gpu_cases.this_machine("cuda", tmp_path)
    assert (machine.kind, machine.gpus, machine.device(0).name) == ("cuda", 1, "h100-sxm")


def test_a_slice_of_a_gpu_is_not_measured_as_its_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 81559 << 20, "count": 1}
    monkeypatch.setattr(gpu_cases, "device_facts", lambda: whole)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(Refused, match="slices"):
        gpu_cases.this_machine("cuda", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(gpu_cases, "device_facts", lambda: whole | {"slices": True})
    with pytest.raises(Refused, match="slices"):
        gpu_cases.this_machine("cuda", tmp_path)
    # Without NVML torch alone tells: nvidia-smi names the whole, and its memory.
    monkeypatch.setattr(gpu_cases, "device_facts", dict)
    monkeypatch.setattr(gpu_cases, "load_topology", lambda name: load_topology("dgx-h100"))
    for name in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 80GB HBM3"):
        monkeypatch.setattr(gpu_cases, "_LOOK", f"print(1, 10334765056, '{name}')")
        with pytest.raises(Refused, match="slices") if "MIG" in name else nullcontext():
            assert gpu_cases.this_machine("cuda", tmp_path).kind == "cuda"


def test_a_probe_that_fails_leaves_the_uncalibrated_figures(tmp_path: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        runs.append("probe")
        raise RunFailed("rank 0 of 1 was killed by SIGKILL")

    monkeypatch.setattr(gpu_calibration, "calibrated", broken)
    rows = _walk(["gpt2-124m", "ladder"], tmp_path)
    assert runs.count("probe") == 1
    for row in rows.values():
        assert "SIGKILL" in row.failed["calibration"] and row.uncalibrated and row.calibrated is None and row.stock
        assert row.error("calibrated") is None and row.error("uncalibrated") is not None


def test_the_first_plans_are_of_every_kind() -> None:
    assert list(cases(1))[11:13] == ["two-on-one", "gpt2-355m"]
    assert [case.where for case in cases(8).values()][:16] == ["one"] * 11 + ["shared"] + ["node"] * 4


def test_the_bare_command(tmp_path: Path, runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--device", "cpu", "--out", str(tmp_path), "--steps", "5", "--quick"]
    assert gpu_run.main(["ladder", *asked]) == 0
    assert runs == ["play ladder", "stock ladder"] and "1 of 1 plans measured" in capsys.readouterr().out
    assert gpu_run.main(["leader", *asked]) == 2 and "ladder" in capsys.readouterr().err
    assert gpu_run.main(["ladder", "--out", str(tmp_path)]) == 2, "no GPU here"
    assert gpu_run.main(["gpt2-124m", *asked, "--minutes", "-1"]) == 4
    assert page_main([str(tmp_path / "cpu" / "summary.json")]) == 0
    assert "ladder" in (tmp_path / "cpu" / "report.html").read_text("utf-8")


def test_each_row_is_shown_when_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a pipe Python writes some kilobytes at once: a table that is ended there would have said nothing."""
    shown = io.TextIOWrapper(buffer := io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr("sys.stdout", shown)
    seen: list[bytes] = []

    def table(*_: Any, say: Any, **__: Any) -> Any:
        say("a row")
        seen.append(buffer.getvalue())
        return [], SimpleNamespace(measured=1, plans=1), tmp_path

    monkeypatch.setattr(gpu_twin, "twin_gpu", table)
    assert gpu_run.main(["--device", "cpu", "--out", str(tmp_path)]) == 0 and seen == [b"a row\n"]


def _site(machine: str, folder: Path) -> Site:
    return Site(
        folder=folder, machine=load_topology(machine), device="cuda", gpus=1, steps=5, quick=True, say=lambda _: None, end=0.0, made_with=()
    )


def test_a_calibration_of_an_older_version_ends_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies there until a plan of so many ranks is run: the rows before that are saved with the calibrations that can be read."""
    folder = tmp_path / "cpu"
    folder.mkdir()
    (folder / "calibration-2.toml").write_text("version = 1\n")
    monkeypatch.setattr(gpu_twin, "row_of", lambda case, site: Row(plan=case.name, kind="", model="", ranks=1))
    assert set(_walk(["ladder"], tmp_path)) == {"ladder"}
    assert list(json.loads((folder / "summary.json").read_text())["probed"]) == ["calibration-1"]


def test_what_a_quick_probe_has_left_serves_no_whole_run(tmp_path: Path) -> None:
    quick, path = _site("aws-g5", tmp_path), tmp_path / gpu_calibration.ONE
    for asked, kept in ((quick, True), (msgspec.structs.replace(quick, quick=False), False)):
        save_calibration(msgspec.structs.replace(_calibration(1, path, None), quick=True), path)
        gpu_calibration.probe(asked)
        assert load_calibration(path).quick is kept


def test_what_does_not_fit_is_run_with_fewer_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, case = _site("aws-g5", tmp_path), cases(1)["llama3-8b-4"]
    setting, plan = gpu_fit.fitting(case, site)
    assert plan == case.plan and setting.topology.device(0).name == "a10g" and gpu_fit.notes(case, setting) == ()
    monkeypatch.setattr(gpu_fit, "_SAFE", 0.7)
    setting, smaller = gpu_fit.fitting(case, site)
    assert smaller.model_name == "llama3-8b x 2 layers"
    assert gpu_fit.notes(case, setting) == ("llama3-8b x 4 layers does not fit here: run as llama3-8b x 2 layers",)
    monkeypatch.setattr(gpu_fit, "_SAFE", 0.01)
    with pytest.raises(BadInput, match="GiB"):
        gpu_fit.fitting(case, site)


@pytest.mark.parametrize(("name", "room", "micro", "workers", "ahead"), [
    ("resnet50", 64 << 20, 16, 4, 1),
    ("vit-b16", 400 << 20, 64, 8, 1),
    ("resnet50", 8 << 30, 64, 8, 2),
    ("copy-overlap", 64 << 20, 64, 8, 1),
    ("gpt2-124m", 0, 8, 0, 2),
])  # fmt: skip
def test_batches_that_shared_memory_does_not_hold_are_made_fewer_and_then_smaller(
    name: str, room: int, micro: int, workers: int, ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_fit, "shared_room", lambda: room)
    case = cases(1)[name]
    setting, plan = gpu_fit.fitting(case, _site("aws-g5", tmp_path))
    assert (plan.batch.micro, plan.data.workers, plan.data.prefetch) == (micro, workers, ahead)
    assert setting.plan == plan, "predicted is what is run"
    assert any("/dev/shm" in note for note in gpu_fit.notes(case, setting)) == (plan != case.plan)
    held = micro * setting.network.sample_bytes * (workers * ahead + 1)
    assert held <= room or not workers


def test_a_batch_of_one_is_the_least(tmp_path: Path) -> None:
    plan = gpu_fit.handed(cases(1)["resnet50"].plan, 602112, 1 << 20)
    assert (plan.batch.micro, plan.data.workers) == (1, 4)


def test_ranks_of_the_table_are_told_that_gpus_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(gpu_twin, "this_machine", lambda device, folder: load_topology("dgx-h100"))
    monkeypatch.setattr(gpu_twin, "visible_gpus", lambda machine: 1)
    monkeypatch.setattr(gpu_twin, "_walked", lambda *_: told.append(os.environ.get(ON_GPUS, "")))
    twin_gpu([], tmp_path)
    twin_gpu([], tmp_path, device="cpu")
    assert told == ["1", ""] and ON_GPUS not in os.environ


def test_shared_plans_are_bound_to_the_stand_in(tmp_path: Path) -> None:
    case = cases(1)["four-on-one"]
    setting, plan = gpu_fit.fitting(case, _site("aws-g5", tmp_path))
    assert plan.world == 4 == setting.topology.gpus and setting.topology.speed(3) == pytest.approx(0.25)
    with pytest.raises(Refused, match="hold the host thread"):
        gpu_measure._played(Row(plan="", kind="", model="", ranks=4), case, setting, None, None, tmp_path, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("machine", "version", "deprioritized", "family"), [
    ("dgx-h100", 91900, "", "cudnn"),
    ("dgx-h100", 91002, "", "flash2"),
    ("dgx-h100", 91900, "1", "flash2"),
    ("dgx-a100", 91900, "", "flash2"),
])  # fmt: skip
def test_attention_is_by_the_kernels_that_torch_chooses(
    machine: str, version: int, deprioritized: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: version)
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", deprioritized)
    for name in ("gpt2-124m", "two-on-one"):
        case = cases(1)[name]
        setting, _ = gpu_fit.fitting(case, _site(machine, tmp_path))
        assert setting.framework.attention.kernels == family
        assert any("cudnn" in note for note in gpu_fit.notes(case, setting)) == (family == "cudnn")
    for name in ("gpt2-124m-fp32", "resnet50"):  # which cuDNN does not attend in, and what attends to nothing
        setting, _ = gpu_fit.fitting(case := cases(1)[name], _site(machine, tmp_path))
        assert setting.framework.attention.kernels == "flash2" and not any("cudnn" in note for note in gpu_fit.notes(case, setting))
