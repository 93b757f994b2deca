"""A search with optuna: finds what enumeration finds with fewer simulations, goes on where it was, and says what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.planning.sweeps import search as searching
from sim.planning.sweeps.search import search
from sim.planning.sweeps.space import parse_space
from sim.planning.sweeps.sweep import sweep
from topologies.errors import BadInput

pytest.importorskip("optuna")

PLAN = load_plan({"model": "gpt2-124m", "seq_len": 1024, "framework": "pytorch", "batch": {"global": 64, "micro": 1}})
SPACE = parse_space("tp=1,2,4,8 zero=1,3 micro=1,2,4,8 recompute=none,full gpus=8")


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the points that are simulated, as they are."""
    found: list[str] = []
    really = searching.evaluate_chunk

    def noted(work: Any) -> Any:
        found.extend(candidate.key for candidate, _ in work.plans if work.depth == "short")
        return really(work)

    monkeypatch.setattr(searching, "evaluate_chunk", noted)
    return found


@pytest.mark.no_cover
def test_it_comes_close_with_fewer_simulations(tmp_path: Path, simulated: list[str]) -> None:
    """20 of 64 points: within a tenth of the best of all."""
    every = sweep(PLAN, SPACE, "dgx-h100", tmp_path / "all.sqlite")
    found = search(PLAN, SPACE, "dgx-h100", tmp_path / "some.sqlite", trials=20, seed=1)
    assert every.best is not None and found.best is not None
    assert len(found.rows) == 20 and len(simulated) <= 20
    assert (found.best.step_time or 0) <= 1.1 * (every.best.step_time or 0)
    exact = {row.key: row.step_time for row in every.feasible}
    assert found.best.key not in exact or found.best.step_time == pytest.approx(exact[found.best.key], rel=1e-2)
    assert '"whole": true' in found.best.detail


def test_a_stopped_search_goes_on(tmp_path: Path, simulated: list[str]) -> None:
    path = tmp_path / "a.sqlite"
    first = {row.key for row in search(PLAN, SPACE, "dgx-h100", path, trials=20, seed=2).rows}
    known = len(simulated)
    again = search(PLAN, SPACE, "dgx-h100", path, trials=30, seed=2)
    assert first < {row.key for row in again.rows} and len(again.rows) == 30
    assert len(set(simulated)) == len(simulated) and not first & set(simulated[known:])
    assert search(PLAN, SPACE, "dgx-h100", path, trials=30, seed=2).best == again.best


def test_a_small_space_ends(tmp_path: Path) -> None:
    found = search(PLAN, parse_space("micro=1,2,3 gpus=8"), "dgx-h100", tmp_path / "b.sqlite", trials=50)
    assert found.counts["done"] == 2 and found.counts["refused"] == 1  # 64 is no multiple of 8 x 3


@pytest.mark.no_cover
def test_the_same_seed_looks_at_the_same(tmp_path: Path) -> None:
    one, two = (
        search(PLAN, parse_space("tp=1,2,4 micro=1,2,4,8 zero=0,1,3 gpus=8"), "dgx-h100", tmp_path / f"{n}.sqlite", trials=10, seed=5)
        for n in "cd"
    )
    assert one.rows == two.rows


def test_nothing_feasible_and_wrong_words_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = load_plan({"model": "llama3-70b", "seq_len": 8192, "parallel": {"dp_replicate": 8}})
    with pytest.raises(BadInput, match="closest"):
        search(big, parse_space("micro=1,2"), "dgx-h100", tmp_path / "e.sqlite", trials=4)
    with pytest.raises(BadInput, match="at least one"):
        search(PLAN, SPACE, "dgx-h100", tmp_path / "f.sqlite", trials=0)
    with pytest.raises(BadInput, match="no price"):
        search(PLAN, SPACE, "dgx-h100", tmp_path / "g.sqlite", prices={"dgx-a100": 1.0})

    def none(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(searching, "import_module", none)
    with pytest.raises(BadInput, match=r'--trials needs optuna: pip install "steptwin\[search\]"'):
        search(PLAN, SPACE, "dgx-h100", tmp_path / "h.sqlite")


def test_points_are_known_by_names_that_leave_out_what_says_nothing(tmp_path: Path, simulated: list[str]) -> None:
    """Without tensor parallelism there is nothing to overlap, and modules are recomputed where that is selective."""
    space = parse_space(
        "tp=1,2 parallel.tp_overlap=false,true recompute=none,selective memory.recompute_modules=op dp_shard=rest,2 zero=3 gpus=8"
    )
    search(PLAN, space, "dgx-h100", tmp_path / "a.sqlite", trials=8, seed=1)
    first = list(simulated)
    assert first and not any("rest" in key or ("tp=1 " in key and "tp_overlap" in key) for key in first)
    search(PLAN, space, "dgx-h100", tmp_path / "a.sqlite", trials=8, seed=1)
    assert simulated == first, "what the file holds is known"
