"""Rows of a sweep: how they are ranked, and that a space without a plan leaves no file."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

import steptwin
from sim.files.planfile import load_plan
from sim.planning.sweeps import judge, told
from sim.planning.sweeps.front import CLOSE, cautious, open_questions
from sim.planning.sweeps.screen import screened
from sim.planning.sweeps.space import parse_space
from sim.planning.sweeps.store import Row
from sim.planning.sweeps.sweep import Sweep, sweep
from sim.setting.bind import Setting
from topologies.errors import BadInput

PLAN = load_plan({"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 64, "micro": 8}, "parallel": {"dp_replicate": 8}})
SHARDED = load_plan({"model": "gpt2-124m", "seq_len": 256, "batch": {"global": 64, "micro": 8}, "parallel": {"dp_shard": 8}})


def test_a_slip_of_the_pen_keeps_no_name(tmp_path: Path) -> None:
    """Where nothing of a space can run, its file is not there afterwards, and what is too large is told in GiB."""
    big = load_plan({"model": "llama3-70b", "seq_len": 512, "batch": {"global": 8, "micro": 1}})
    with pytest.raises(BadInput, match="alone take") as raised:
        sweep(big, parse_space("zero=0 gpus=8"), "dgx-h100", tmp_path / "c.sqlite")
    told = float(str(raised.value).partition("alone take ")[2].partition(" GiB")[0])
    assert 70e9 * 8 / 2**30 < told < 71e9 * 8 / 2**30  # weights, gradients and Adam's two states in 16 bits
    assert list(tmp_path.iterdir()) == []
    assert sweep(PLAN, parse_space("micro=4,8"), "dgx-h100", tmp_path / "c.sqlite").counts["done"] == 2


@pytest.mark.parametrize("table", ["photos (name TEXT)", "results (a INTEGER)"])
def test_a_database_of_something_else_is_left_as_it_is(table: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.sqlite"
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"CREATE TABLE {table}")
        database.commit()
    before = file.read_bytes()
    with pytest.raises(BadInput, match=r"mine\.sqlite is a database of something else"):
        sweep(PLAN, parse_space("micro=4,8"), "dgx-h100", file)
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


@pytest.mark.no_cover
def test_a_file_that_is_damaged_beyond_its_first_pages_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "found.sqlite"
    space = parse_space("micro=1..8 recompute=none,selective,full zero=0,1,2,3 on=dgx-h100,dgx-a100,dgx-b200")
    sweep(SHARDED, space, "dgx-h100", file, every="short")
    pages = bytearray(file.read_bytes())
    assert len(pages) > 8 * 4096
    pages[-3 * 4096 :] = bytes(3 * 4096)
    file.write_bytes(pages)
    with pytest.raises(BadInput, match=r"found\.sqlite cannot be used \(database disk image is malformed\)"):
        sweep(SHARDED, space, "dgx-h100", file)


def test_a_name_of_another_format_is_refused(tmp_path: Path) -> None:
    for end in ("parquet", "csv", "html", "toml"):
        with pytest.raises(BadInput, match=r"call it all\.sqlite"):
            sweep(PLAN, parse_space("micro=4,8"), "dgx-h100", tmp_path / f"all.{end}")
    with pytest.raises(BadInput, match=r"call it all\.sqlite"):
        sweep(PLAN, parse_space("micro=4,8"), "dgx-h100", tmp_path / "all.parquet")


def test_the_best_of_several_clusters_is_printed_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More GPUs are faster, and worse for each of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["steptwin", "sweep", "llama3-8b-fsdp8", "gpus=8,16", "--set", "batch.global=16", "--on", "2x dgx-h100", "--json"]
    )
    with suppress(SystemExit):
        steptwin.main()
    said = json.loads(capsys.readouterr().out)
    assert [row["gpus"] for row in said["rows"]] == [8, 16] and said["rows"][0]["key"] == said["best"]
    assert said["rows"][0]["step_time_s"] > said["rows"][1]["step_time_s"]


@pytest.mark.no_cover
def test_plans_of_a_deeper_model_are_put_aside_by_plans_of_their_own_alone(tmp_path: Path) -> None:
    """A shallower model or shorter sequences take less time and memory for a sample, and train something else."""
    space = parse_space("model.layers=2,12 seq_len=128,256 micro=1,2,4,8 recompute=none,full zero=0,3")
    found = sweep(SHARDED, space, "dgx-h100", tmp_path / "a.sqlite")
    every = sweep(SHARDED, space, "dgx-h100", tmp_path / "b.sqlite", every="whole")
    assert {row.key for row in found.front} == {row.key for row in every.front} and found.counts["bound"] > 0
    for depth in ("2", "12"):
        for length in ("128", "256"):
            same = [row for row in every.feasible if row.key.startswith(f"model.layers={depth} seq_len={length} ")]
            assert min(same, key=lambda row: row.effort).key in {row.key for row in found.front}


def test_a_shallower_model_is_no_better_plan_for_its_shorter_samples(tmp_path: Path) -> None:
    """Plans that train different things are ranked by what they do with a GPU, not by what a sample takes."""
    deep, shallow, slow = (
        Row("model.layers=32 on=x", "done", step_time=2.0, rate=4.0, gpus=1, flops=32.0),
        Row("model.layers=2 on=x", "done", step_time=0.5, rate=32.0, gpus=1, flops=2.0),
        Row("model.layers=32 zero=3 on=x", "done", step_time=2.0, rate=3.0, gpus=1, flops=32.0),
    )
    assert Sweep([shallow, slow, deep], "", {}).best == deep
    found = sweep(PLAN, parse_space("model.layers=2,12 micro=8"), "dgx-h100", tmp_path / "a.sqlite")
    best = found.best
    assert best is not None and best.mfu == max(row.mfu or 0.0 for row in found.feasible)


def test_plans_without_a_rate_rank_last() -> None:
    none, slow, fast, few = (
        Row("n", "refused"),
        Row("s", "done", rate=1e-3, gpus=8),
        Row("f", "done", rate=50.0, gpus=8),
        Row("o", "done", rate=9.0),
    )
    assert sorted((none, slow, fast, few), key=lambda row: row.effort) == [few, fast, slow, none]
    assert fast.effort == 8 / 50 and few.effort == 1 / 9


@pytest.mark.no_cover
def test_other_prices_change_what_was_kept(tmp_path: Path) -> None:
    """A file goes on with the prices that are said now: its rows cost those, and what a bound decided at others is decided anew."""
    plan = PLAN
    space = parse_space("micro=2,4,8 zero=0,1 gpus=8 on=dgx-h100,dgx-a100")
    file = tmp_path / "a.sqlite"
    free = sweep(plan, space, "dgx-h100", file)
    assert all(row.cost is None for row in free.feasible)
    cheap = {"dgx-h100": 100.0, "dgx-a100": 0.5}
    found = sweep(plan, space, "dgx-h100", file, prices=cheap)
    fresh = sweep(plan, space, "dgx-h100", tmp_path / "b.sqlite", prices=cheap)
    assert [row.key for row in found.front] == [row.key for row in fresh.front]
    assert {row.key: row.cost for row in found.front} == pytest.approx({row.key: row.cost for row in fresh.front})
    assert any(row.key.endswith("dgx-a100") for row in found.front)
    again = sweep(plan, space, "dgx-h100", file, prices={name: 2 * price for name, price in cheap.items()})
    costs = {row.key: row.cost or 0.0 for row in found.feasible}
    assert all(row.cost == pytest.approx(2 * costs[row.key]) for row in again.feasible if row.key in costs)


@pytest.mark.no_cover
def test_each_sweep_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = PLAN
    first = sweep(plan, parse_space("micro=4,8"), "dgx-h100")
    other = sweep(plan, parse_space("micro=2,8"), "dgx-h100")
    again = sweep(plan, parse_space("micro=4,8"), "dgx-h100")
    assert first.path == again.path != other.path and Path(first.path).parent == Path("runs")
    assert first.rows == again.rows and len(list(Path("runs").glob("*.sqlite"))) == 2


def test_a_plan_that_cannot_be_simulated_does_not_end_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in one plan is its row, said with its name; the next run tries that one again."""
    file, space = tmp_path / "s.sqlite", parse_space("micro=2,4,8")

    def broken(setting: Setting) -> float:
        if setting.plan.batch.micro == 4:
            raise ZeroDivisionError("float division by zero")
        return screened(setting)

    with monkeypatch.context() as patched:
        patched.setattr(judge, "screened", broken)
        found = sweep(PLAN, space, "dgx-h100", file, every="short")
        assert (found.counts["done"], found.counts["failed"]) == (2, 1)
        assert found.failure and "micro=4" in found.failure.key and found.failure.reason == "ZeroDivisionError: float division by zero"
        with pytest.raises(BadInput, match=r"batch\.micro=4 .*failed, a fault of StepTwin: ZeroDivisionError"):
            sweep(PLAN, parse_space("micro=4"), "dgx-h100", tmp_path / "t.sqlite", every="short")
    found = sweep(PLAN, space, "dgx-h100", file, every="short")
    assert (found.counts["done"], found.counts["failed"], found.failure) == (3, 0, None)


