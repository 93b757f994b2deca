"""Studies that take long say how far they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import steptwin
from sim.files.planfile import load_plan
from sim.planning import progress
from sim.planning.capacity.scaling import scaling
from sim.planning.disturbed.faults import faults
from sim.planning.disturbed.jobs import jobs
from sim.planning.explain.explanation import explain
from sim.planning.explain.neighbours import neighbours
from sim.planning.progress import Progress, Say, logged
from sim.setting.bind import bind

PLAN = load_plan({"model": "gpt2-124m", "seq_len": 128, "batch": {"global": 16, "micro": 1}, "parallel": {"dp_replicate": 8}})
SMALL = load_plan(PLAN, ("parallel.dp_replicate=2", "batch.global=2"))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that gains three seconds at each look."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 3.0
        return now

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))


@pytest.mark.no_cover
@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("study", "lines"),
    [
        (
            lambda say: explain(bind(PLAN, "dgx-h100"), say=say),
            ("simulating the step, for its critical path", "1/11 resources made faster, "),
        ),
        (lambda say: explain(bind(PLAN, "dgx-h100"), say=say), (f"1/{len(neighbours(PLAN))} changes of plan looked at, ",)),
        (lambda say: faults(PLAN, "dgx-h100", say=say), ("1/3 machines simulated, ", "3/3 machines simulated, ")),
        (lambda say: jobs([SMALL, SMALL], "dgx-h100", say=say), ("1/6 runs simulated, ", "6/6 runs simulated, ")),
        (
            lambda say: scaling(PLAN, "dgx-h100", (8, 16), 1e9, say=say),
            ("1/2 sizes of cluster simulated, ", "2/2 sizes of cluster simulated, "),
        ),
    ],
    ids=["explain", "its changes", "faults", "jobs", "scaling"],
)
def test_a_study_says_how_far_it_is(study: Callable[[Say], Any], lines: tuple[str, ...]) -> None:
    said: list[str] = []
    study(said.append)
    for line in lines:
        assert any(one.startswith(line) for one in said), (line, said)


@pytest.mark.usefixtures("slow")
def test_a_rate_below_one_a_second_is_said_in_seconds_each() -> None:
    said: list[str] = []
    told = Progress(4, "sizes", said.append)
    told.more()
    told.more(3)
    assert said == ["1/4 sizes, 3 s each, 9 s left", "4/4 sizes, 2 s each, 0 s left"]


def test_nothing_is_said_of_what_is_fast() -> None:
    said: list[str] = []
    Progress(4, "sizes", said.append).more(4)
    assert said == []


def test_where_nobody_watches_a_log_has_the_first_line_and_one_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    now = [100.0]
    monkeypatch.setattr("sim.planning.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    say = logged(told.append)
    for second in range(65):
        now[0] = 100.0 + second
        say(f"{second}")
    assert told == ["0", "31", "62"]


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("explain gpt2-ddp8", "resources faster and up to 8 changes of plan"),
        ("sweep gpt2-ddp8 micro=1,2 --workers 1", "2 points of the space"),
    ],
)
def test_long_verbs_say_at_first_how_much_they_will_do(
    words: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["steptwin", *words.split(), "--json"])
    with suppress(SystemExit):
        steptwin.main()
    out, err = capsys.readouterr()
    assert first in err.splitlines()[0] and json.loads(out)
