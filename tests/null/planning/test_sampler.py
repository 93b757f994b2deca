"""What a search tells its sampler and what it does with the answers, with a sampler that draws at random: optuna itself need not be there."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from sim.files.planfile import load_plan
from sim.planning.sweeps import search as searching
from sim.planning.sweeps.judge import evaluate_chunk
from sim.planning.sweeps.search import search
from sim.planning.sweeps.space import parse_space
from sim.planning.sweeps.sweep import Sweep, sweep

PLAN = load_plan({"model": "gpt2-124m", "seq_len": 256, "framework": "pytorch", "batch": {"global": 16, "micro": 1}})
SPACE = "gpus=8 tp=1,2 zero=1,3 micro=1,2,3"


class Told(NamedTuple):
    """What the sampler learnt of a point: its value, or None with how it ended."""

    params: dict[str, str]
    value: float | None
    state: str


class Sampler:
    """optuna's study as a search uses it; points are drawn with a seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.asked = 0
        self.told: list[Told] = []
        self.known: list[Told] = []
        """What was told before anything was asked for."""

    def ask(self, kinds: Mapping[str, tuple[str, ...]]) -> SimpleNamespace:
        self.asked += 1
        return SimpleNamespace(params={key: self._draw.choice(values) for key, values in kinds.items()})

    def tell(self, trial: SimpleNamespace, value: float | None = None, state: str = "COMPLETE") -> None:
        self.told.append(Told(trial.params, value, state))

    def add_trial(self, trial: Told) -> None:
        self.known.append(trial)


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> list[Sampler]:
    """The samplers of the searches that run, in turn."""
    made: list[Sampler] = []

    def study(direction: str, sampler: int) -> Sampler:
        assert direction == "minimize"
        made.append(Sampler(sampler))
        return made[-1]

    def trial(params: dict[str, str], distributions: Any, value: float | None, state: str) -> Told:
        assert set(params) == set(distributions)
        return Told(params, value, state)

    stand_in = SimpleNamespace(
        logging=SimpleNamespace(ERROR=40, set_verbosity=lambda level: None),
        samplers=SimpleNamespace(TPESampler=lambda seed, **_: seed),
        distributions=SimpleNamespace(CategoricalDistribution=tuple),
        trial=SimpleNamespace(TrialState=SimpleNamespace(COMPLETE="COMPLETE", PRUNED="PRUNED"), create_trial=trial),
        create_study=study,
    )
    monkeypatch.setattr(searching, "import_module", lambda name: stand_in)
    return made


def look(path: Path, trials: int, seed: int = 0, **options: Any) -> Sweep:
    return search(PLAN, parse_space(SPACE), "dgx-h100", path, trials=trials, seed=seed, **options)


@pytest.mark.no_cover
def test_all_of_a_small_space_is_what_a_sweep_finds(sampler: list[Sampler], tmp_path: Path) -> None:
    """It ends by itself when nothing new comes any more, and tells of its way."""
    said: list[str] = []
    found, whole = (
        look(tmp_path / "a.sqlite", 100, say=said.append),
        sweep(PLAN, parse_space(SPACE), "dgx-h100", tmp_path / "b.sqlite", every="whole"),
    )
    assert found.best is not None and found.best == whole.best
    assert [row.key for row in found.front] == [row.key for row in whole.front]
    assert {row.key: row.outcome for row in found.rows} == {row.key: row.outcome for row in whole.rows}
    assert found.counts["refused"] == 4  # 16 sequences are no multiple of three
    counts = [int(text.split("/100 points, ")[0]) for text in said]
    assert 0 < counts[0] <= 8 and counts == sorted(counts) and counts[-1] == 12 == counts[-20]
    assert said[-1] == f"12/100 points, {found.best.key}"


