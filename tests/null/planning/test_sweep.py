"""A sweep decides every plan: by arithmetic, by its bound, or by simulation; its best and its front are those of simulating everything."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from sim.files.planfile import load_plan
from sim.plan import Plan
from sim.planning.sweeps.bound import Bounds
from sim.planning.sweeps.floor import Floor
from sim.planning.sweeps.judge import Depth
from sim.planning.sweeps.screen import screened
from sim.planning.sweeps.space import candidates, named, parse_space
from sim.planning.sweeps.store import Row
from sim.planning.sweeps.sweep import Sweep, sweep
from sim.predict import predict_setting
from sim.result.figures import figures_of_memory
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from topologies.errors import BadInput, NoRoom
from topologies.load import load_topology

ON = "2x dgx-a100-40gb"
HALF = {"base": "llama3-8b", "layers": 16}
"""Fits on these GPUs in some of the ways and in others not, in half of the time."""
SPACE = "tp=1,2,4 pp=1,4 zero=1,3 micro=1,4 recompute=none,full gpus=16"


def base(model: Any = HALF) -> Plan:
    return load_plan({"model": model, "seq_len": 4096, "framework": "megatron-core", "batch": {"global": 64, "micro": 1}})


class Resumed(NamedTuple):
    """A sweep that simulates everything, killed and begun again: when each row was written before and after, and what it found."""

    before: dict[str, int]
    after: dict[str, int]
    found: Sweep


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    file = tmp_path_factory.mktemp("killed") / "s.sqlite"
    before = _killed(file)
    found = sweep(base(), parse_space(SPACE), ON, file, every="whole")
    return Resumed(before, _times(file), found)


@pytest.fixture(scope="module")
def found(resumed: Resumed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Sweep]:
    """(with bounds, everything simulated)."""
    return sweep(base(), parse_space(SPACE), ON, tmp_path_factory.mktemp("sweep") / "a.sqlite"), resumed.found


@pytest.mark.no_cover
def test_bounds_change_neither_the_best_nor_the_front(found: tuple[Sweep, Sweep]) -> None:
    quick, whole = found
    assert quick.best == whole.best
    assert [row.key for row in quick.front] == [row.key for row in whole.front]
    assert sum(quick.counts.values()) == sum(whole.counts.values()) == 44
    assert quick.counts["memory"] > 0 and quick.counts["bound"] > 0 and whole.counts["bound"] == 0
    assert quick.counts["done"] + quick.counts["bound"] == whole.counts["done"]


@pytest.mark.no_cover
def test_all_plans_in_short_end_with_the_same_best(found: tuple[Sweep, Sweep], tmp_path: Path) -> None:
    """Ranked in the fewest ops, none put aside: the front and the best are simulated whole after all."""
    every = sweep(base(), parse_space(SPACE), ON, tmp_path / "s.sqlite", every="short")
    _, whole = found
    assert every.best == whole.best and every.counts == whole.counts
    assert [row.key for row in every.front] == [row.key for row in whole.front]
    assert 0 < sum(json.loads(row.detail)["whole"] for row in every.feasible) < len(every.feasible)
    with pytest.raises(BadInput, match="every = 'all'"):
        sweep(base(), parse_space(SPACE), ON, tmp_path / "t.sqlite", every="all")


@pytest.mark.no_cover
def test_what_plans_are_ranked_by_is_their_time() -> None:
    for _, plan in candidates(base(), parse_space("tp=1,4 pp=1,2 zero=1,3 micro=1,2 gpus=16"), ON):
        if isinstance(plan, Plan):
            setting = bind(plan, ON)
            assert abs(screened(setting) / predict_setting(setting, steps=2, detail=False).step_time_s - 1) < 8e-3


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "model, seq, space, apart",
    [
        ({"base": "llama3-8b", "layers": 8}, 32768, "tp=4 cp=2,4 pp=1,2 zero=1 recompute=full gpus=16", 1e-2),
        ("mixtral-8x7b", 4096, "tp=4 ep=2,4 pp=4 zero=1 recompute=full gpus=32", 1e-2),
        ("mixtral-8x7b", 4096, "tp=4 ep=4 pp=1 zero=3 recompute=none,full gpus=32", 3e-2),
        ("mixtral-8x7b", 4096, "tp=2,4 ep=8 pp=2 zero=1 recompute=full gpus=32", 6e-2),
    ],
)
def test_plans_with_rings_and_experts_are_ranked_by_little_less_than_their_time(model: Any, seq: int, space: str, apart: float) -> None:
    plan = load_plan({"model": model, "seq_len": seq, "framework": "megatron-core", "batch": {"global": 32, "micro": 1}})
    on = "4x dgx-h100"
    settings = [bind(found, on) for _, found in candidates(plan, parse_space(space), on) if isinstance(found, Plan)]
    assert len(settings) > 1
    for setting in settings:
        found, true = screened(setting), predict_setting(setting, steps=2, detail=False).step_time_s
        assert -apart < found / true - 1 < 2e-3, setting.plan.parallel


@pytest.mark.no_cover
def test_experts_over_nodes_end_with_the_best_of_all_simulated_whole(tmp_path: Path) -> None:
    """Their short times leave out what they lose to a pipeline's messages: what looks best is not believed before it is simulated whole."""
    model = {"base": "mixtral-8x7b", "layers": 8}
    plan = load_plan({"model": model, "seq_len": 4096, "framework": "megatron-core", "batch": {"global": 64, "micro": 1}})
    space = parse_space("tp=1,2,4 ep=4,8 pp=2,4 zero=1 micro=1,2 recompute=full gpus=32")
    short, whole = (sweep(plan, space, "4x dgx-h100", tmp_path / f"{every}.sqlite", every=every) for every in ("", "whole"))
    assert short.best and whole.best and short.best.key == whole.best.key
    assert short.best.step_time == pytest.approx(whole.best.step_time, rel=5e-4)
    assert [row.key for row in short.front] == [row.key for row in whole.front]


