"""The page of a prediction, for whatever a framework makes the host wait for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import steptwin
from sim.framework.framework import frameworks

PLAN = ["--set", "model.layers=2", "--set", "seq_len=128", "--set", "batch.global=8", "--set", "batch.micro=1"]


Page = Callable[..., str]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Page:
    """The text of the page that `steptwin predict --out` writes with a framework, and more words of the plan."""

    def made(framework: str, *more: str) -> str:
        monkeypatch.chdir(tmp_path)
        sets = [word for one in (f"framework={framework}", *more) for word in ("--set", one)]
        monkeypatch.setattr("sys.argv", ["steptwin", "predict", "gpt2-ddp8", *PLAN, *sets, "--out", "run"])
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


@pytest.mark.no_cover
def test_links_keep_the_time_of_the_step_that_is_drawn(page: Page) -> None:
    """A checkpoint after each step makes the mean one many times as long; transfers stood as far apart as if they went on meanwhile."""
    quiet, saving = page("pytorch"), page("pytorch", "output.checkpoint_every=1", "output.checkpoint_mode=full")
    assert _heat_ends(saving) == pytest.approx(_heat_ends(quiet), rel=0.05)
    assert "is drawn; a mean one takes" in saving and "of it output (checkpoints, logs), which is not drawn" in saving
    assert "is drawn; a mean one takes" not in quiet


def _heat_ends(text: str) -> float:
    """Where the last column of the page's heat map stands."""
    figures = [json.loads(one) for one in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text)]
    (heat,) = [trace for figure in figures for trace in figure["data"] if trace["type"] == "heatmap"]
    return float(heat["x"][-1])
