"""`steptwin plan capture` end to end: code by name, a file, and predictions of plans that name the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from executor.recording.capture import capture_to  # noqa: E402
from sim.files.planfile import load_plan  # noqa: E402
from sim.planning.sweeps.sweep import sweep  # noqa: E402
from sim.predict import predict  # noqa: E402
from sim.result.prediction import Prediction  # noqa: E402
from sim.setting.bind import bind  # noqa: E402
from topologies.errors import BadInput, Refused  # noqa: E402

ZOO = "tests.conformance.zoo"
INPUTS = {"Cnn": "4x3x32x32:fp32", "Words": "4x32:int64", "Lstm": "4x24:int64"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: capture_to(f"{ZOO}:{name}", [text], folder / f"{name.lower()}.model.json", trust=True) for name, text in INPUTS.items()}


def plan(path: Path, **more: Any) -> dict[str, Any]:
    return {"model": str(path), "precision": "fp32", "optimizer": {"name": "sgd"}, "batch": {"micro": 4}, **more}


WAYS: dict[str, dict[str, Any]] = {
    "one": {},
    "ddp": {"dp_replicate": 4},
    "zero-1": {"dp_shard": 4, "zero": 1},
    "fsdp": {"dp_shard": 4, "zero": 3},
    "hsdp": {"dp_replicate": 2, "dp_shard": 2, "zero": 3},
}


def ran(path: Path, **parallel: Any) -> Prediction:
    return predict(plan(path, parallel=parallel), "dgx-h100")


@pytest.mark.no_cover
@pytest.mark.parametrize("name", INPUTS)
def test_a_file_is_a_model_of_every_data_parallel_plan(name: str, files: dict[str, Path]) -> None:
    found = {way: ran(files[name], **parallel) for way, parallel in WAYS.items()}
    alone = found["one"]
    import tests.conformance.zoo as zoo

    module = getattr(zoo, name)()
    assert alone.parameters == sum(p.numel() for p in module.parameters())
    assert all(other.step_time_s > 0 and other.parameters == alone.parameters for other in found.values())
    assert found["ddp"].step_time_s > alone.step_time_s
    assert found["fsdp"].memory.parameters < found["ddp"].memory.parameters
    sent = {way: {span.name for span in (one.trace.spans if one.trace else ()) if span.kind == "collective"} for way, one in found.items()}
    assert sent["one"] == set()
    assert sent["ddp"] == {"all_reduce"} | ({"broadcast"} if any(True for _ in module.buffers()) else set())
    assert {"all_gather", "reduce_scatter"} <= sent["fsdp"]


def test_fsdp_gathers_module_by_module(files: dict[str, Path]) -> None:
    found = ran(files["Words"], dp_shard=4, zero=3)
    assert found.trace is not None
    gathered = {span.id.split("/", 2)[2] for span in found.trace.spans if span.name == "all_gather" and span.step == 1}
    assert all(any(f"L{i}" in one for one in gathered) for i in range(4)), gathered


def test_layers_make_pipeline_stages(files: dict[str, Path]) -> None:
    """What a stage sends is the activations of a layer: 4 x 32 tokens of 64 fp32 numbers."""
    tree = plan(files["Words"], parallel={"pp": 2}, batch={"micro": 4, "global": 32})
    assert bind(tree, "dgx-h100").network.boundary == 4 * 32 * 64 * 4
    found = predict(tree, "dgx-h100")
    assert found.trace is not None
    assert {span.bytes for span in found.trace.spans if span.kind == "send"} == {4 * 32 * 64 * 4}


def test_a_captured_model_brings_its_own_tokens(files: dict[str, Path]) -> None:
    assert bind(plan(files["Words"]), "dgx-h100").network.seq == 32
    with pytest.raises(Refused, match="captured at seq_len = 32, the plan wants 64"):
        bind(plan(files["Words"], seq_len=64), "dgx-h100")


@pytest.mark.parametrize("parallel", [{"tp": 2}, {"cp": 2}, {"dp_shard": 2, "ep": 2}])
def test_what_needs_a_description_is_refused(parallel: dict[str, int], files: dict[str, Path]) -> None:
    with pytest.raises(Refused, match="a captured model is split by data or pipeline parallelism only; set tp = cp = ep = 1"):
        ran(files["Words"], **parallel)


def test_the_plan_s_precision_must_be_the_captured_one(files: dict[str, Path]) -> None:
    with pytest.raises(Refused, match="--precision bf16"):
        bind(plan(files["Cnn"]) | {"precision": "bf16"}, "dgx-h100")
    half = capture_to(f"{ZOO}:Cnn", ["4x3x32x32:bf16"], files["Cnn"].with_name("half.model.json"), trust=True)
    assert bind(plan(half) | {"precision": "bf16"}, "dgx-h100").network.parameters > 0


def test_a_plan_file_names_it(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "words.toml"
    path.write_text(f'model = "{files["Words"]}"\nprecision = "fp32"\n[batch]\nmicro = 2\n[parallel]\ndp_shard = 8\nzero = 3\n')
    assert predict(load_plan(path), "dgx-h100").step_time_s > 0


def test_a_sweep_takes_the_precision_that_it_was_captured_in(files: dict[str, Path], tmp_path: Path) -> None:
    found = sweep(load_plan(plan(files["Cnn"])), {"batch.micro": ("2", "4")}, "dgx-h100", tmp_path / "found.sqlite")
    assert {row.outcome for row in found.rows} == {"done"} and len(found.rows) == 2


def test_the_file_is_called_as_it_is_told(tmp_path: Path) -> None:
    found = capture_to(f"{ZOO}:Cnn", ["4x3x32x32:fp32"], tmp_path / "mine.json", trust=True)
    assert [*tmp_path.iterdir()] == [found] == [tmp_path / "mine.json"]
    network = bind(plan(found), "dgx-h100").network
    assert network.name == "mine" and network.parameters > 0
    for name in ("mine", "mine.pt"):
        with pytest.raises(BadInput, match=rf"{name} does not\. Write .*{name}\.model\.json"):
            capture_to(f"{ZOO}:Cnn", ["4x3x32x32:fp32"], tmp_path / name, trust=True)


def test_nothing_runs_without_trust(tmp_path: Path) -> None:
    (tmp_path / "bomb.py").write_text("raise SystemExit('ran')\n")
    code = "import sys; sys.path.insert(0, sys.argv[1])\nfrom executor.recording.capture import capture_to\ncapture_to('bomb:build', ['2x2'], sys.argv[2])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), str(tmp_path / "x.json")], capture_output=True, text=True, timeout=60)
    assert "add --trust" in done.stderr and "ran" not in done.stderr.replace("runs its code", "")
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("Chooser", "4x8", r"module 'gate' decides by the values of a tensor .*torch\.where"),
        ("Picker", "4x8", r"the model itself decides by the values of a tensor .*mask"),
        ("Cnn", "4x8:fp32", r"module 'body\.0' fails on inputs 4x8:fp32"),
        ("needs_more", "4x8", "the builder failed: TypeError.*called without arguments"),
        ("nothing", "4x8", "the builder returned int, not a torch.nn.Module"),
        ("ready", "4x8", "is no function; give one that returns the torch.nn.Module"),
        ("absent", "4x8", "cannot load tests.conformance.zoo:absent"),
        ("Words", "4x8:fp32", r"(module 'embed'|the model itself) fails on inputs 4x8:fp32"),  # torch 2.11 embeds such words on paper
        ("Cnn", "0x3", "cannot read input"),
    ],
)
def test_errors_say_where_and_what_to_do(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        capture_to(f"{ZOO}:{name}", [text], tmp_path / "x.json", trust=True)
    assert not list(tmp_path.iterdir())


MIXED = """from torch import nn


