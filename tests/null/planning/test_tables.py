"""Values of planning scripts print, are plain, and become DataFrames; without pandas they say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reports.pages.capacity import capacity_page
from sim.files.planfile import load_plan
from sim.planning.capacity.amounts import amount, tokens_of
from sim.planning.capacity.capacity import Capacity, capacity
from sim.planning.capacity.goodput import Reliability
from sim.planning.capacity.prices import price_of
from sim.planning.capacity.scaling import Curve, scaling, smallest
from sim.planning.disturbed.faults import faults
from sim.planning.disturbed.jobs import jobs
from sim.planning.explain.explanation import Explanation, explain
from sim.planning.sweeps.space import parse_space, settings_of
from sim.planning.sweeps.sweep import Sweep, sweep
from sim.tables import Tabular, aligned, frame
from topologies.errors import BadInput, UnitError
from topologies.load import load_topology

PLAN = load_plan(
    {"model": "gpt2-124m", "seq_len": 1024, "framework": "pytorch", "batch": {"global": 64, "micro": 8}, "parallel": {"dp_replicate": 8}}
)
PAIR = load_plan({"model": "gpt2-124m", "batch": {"global": 4, "micro": 2}, "parallel": {"dp_replicate": 2}})


def _values() -> dict[str, Tabular]:
    from sim.setting.bind import bind

    return {
        "capacity": capacity(PLAN, "dgx-h100", 1e9),
        "explain": explain(bind(PAIR, "dgx-h100"), tries=2),
        "faults": faults(PAIR, "2x dgx-h100", ("slow=r0:0.8",)),
        "jobs": jobs([PAIR, PAIR], "2x dgx-h100", ("compact",)),
    }


@pytest.fixture(scope="module")
def values() -> dict[str, Tabular]:
    """One of each kind."""
    return _values()


@pytest.mark.no_cover
@pytest.mark.parametrize("name", ["capacity", "explain", "faults", "jobs"])
def test_values_print_and_are_plain(values: dict[str, Tabular], name: str) -> None:
    value = values[name]
    text = str(value)
    assert 3 <= len(text.splitlines()) < 40 and "Struct" not in text and f"{type(value).__name__}(" not in text
    assert max(map(len, text.splitlines())) <= 140
    plain = value.to_dict()
    assert json.loads(json.dumps(plain)) and (rows := value._rows())
    table = value.to_frame()
    assert len(table) == len(rows) and list(table.columns) == list(rows[0])


def test_days_and_slowdown_are_among_the_figures(values: dict[str, Tabular]) -> None:
    found = values["capacity"]
    assert isinstance(found, Capacity) and found.to_dict()["days"] == found.days == found.elapsed_s / 86400
    assert {row["slowdown"] for row in values["jobs"].to_dict()["rows"]} == {1.0}
    told = values["explain"]
    assert isinstance(told, Explanation) and list(told.to_frame()["resource"]) == [one.resource for one in told.sensitivities]


def test_a_curve_is_a_list_that_prints() -> None:
    found = scaling(PLAN, "dgx-h100", (8, 16, 24, 32), 1e10)
    assert isinstance(found, Curve) and [one.gpus for one in found] == [8, 16, 32]  # 64 sequences are not 24 ranks'
    assert len(str(found).splitlines()) == 4 and "32" in str(found)
    assert list(found.to_frame()["gpus"]) == [8, 16, 32] and found.to_dict()["rows"][0]["gpus"] == 8


def test_a_deadline_is_met_with_the_failures_and_prices_that_are_said() -> None:
    for days in (0.0, -1.0, float("nan")):
        with pytest.raises(BadInput, match="must be positive"):
            smallest(PLAN, "dgx-h100", 1e10, days)
    calm = smallest(PLAN, "dgx-h100", 1e10, 1.0, prices={"dgx-h100": 2.0})
    assert calm.money == pytest.approx(2.0 * calm.gpu_hours)
    wild = capacity(PLAN, "dgx-h100", 1e12, how=Reliability(mtbf_gpu=3.6e5, restart=600.0), seed=3)
    again = capacity(PLAN, "dgx-h100", 1e12, how=Reliability(mtbf_gpu=3.6e5, restart=600.0), seed=3)
    assert wild == again and wild.failures > 0 and wild.goodput < capacity(PLAN, "dgx-h100", 1e12).goodput


def test_tokens_or_epochs() -> None:
    assert amount(3e9) == 3e9 and amount(epochs=3, dataset=1e9) == 3e9
    for bad in ({}, {"tokens": 1.0, "epochs": 2.0}, {"epochs": 3.0}, {"dataset": 3.0}, {"tokens": -1.0}, {"epochs": 0.0, "dataset": 1.0}):
        with pytest.raises(BadInput):
            amount(**bad)


def test_samples_are_as_many_tokens_as_the_plans_are_long() -> None:
    long, picture = PLAN.seq_len or 0, load_plan({"model": "resnet50", "batch": {"micro": 8}})
    assert long > 1 and tokens_of("15T", PLAN, "--tokens") == tokens_of("15T tokens", PLAN, "--tokens") == 15e12
    for text in ("50k samples", "50K sequences", "50_000 samples", "5e4 Samples"):
        assert tokens_of(text, PLAN, "--tokens") == 50_000 * long
    assert tokens_of("1 sample", PLAN, "--tokens") == long
    for text in ("50k", "50k samples", "50k images", "50k pictures"):
        assert tokens_of(text, picture, "--tokens") == 50_000
    for text in ("50k smples", "50k images", "k samples", "many"):
        with pytest.raises(UnitError, match=rf'at --dataset.*counts tokens \(15T\); "50k samples" are sequences of {long:,} tokens'):
            tokens_of(text, PLAN, "--dataset")
    with pytest.raises(UnitError, match=r'counts images .*"50k samples"'):
        tokens_of("15T tokens", picture, "--tokens")


def test_a_run_says_what_it_trains() -> None:
    found = capacity(PLAN, "dgx-h100", tokens_of("50k samples", PLAN, "--tokens"))
    assert found.steps == -(-50_000 // PLAN.global_batch) and found.trained.samples == 50_000
    assert f"50,000 samples of {PLAN.seq_len:,} tokens, " in str(found) and f"50,000 samples of {PLAN.seq_len:,} tokens, " in capacity_page(
        "c", found
    )
    plain = found.to_dict()
    assert (plain["samples"], plain["seq"], plain["sample_unit"]) == (50_000, PLAN.seq_len, "sequences")
    assert plain["tokens"] == 50_000 * (PLAN.seq_len or 0)
    pictures = capacity(load_plan({"model": "resnet50", "batch": {"micro": 8}}), "dgx-h100", 150_000)
    assert "150,000 images" in str(pictures) and "tokens" not in str(pictures.trained) and pictures.to_dict()["tokens"] is None


def test_a_sweep_is_a_table(tmp_path: Path) -> None:
    found: Any = sweep(PLAN, parse_space("micro=2,4,8,3"), "dgx-h100", tmp_path / "a.sqlite")
    assert isinstance(found, Sweep)
    text = str(found)
    assert text.splitlines()[0] == "3 done, 1 refused" and str(tmp_path) in text
    assert "batch.micro=8" in text and "batch.micro=3" not in text
    table = found.to_frame()
    assert len(table) == 4 and set(table["batch.micro"]) == {"2", "3", "4", "8"}
    assert set(table["on"]) == {"dgx-h100"} and table["front"].sum() == len(found.front)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["best"] == (found.best.key if found.best else "") and len(plain["rows"]) == 4


def test_a_point_by_its_words() -> None:
    assert settings_of("parallel.tp=2 batch.micro=1 on=4x dgx-h100") == {"parallel.tp": "2", "batch.micro": "1", "on": "4x dgx-h100"}


def test_columns_are_aligned() -> None:
    assert aligned(("name", "n"), [("a", "1"), ("longer", "100")]) == "name      n\na         1\nlonger  100"


def test_without_pandas_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sim.tables as module

    def none(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", none)
    with pytest.raises(BadInput, match="needs pandas"):
        frame([])


def test_what_ifs_on_the_machine_reach_a_whole_run() -> None:
    slow = ("link.nvlink.rate=20 GB/s",)
    assert capacity(PLAN, "dgx-h100", 1e9, edits=slow).days > 1.05 * capacity(PLAN, "dgx-h100", 1e9).days
    assert scaling(PLAN, "dgx-h100", (8,), 1e9, edits=slow)[0] == capacity(PLAN, "dgx-h100", 1e9, edits=slow)


def test_money_is_of_the_machines_that_the_ranks_take() -> None:
    prices = {"dgx-h100": 3.0, "dgx-a100": 1.0}
    for on, gpus, price in (
        ("dgx-h100", 0, 3.0),
        ("16x dgx-a100", 8, 1.0),
        ("dgx-h100:4", 4, 3.0),
        ("1x dgx-h100 + 1x dgx-a100", 8, 3.0),
        ("1x dgx-h100 + 1x dgx-a100", 16, 2.0),
        ("1x dgx-h100:4 + 3x dgx-a100:4", 0, 1.5),
    ):
        assert price_of(prices, on, gpus) == pytest.approx(price), on
    with pytest.raises(
        BadInput, match=r"no price for dgx-a100; there are prices for dgx-h100\. Give the price of a GPU-hour by machine: dgx-a100 = 2.5"
    ):
        price_of({"dgx-h100": 3.0}, "dgx-h100 + dgx-a100")
    mixed = capacity(PLAN, load_topology("1x dgx-h100 + 1x dgx-a100"), 1e9, prices=prices)
    assert mixed.money == pytest.approx(3.0 * mixed.gpu_hours)


@pytest.mark.parametrize("checkpoint", [-1.0, float("nan"), float("inf")])
def test_a_checkpoint_that_cannot_be_is_refused(checkpoint: float) -> None:
    with pytest.raises(BadInput, match="checkpoint"):
        capacity(PLAN, "dgx-h100", 1e9, checkpoint=checkpoint)


def test_a_machine_of_ones_own_is_priced_by_the_name_in_its_file(tmp_path: Path) -> None:
    """Or by its file's name without the ending; what stands after --on goes before both."""
    named, plain = tmp_path / "mine.toml", tmp_path / "plain.toml"
    named.write_text('base = "dgx-h100"\nname = "our-pod"\n')
    plain.write_text('base = "dgx-h100"\n')
    assert price_of({"our-pod": 2.0}, f"4x {named}") == 2.0 and price_of({"plain": 3.0}, str(plain)) == 3.0
    assert price_of({"our-pod": 2.0, str(named): 5.0}, str(named)) == 5.0
    assert price_of({"our-pod": 2.0, "dgx-h100": 4.0}, f"1x {named} + 1x dgx-h100") == 3.0
    with pytest.raises(BadInput, match="no price for our-pod; there are prices for plain"):
        price_of({"plain": 3.0}, str(named))