@pytest.mark.no_cover
def test_the_sampler_learns_what_every_point_is_worth(sampler: list[Sampler], tmp_path: Path) -> None:
    found = look(tmp_path / "a.sqlite", 10)
    effort = {row.key: row.effort for row in found.feasible}
    told = sampler[0].told
    assert len(told) == sampler[0].asked >= len(found.rows) == 10
    for one in told:
        p = one.params
        key = f"parallel.tp={p['tp']} parallel.zero={p['zero']} batch.micro={p['micro']} gpus=8 on=dgx-h100"
        if p["micro"] == "3":
            assert one == Told(p, None, "PRUNED") and key not in effort
        else:
            assert one.state == "COMPLETE" and one.value == pytest.approx(effort[key], rel=0.02)


def test_a_search_that_goes_on_tells_what_its_file_holds(sampler: list[Sampler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = look(tmp_path / "a.sqlite", 8)
    again = look(tmp_path / "a.sqlite", 12, seed=1)
    assert {row.key for row in first.rows} < {row.key for row in again.rows}
    assert not sampler[0].known and len(sampler[1].known) == 8
    assert sorted(one.value for one in sampler[1].known if one.value is not None) == sorted(row.effort for row in first.feasible)

    def never(work: object) -> None:
        raise AssertionError("a plan was looked at twice")

    monkeypatch.setattr(searching, "screen_chunk", never)
    assert look(tmp_path / "a.sqlite", 12, seed=2).best == again.best
    assert sampler[2].asked == 0


@pytest.mark.no_cover
def test_what_is_called_best_was_simulated_whole(sampler: list[Sampler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the sampler meets points that cannot fit: these are known by a few divisions and never simulated."""
    seen: list[tuple[str, bool]] = []
    really = evaluate_chunk

    def noted(work: Any) -> Any:
        seen.extend((candidate.key, work.depth != "short") for candidate, _ in work.plans)
        return really(work)

    monkeypatch.setattr(searching, "evaluate_chunk", noted)
    big = load_plan({"model": "llama3-8b", "seq_len": 1024, "framework": "megatron-core", "batch": {"global": 16, "micro": 1}})
    space = parse_space("tp=1,4 gpus=4,8 on=dgx-h100,dgx-a100-40gb")
    found = search(big, space, "dgx-h100", tmp_path / "a.sqlite", trials=8)
    assert found.counts["memory"] > 0 and found.counts["done"] > 0
    tight = {row.key for row in found.rows if row.outcome == "memory"}
    assert all(row.memory and "GiB" in row.reason for row in found.rows if row.outcome == "memory")
    assert not tight & {key for key, _ in seen}
    assert {(row.key, True) for row in found.front} <= set(seen)
    assert len([key for key, whole in seen if not whole]) == len({key for key, whole in seen if not whole})


@pytest.mark.no_cover
def test_prices_rank_by_money_too(sampler: list[Sampler], tmp_path: Path) -> None:
    found = look(tmp_path / "a.sqlite", 12, prices={"dgx-h100": 3.0})
    for row in found.feasible:
        assert row.cost == pytest.approx(8 * 3.0 / 3600 / ((row.rate or 0) * 256) * 1e6)


def test_where_prices_are_known_the_sampler_looks_for_the_least_money(sampler: list[Sampler], tmp_path: Path) -> None:
    """An A100 that costs a tenth of an H100 is worth more than the faster one: the sampler was told that it is not."""
    space = parse_space("micro=1,2 gpus=8 on=dgx-h100,dgx-a100")
    found = search(PLAN, space, "dgx-h100", tmp_path / "a.sqlite", trials=4, prices={"dgx-h100": 10.0, "dgx-a100": 1.0})
    assert found.best is not None and found.best.on == "dgx-a100"
    again = search(PLAN, space, "dgx-h100", tmp_path / "a.sqlite", trials=4, prices={"dgx-h100": 10.0, "dgx-a100": 1.0})
    told = {one.params["on"]: one.value or 0.0 for one in sampler[-1].known}
    assert again.best == found.best and told["dgx-a100"] < told["dgx-h100"]