def test_a_point_is_found_again_by_its_name() -> None:
    for candidate, plan in candidates(base(), parse_space("tp=1,4 micro=1,3 gpus=16"), ON):
        assert named(base(), candidate.key) == (candidate, plan)


@pytest.mark.no_cover
def test_no_step_is_below_its_bound() -> None:
    bounds = Bounds()
    few = load_plan(base(), ("batch.global=32",))
    for _, plan in candidates(few, parse_space("tp=1,4 pp=1,4 zero=1,3 micro=1,2 recompute=none,full gpus=16"), ON):
        if isinstance(plan, Plan):
            setting = bind(plan, ON)
            bound = bounds.step(setting, pricer_for(setting))
            assert 0.2 < bound / predict_setting(setting, steps=2, detail=False).step_time_s <= 1.0 + 1e-9


def test_the_floor_rejects_only_what_does_not_fit() -> None:
    plan, space = base("llama3-70b"), parse_space("tp=1,8 pp=1,2 zero=0,1,3 micro=1 gpus=16")
    floor = Floor(plan, space)
    rejected = 0
    for (_, known), (_, quick) in zip(candidates(plan, space, ON), candidates(plan, space, ON, reject=floor.over), strict=True):
        if isinstance(known, Plan) and not isinstance(quick, Plan):
            rejected += 1
            report, fit = figures_of_memory(bind(known, ON), remedies=False)
            assert fit is not None and report.peak >= quick.needed  # type: ignore[union-attr]
    assert rejected > 3