def test_what_is_close_to_the_best_is_simulated_whole() -> None:
    """Short times may be too short by `CLOSE`: who asks for no more memory is believed to beat others only beyond that."""

    def row(key: str, effort: float, depth: str = "whole") -> Row:
        return Row(f"{key} on=x", "done", rate=1.0 / effort, memory=1, gpus=1, detail=json.dumps({depth: 1}))

    assert cautious(row("a", 1.0, "short")).effort == pytest.approx(CLOSE) and cautious(row("a", 1.0)) == row("a", 1.0)
    known = [row(f"split {at}", 2.0 + at / 1e4, "breakdown") for at in range(5)]
    near, far = row("near", 1.998 * CLOSE, "short"), row("far", 2.002 * CLOSE, "short")
    asked = open_questions([*known, near, far])
    assert asked["near on=x"] == "whole" and asked.get("far on=x") != "whole"


def test_where_the_best_is_not_the_fastest_both_are_told(tmp_path: Path) -> None:
    """Eight GPUs waste less than sixteen, which train faster."""
    space = "dp_replicate=8,16 micro=8 global=128"
    both = sweep(load_plan("gpt2-ddp8"), parse_space(space), "2x dgx-h100", tmp_path / "a.sqlite")
    assert both.best is not None and both.best.gpus == 8
    (by, fastest) = told.faster(both).values()
    assert by == "model FLOPs per second and GPU" and "dp_replicate=16" in fastest
    alone = sweep(load_plan("gpt2-ddp8"), parse_space(space.replace("8,16", "8")), "2x dgx-h100", tmp_path / "b.sqlite")
    assert told.faster(alone) == {}
