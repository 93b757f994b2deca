"""What somebody wrote by hand is not overwritten: refused before anything is computed, and never lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import steptwin
from sim.cost.calibration import load_calibration, save_calibration
from sim.files.inputs import write_inputs
from sim.files.owned import is_own, marked, write_own
from sim.files.planfile import dump_plan, load_plan
from tests.null.verbs.test_verbs import Call, call

__all__ = ["call"]


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is predicted."""

    def never(*args: object, **options: object) -> None:
        raise AssertionError("computed before it was refused")

    monkeypatch.setattr("sim.predict.predict", never)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("predict plan.toml --set batch.global=8 --out .", "the plan plan.toml lies there itself"),
        ("predict gpt2-ddp8 --out .", "plan.toml was not written by StepTwin"),
        ("predict sub/../plan.toml --out ../{}", "lies there itself"),
        ("compare plan.toml --measured trace.json --out .", "lies there itself"),
        ("predict gpt2-ddp8 --on dgx-h100 --out sub", "sub/topology.toml was not written"),
    ],
)
def test_a_file_of_ones_own_is_not_overwritten(words: str, told: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "topology.toml").write_text('base = "dgx-h100"\n')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said = call(*words.format(tmp_path.name).split())
    assert said.code == 2 and told in said.err and "--out runs/" in said.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("verb", ["predict plan.toml", "compare plan.toml --measured trace.json"])
def test_an_empty_folder_name_is_refused(verb: str, call: Call) -> None:
    said = call(*verb.split(), "--out", "")
    assert said.code == 2 and '--out "" names no folder' in said.err


@pytest.mark.no_cover
def test_a_run_is_written_over_a_run_and_rerun_from_its_folder(call: Call, tmp_path: Path) -> None:
    what = ("predict", "plan.toml", "--set", "gpu=h200-sxm", "--without", "nvswitch", "--out", "run", "--json")
    first = call(*what)
    assert first.code == 0 and first.json["topology"] == "dgx-h100 with gpu=h200-sxm, without nvswitch"
    assert "dgx-h100 with gpu=h200-sxm, without nvswitch, 4 ranks" in (tmp_path / "run" / "report.html").read_text()
    assert call(*what, "--set", "batch.global=8").code == 0 and call(*what).json == first.json
    assert call("predict", "run/plan.toml", "--on", "run/topology.toml", "--json").json == first.json
    (tmp_path / "run" / "plan.toml").write_text((tmp_path / "run" / "plan.toml").read_text() + "# mine now\n")
    refused = call(*what)
    assert refused.code == 2 and "changed since" in refused.err


def test_a_calibration_goes_with_the_run(call: Call, tmp_path: Path) -> None:
    save_calibration(load_calibration(None), tmp_path / "probe.toml")
    words = ("predict", "plan.toml", "--on", "cpu-host", "--out", "run")
    said = call(*words, "--calibration", "probe.toml")
    assert said.code == 0, said.err
    kept = tmp_path / "run" / "calibration.toml"
    assert is_own(kept) and kept.read_text().endswith((tmp_path / "probe.toml").read_text())
    assert call(*words, "--calibration", "run/calibration.toml").code == 0


def test_whose_a_file_is(tmp_path: Path) -> None:
    plan, text = tmp_path / "plan.toml", dump_plan(load_plan("gpt2-ddp8"))
    assert is_own(plan)
    plan.write_text(marked(text))
    assert is_own(plan) and load_plan(plan) == load_plan("gpt2-ddp8")
    plan.write_text(text)
    assert not is_own(plan), "anybody may have written it"
    (tmp_path / "environment.json").write_text("{}")
    assert is_own(plan), "as `steptwin run` writes it"
    for other in (text + "# mine\n", "model = 3\n", "[", marked(text).replace("64", "32")):
        plan.write_text(other)
        assert not is_own(plan)
    plan.write_bytes(b"\xff")
    assert not is_own(plan)


def test_where_it_is_too_late_to_refuse_ours_goes_beside(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('model = "mlp"  # mine\n')
    write_inputs(tmp_path, steptwin.plan("gpt2-ddp8"), None)
    assert (tmp_path / "plan.toml").read_text() == 'model = "mlp"  # mine\n'
    assert load_plan(tmp_path / "plan.steptwin.toml") == load_plan("gpt2-ddp8")
    assert write_own(tmp_path / "other.toml", "x = 1\n") == tmp_path / "other.toml"