def _killed(file: Path) -> dict[str, int]:
    """Rows that a sweep in a process of its own has written when it is killed."""
    script = f"""
from pathlib import Path
from sim.files.planfile import load_plan
from sim.planning.sweeps.space import parse_space
from sim.planning.sweeps.sweep import sweep
base = load_plan({{"model": {HALF!r}, "seq_len": 4096, "framework": "megatron-core", "batch": {{"global": 64, "micro": 1}}}})
sweep(base, parse_space({SPACE!r}), {ON!r}, Path({str(file)!r}), every="whole")
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[3])
    end = time.monotonic() + 60
    while time.monotonic() < end and _rows(file) < 20 and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return _times(file)


@pytest.mark.no_cover
def test_a_killed_sweep_goes_on_where_it_was(resumed: Resumed) -> None:
    before, after, found = resumed
    assert 0 < len(before) < 44, "it should die half-way"
    assert len(after) == 44 == sum(found.counts.values())  # of 48 points, four share with nobody
    split = {row.key for row in found.feasible if json.loads(row.detail)["breakdown"]}
    assert len(split) == 5, "only the first few are simulated once more, for where their steps go"
    assert {key: after[key] for key in before if key not in split} == {key: at for key, at in before.items() if key not in split}
    ranked = sorted(found.feasible, key=lambda row: row.effort)
    assert {row.key for row in ranked[:5]} == split


@pytest.mark.no_cover
def test_a_sweep_killed_while_it_confirmed_confirms_when_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All plans were simulated in short, and nothing of the front whole."""
    file, space = tmp_path / "s.sqlite", parse_space("tp=4 pp=1 zero=1 micro=1,2,4 gpus=16")

    def die(done: list[Row]) -> dict[str, Depth]:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr("sim.planning.sweeps.sweep.open_questions", die)
        sweep(base(), space, ON, file, every="short")
    assert _rows(file) == 3
    found = sweep(base(), space, ON, file)
    assert all(json.loads(row.detail)["whole"] for row in found.front)


@pytest.mark.no_cover
def test_a_sweep_that_goes_on_simulates_what_is_asked_for_now(tmp_path: Path) -> None:
    """What bounds had decided, and then what was simulated in short."""
    file, space = tmp_path / "s.sqlite", parse_space(SPACE)
    first = sweep(base(), space, ON, file)
    assert first.counts["bound"] > 0
    short = sweep(base(), space, ON, file, every="short")
    assert short.counts == first.counts | {"bound": 0, "done": first.counts["done"] + first.counts["bound"]}
    assert not all(row.whole for row in short.feasible)
    whole = sweep(base(), space, ON, file, every="whole")
    assert whole.counts == short.counts and all(row.whole for row in whole.feasible)
    assert whole.best == first.best


@pytest.mark.no_cover
def test_a_machine_s_file_is_read_anew_by_each_sweep(tmp_path: Path) -> None:
    machine, steps = tmp_path / "ours.toml", list[float | None]()
    for at, node in enumerate(("dgx-h100", "dgx-a100")):
        machine.write_text(f'nodes = "2x {node}"\n')
        best = sweep(base(), parse_space("tp=4 gpus=16"), str(machine), tmp_path / f"{at}.sqlite").best
        steps.append(best and best.step_time)
    assert steps[0] and steps[1] and steps[1] > 1.5 * steps[0]


def _rows(path: Path) -> int:
    return len(_times(path)) if path.exists() else 0


def _times(path: Path) -> dict[str, int]:
    """Number of the row in which each plan's result was written, by key."""
    try:
        file = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        return dict(file.execute("SELECT key, rowid FROM results"))
    except sqlite3.OperationalError:
        return {}


def test_points_that_mean_the_same_plan_are_counted(tmp_path: Path) -> None:
    plan = load_plan({"model": {"base": "gpt2-124m", "layers": 2}, "seq_len": 128, "batch": {"global": 8}})
    for _ in range(2):  # also where the file holds all of it already
        found = sweep(plan, parse_space("pp=1,2 schedule=1f1b,gpipe gpus=4"), "dgx-h100", tmp_path / "s.sqlite")
        assert (len(found.rows), found.alike) == (3, 1)


