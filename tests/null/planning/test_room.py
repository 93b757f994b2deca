"""Plans that leave a device little room say so: of changes, of a sweep's plans, on pages, by the rule that a prediction warns by."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import steptwin
from reports.pages.capacity import capacity_page
from reports.pages.studies import explain_page
from reports.pages.sweep import sweep_page
from sim.files.planfile import dump_plan, load_plan
from sim.memory.report import Fill
from sim.planning.capacity.capacity import capacity
from sim.planning.explain.explanation import Explanation, explain
from sim.planning.sweeps.space import parse_space
from sim.planning.sweeps.sweep import sweep
from sim.predict import predict_setting
from sim.result.figures import fill_of
from sim.setting.bind import bind

PLAN = load_plan(
    {
        "model": "gpt2-1.5b",
        "seq_len": 1024,
        "batch": {"global": 64, "micro": 8},
        "parallel": {"dp_shard": 8, "zero": 3},
        "memory": {"recompute": "full"},
    }
)
NONE = load_plan(PLAN, ("memory.recompute=none",))


def small(share: float) -> tuple[str, ...]:
    """A device of which tensors and context of the plan without recomputation take such a share."""
    return (f"gpu.memory={int(fill_of(bind(NONE, 'dgx-h100')).needed / share / 2**20)} MiB",)


@pytest.mark.parametrize(("share", "full"), [(0.92, False), (0.94, True), (1.01, False)])
def test_a_device_is_nearly_full_from_a_share_on_as_long_as_the_plan_fits(share: float, full: bool) -> None:
    setting = bind(NONE, "dgx-h100", small(share))
    fill, found = fill_of(setting), predict_setting(setting, detail=False)
    assert (fill.needed / fill.available, fill.peak) == (pytest.approx(share, abs=1e-3), found.peak_memory_bytes)
    assert fill.nearly_full is full is any("may not fit" in text for text in found.warnings)
    assert ("nearly full" in str(fill)) is full and found.fits is (share < 1)


def test_slack_that_is_cut_short_is_told() -> None:
    assert str(Fill(60 << 30, 50 << 30, 80 << 30, False)) == "60 GiB of 80 GiB"
    assert str(Fill(80 << 30, 70 << 30, 80 << 30, False)) == "80 GiB of 80 GiB, 70 GiB without cache"
    assert str(Fill(79 << 30, 76 << 30, 80 << 30, True)) == "79 GiB of 80 GiB, 76 GiB without cache: nearly full"
    assert str(Fill(60 << 30, 50 << 30, 0, False)) == "60 GiB"


@pytest.fixture(scope="module")
def explained() -> Explanation:
    return explain(bind(PLAN, "dgx-h100", small(0.95)))


@pytest.mark.no_cover
def test_a_change_that_leaves_little_room_says_so(explained: Explanation) -> None:
    fills = {one.overrides: one.memory for one in explained.changes}
    tight = fills["memory.recompute=none",]
    assert tight is not None and tight.nearly_full and tight == fill_of(bind(NONE, "dgx-h100", small(0.95)))
    assert not any(fill is None or fill.nearly_full for words, fill in fills.items() if words != ("memory.recompute=none",))
    assert explained.memory is not None and not explained.memory.nearly_full
    said = [line for line in str(explained).splitlines() if "nearly full" in line]
    assert len(said) == 1 and said[0].strip().startswith("memory.recompute=none")
    told = explained.to_dict()
    assert [one["memory"]["nearly_full"] for one in told["changes"]] == [one is tight for one in fills.values()]
    assert told["memory"]["available"] == tight.available
    page = explain_page("p", "m", explained)
    assert page.count('<div class="warn">') == 1 and f"With memory.recompute=none the plan takes {tight}" in page


@pytest.mark.no_cover
def test_the_plan_itself_says_so_too() -> None:
    found = explain(bind(NONE, "dgx-h100", small(0.95)), tries=0)
    assert "nearly full" in found.room and "This plan takes" in explain_page("p", "m", found)


def test_plans_of_a_sweep_say_so_and_the_best_with_room_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = small(0.95)
    found = sweep(PLAN, parse_space("recompute=none,full"), "dgx-h100", tmp_path / "a.sqlite", edits=edits)
    marks = {found.plan(row).memory.recompute: row.nearly_full for row in found.ranked}
    assert marks == {"none": True, "full": False} and found.best is found.ranked[0] and found.best.nearly_full
    assert found.best.fill == fill_of(bind(NONE, "dgx-h100", edits))
    assert "nearly full" in str(found).splitlines()[2] and "nearly full" not in str(found).splitlines()[3]
    assert [row["nearly_full"] for row in found._rows()] == [True, False]
    assert found.roomy is found.ranked[1] and f"with room in memory: {found.roomy.key}, a step of" in sweep_page("s", found)
    assert sweep(PLAN, parse_space("recompute=none,full"), "dgx-h100", tmp_path / "c.sqlite").roomy is None
    assert sweep_page("s", found).count(": nearly full") == 2, "beside the runner-up, and among those that nothing beats"
    plan = tmp_path / "plan.toml"
    plan.write_text(dump_plan(PLAN), "utf-8")
    words = ["steptwin", "sweep", str(plan), "recompute=none,full", "--set", *edits, "--out", str(tmp_path / "b.sqlite")]
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", words + more)
        with suppress(SystemExit):
            steptwin.main()
        out, err = capsys.readouterr()
        if more:
            told = json.loads(out)
            assert told["roomy"].startswith("memory.recompute=full") and told["roomy_again"] != told["again"]
            assert "memory.recompute=full" in told["roomy_again"] and "memory.recompute=none" in told["again"]
            assert [row["detail"]["fill"]["nearly_full"] for row in json.loads(out)["rows"]] == [True, False]
        else:
            assert "best with room in memory: memory.recompute=full" in out and out.count(": nearly full") == 1
            first, last = err.splitlines()[-2:]
            assert first.startswith("the best plan, nearly full: steptwin predict") and "memory.recompute=none" in first
            assert last.startswith("the best with room in memory: steptwin predict") and "memory.recompute=full" in last


def test_a_training_says_so_too() -> None:
    found, roomy = (capacity(plan, "dgx-h100", 1e9, edits=small(0.95)) for plan in (NONE, PLAN))
    assert found.memory is not None and found.memory.nearly_full and found.to_dict()["memory"]["nearly_full"]
    assert "nearly full" in str(found) and "nearly full" not in str(roomy)
    page = capacity_page("c", found)
    assert f"This plan takes {found.memory}" in page and ">nearly full</td>" in page and "nearly full" not in capacity_page("c", roomy)