def build():
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    return nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Flatten(2), nn.TransformerEncoder(layer, 2))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4)

    def forward(self, x):
        return self.inner(x) @ self.inner(x)
"""


@pytest.mark.parametrize(("name", "text"), [("build", "8x1x16x16:fp32"), ("Twice", "8x4:fp32")])
def test_inputs_of_a_wrong_shape_end_with_one_message(name: str, text: str, tmp_path: Path) -> None:
    """Fake tensors of the failed pass die before the interpreter, whose end they would corrupt, and torch logs nothing of its own."""
    (tmp_path / "mixed.py").write_text(MIXED)
    words = ("plan", "capture", f"mixed:{name}", "--input", text, "--out", "x.model.json", "--trust")
    done = subprocess.run([sys.executable, "-m", "steptwin", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and f"fails on inputs {text}" in done.stderr and len(done.stderr.splitlines()) == 1


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"pip install 'steptwin\[torch\]'"):
        capture_to(f"{ZOO}:Cnn", ["4x3x32x32"], tmp_path / "x.json", trust=True)


def test_code_that_cannot_be_loaded(tmp_path: Path) -> None:
    for spec, message in (
        ("tests.conformance.no_zoo:build", "it is not found"),
        ("no_zoo:build", "it is not found"),
        ("zoo", r"Write package\.module:function"),
    ):
        with pytest.raises(BadInput, match=message):
            capture_to(spec, ["2x2"], tmp_path / "x.json", trust=True)
    with pytest.raises(BadInput, match="no input is given"):
        capture_to(f"{ZOO}:Cnn", [], tmp_path / "x.json", trust=True)
    with pytest.raises(BadInput, match="batches differ: 2, 3"):
        capture_to(f"{ZOO}:Cnn", ["2x2", "3x2"], tmp_path / "x.json", trust=True)
    with pytest.raises(BadInput, match=r"folder .* does not exist"):
        capture_to(f"{ZOO}:Cnn", ["2x2"], tmp_path / "no" / "x.json", trust=True)