def test_nothing_feasible_says_what_came_closest(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing in the space fits into memory; closest: .*GiB"):
        sweep(base("llama3.1-405b"), parse_space("tp=1,2 gpus=8 zero=1"), "dgx-h100", tmp_path / "s.sqlite")


@pytest.mark.no_cover
def test_a_file_of_another_sweep_is_refused(tmp_path: Path) -> None:
    sweep(base(), parse_space("tp=1,2 gpus=8"), "dgx-h100", tmp_path / "s.sqlite")
    with pytest.raises(BadInput, match="another space"):
        sweep(base(), parse_space("tp=1,4 gpus=8"), "dgx-h100", tmp_path / "s.sqlite")
    (tmp_path / "half.sqlite").write_bytes((tmp_path / "s.sqlite").read_bytes()[:3000] + b"x" * 900)
    with pytest.raises(BadInput, match=r"half\.sqlite"):
        sweep(base(), parse_space("tp=1,2 gpus=8"), "dgx-h100", tmp_path / "half.sqlite")


def test_a_machine_or_model_that_has_changed_since_is_another_sweep(tmp_path: Path) -> None:
    file, machine, model = tmp_path / "s.sqlite", tmp_path / "mine.toml", tmp_path / "model.toml"
    machine.write_text('base = "dgx-h100"\nname = "mine"\n')
    model.write_text("layers = 4\nhidden = 1024\nheads = 8\nvocab = 32000\n")
    space = parse_space("tp=8 pp=1 zero=1 micro=1 gpus=8")
    plan = msgspec.structs.replace(base(), model=str(model))
    first = sweep(plan, space, str(machine), file).best
    assert sweep(plan, space, str(machine), file).best == first
    for path, was, now in ((machine, "dgx-h100", "dgx-a100"), (model, "layers = 4", "layers = 8")):
        kept = path.read_text()
        path.write_text(kept.replace(was, now))
        with pytest.raises(BadInput, match="another machine or model"):
            sweep(plan, space, str(machine), file)
        path.write_text(kept)
    assert sweep(plan, space, str(machine), file).best == first


def test_a_sweep_of_which_nothing_ran_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    with pytest.raises(BadInput, match="nothing in the space can run"):
        sweep(base(), parse_space("tp=7 gpus=8"), "dgx-h100", file)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match=r"by name: give on = 'dgx-h100'"):
        sweep(base(), parse_space("micro=1"), load_topology("dgx-h100"), file)  # type: ignore[arg-type]


@pytest.mark.no_cover
@pytest.mark.parametrize("mode", ["local", "async"])
def test_a_plan_whose_steps_differ_has_one_step_however_it_is_named(mode: str, tmp_path: Path) -> None:
    """In short, whole and by class it is the one that `predict` says."""
    plan = load_plan({"model": {"base": "gpt2-124m", "layers": 2}, "batch": {"global": 8, "micro": 1}, "parallel": {"dp_replicate": 4}})
    plan = load_plan(plan, (f"update.mode={mode}", "update.every=3", "noise.stragglers=r0: 2x"))
    space = parse_space("comm.algorithm=auto,ring memory.recompute=none,full precision=bf16,fp32")
    found = sweep(plan, space, "dgx-h100", tmp_path / "s.sqlite", every="short")
    assert {row.whole for row in found.rows} == {True, False}
    for row in found.rows:
        changed = named(plan, row.key)[1]
        assert isinstance(changed, Plan)
        assert row.step_time == pytest.approx(predict_setting(bind(changed, "dgx-h100")).step_time_s, rel=1e-3), row.key


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.no_cover)])
def test_what_ifs_on_the_machine_are_every_plans(workers: int, tmp_path: Path) -> None:
    """As `predict` has them, in whatever process; results of the machine as it is are not mixed with them."""
    plan = load_plan({"model": {"base": "gpt2-124m", "layers": 2}, "batch": {"global": 8, "micro": 1}, "parallel": {"dp_replicate": 8}})
    space, file, edits = parse_space("micro=1 comm.overlap=true,false"), tmp_path / "s.sqlite", ("link.nvlink.rate=5 GB/s",)
    found = sweep(plan, space, "dgx-h100", file, edits=edits, every="whole", workers=workers)
    for row in found.rows:
        changed = named(plan, row.key)[1]
        assert isinstance(changed, Plan)
        slow, whole = (predict_setting(bind(changed, "dgx-h100", some)).step_time_s for some in (edits, ()))
        assert row.step_time == pytest.approx(slow, rel=1e-3) and slow > 2 * whole
    with pytest.raises(BadInput, match=r"another edits \(\[\"link.nvlink.rate=5 GB/s\"\] there, \[\] here\)"):
        sweep(plan, space, "dgx-h100", file)
    memory = ("gpu.memory=4 GiB",)
    with pytest.raises(NoRoom):
        sweep(load_plan(plan, ("model=gpt2-1.5b",)), space, "dgx-h100", tmp_path / "t.sqlite", edits=memory)
