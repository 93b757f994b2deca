"""The page of a prediction, for whatever a framework makes the host wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

import steptwin
from sim.framework import frameworks

PLAN = ["--set", "seq_len=128", "--set", "batch.global=8", "--set", "batch.micro=1"]


@pytest.mark.parametrize("framework", sorted(frameworks()))
def test_every_frameworks_page_is_made(
    framework: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["steptwin", "predict", "gpt2-ddp8", *PLAN, "--set", f"framework={framework}", "--out", "run"])
    with pytest.raises(SystemExit) as end:
        steptwin.main()
    assert not end.value.code, capsys.readouterr().err
    assert "Where the step goes" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_a_wait_that_the_plan_cannot_avoid_is_told_without_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clipping reads the gradients' norm on the host."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["steptwin", "predict", "gpt2-ddp8", *PLAN, "--set", "framework=megatron-core", "--out", "run"])
    with pytest.raises(SystemExit) as end:
        steptwin.main()
    assert not end.value.code, capsys.readouterr().err
    assert "the plan cannot avoid it" in (tmp_path / "run" / "report.html").read_text("utf-8")
