"""The page of a prediction, for whatever a framework makes the host wait for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import steptwin
from sim.framework.framework import frameworks

PLAN = ["--set", "model.layers=2", "--set", "seq_len=128", "--set", "batch.global=8", "--set", "batch.micro=1"]


Page = Callable[[str], str]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Page:
    """The text of the page that `steptwin predict --out` writes with a framework."""

    def made(framework: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["steptwin", "predict", "gpt2-ddp8", *PLAN, "--set", f"framework={framework}", "--out", "run"])
        with pytest.raises(SystemExit) as end:
            steptwin.main()
        assert not end.value.code, capsys.readouterr().err
        return (tmp_path / "run" / "report.html").read_text("utf-8")

    return made


@pytest.mark.no_cover
@pytest.mark.parametrize("framework", sorted(frameworks()))
def test_every_frameworks_page_is_made(framework: str, page: Page) -> None:
    assert "Where the step goes" in page(framework)


@pytest.mark.no_cover
def test_a_wait_that_the_plan_cannot_avoid_is_told_without_a_time(page: Page) -> None:
    """Clipping reads the gradients' norm on the host."""
    assert "the plan cannot avoid it" in page("megatron-core")
