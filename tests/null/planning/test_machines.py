"""Spaces over machines: what is changed about them stands among the keys, each machine keeps its best plan, and prices tell which is worth its own."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import steptwin
from reports.pages.sweep import sweep_page
from sim.files.planfile import load_plan
from sim.planning.capacity.prices import load_prices, price_of
from sim.planning.sweeps.auto import expanded
from sim.planning.sweeps.search import search
from sim.planning.sweeps.space import candidates, named, parse_space
from sim.planning.sweeps.store import Row
from sim.planning.sweeps.sweep import Sweep, sweep
from sim.planning.sweeps.told import unfelt_by_all
from sim.predict import predict_setting
from sim.setting.bind import bind
from tests.null.verbs.test_verbs import Call, call
from topologies.errors import BadInput

__all__ = ["call"]

PLAN = load_plan({"model": "gpt2-124m", "seq_len": 1024, "batch": {"global": 64, "micro": 4}, "parallel": {"dp_replicate": 16}})
ON = "2x dgx-h100"
SPACE = "micro=2,4 pod=1 oversubscription=1,8 link.net.rate=50 Gbit/s,400 Gbit/s"


def machines(found: Sweep) -> dict[str, Row]:
    return {row.machine: row for row in found.by_machine}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.no_cover)])
def test_each_point_has_its_own_machine(workers: int, tmp_path: Path) -> None:
    """As `predict` has it with the same words after --set; a second call finds all of it in the file."""
    file = tmp_path / "s.sqlite"
    found = sweep(PLAN, parse_space(SPACE), ON, file, every="whole", workers=workers)
    assert found.counts["done"] == 8
    for row in found.rows:
        assert row.step_time == pytest.approx(predict_setting(bind(found.plan(row), row.on, row.edits)).step_time_s, rel=1e-3)
    assert len({row.step_time for row in found.rows if "batch.micro=4" in row.key}) > 2
    again = sweep(PLAN, parse_space(SPACE), ON, file, every="whole")
    assert again.rows == found.rows


@pytest.mark.no_cover
def test_no_machine_puts_the_plans_of_another_aside(tmp_path: Path) -> None:
    """Each has its best, on each number of its GPUs."""
    found = sweep(PLAN, parse_space(f"{SPACE} gpus=8,16 recompute=none,full"), ON, tmp_path / "s.sqlite")
    every = sweep(PLAN, parse_space(f"{SPACE} gpus=8,16 recompute=none,full"), ON, tmp_path / "t.sqlite", every="whole")
    assert len(found.by_machine) == 8
    assert [row.key for row in found.by_machine] == [row.key for row in every.by_machine]
    assert [row.step_time for row in found.by_machine] == pytest.approx([row.step_time for row in every.by_machine], rel=1e-3)


def test_points_are_found_by_their_names() -> None:
    for candidate, plan in candidates(PLAN, parse_space(SPACE), ON):
        assert named(PLAN, candidate.key) == (candidate, plan) and len(candidate.edits) == 3


def test_prices_say_which_machine_is_worth_its_own(tmp_path: Path) -> None:
    """The narrow network is cheap enough for a plan that hardly sends; unpriced, or at one price, the wide one is the best."""
    plan = load_plan(PLAN, ("batch.global=1024",))
    space = parse_space("micro=4 pod=1 oversubscription=1,8")
    wide, narrow = (f"{ON} with pod=1, oversubscription={ratio}" for ratio in (1, 8))
    for prices, best in (({}, wide), ({ON.split()[1]: 2.0}, wide), ({"dgx-h100": 2.0, "oversubscription=8": -1.0}, narrow)):
        found = sweep(plan, space, ON, tmp_path / "s.sqlite", prices=prices)
        assert found.best is not None and found.best.machine == best
    assert found.front[0] == found.best, "the best first, also where it is the slower one"
    (times,) = re.findall(r"<b>([0-9.]+) x</b><span>best over worst that fits, in money<", sweep_page("prices", found))
    assert float(times) == pytest.approx(max(row.cost or 0 for row in found.ranked) / (found.best.cost or 1), abs=0.01) and float(times) > 1
    there = machines(found)
    assert (there[narrow].cost or 0) / (there[wide].cost or 1) == pytest.approx(
        0.5 * (there[narrow].step_time or 0) / (there[wide].step_time or 1)
    )


def test_a_price_is_of_what_is_changed_too(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('dgx-h100 = 2.5\n"gpu=h200-sxm" = 0.5\n"oversubscription=4" = -0.25\n')
    prices = load_prices(file)
    assert price_of(prices, ON) == price_of(prices, ON, edits=("pod=1",)) == 2.5
    assert price_of(prices, ON, edits=("gpu=h200-sxm", "oversubscription=4")) == 2.75
    with pytest.raises(BadInput, match=r"no price for gpu=b200-sxm: say what it adds to a GPU-hour of 2x dgx-h100"):
        price_of(prices, ON, edits=("gpu=b200-sxm",))
    with pytest.raises(BadInput, match=r"would cost -1\.5, less than nothing\. Raise the machine's price"):
        price_of(prices | {"pod=1": -4.0}, ON, edits=("pod=1",))
    told = steptwin.capacity(PLAN, ON, 1e9, prices=prices, edits=("gpu=h200-sxm",))
    assert told.money == pytest.approx(3.0 * told.gpu_hours)
    assert steptwin.capacity(PLAN, ON, 1e9, prices=file, edits=("gpu=h200-sxm",)).money == told.money
    with pytest.raises(BadInput, match=r"prices: dgx-h100 = '2\.5 USD' is no price .*a bare number"):
        steptwin.capacity(PLAN, ON, 1e9, prices={"dgx-h100": "2.5 USD"})  # type: ignore[dict-item]
    with pytest.raises(BadInput, match=r'prices: "4x dgx-h100" is a cluster, and .* write "dgx-h100" = 2\.5'):
        load_prices({"4x dgx-h100": 2.5})
    with pytest.raises(BadInput, match="no price for gpu=b200-sxm"):
        sweep(PLAN, parse_space("gpu=h200-sxm,b200-sxm"), ON, tmp_path / "s.sqlite", prices=prices)


def test_money_says_which_changes_have_no_price(tmp_path: Path, call: Call) -> None:
    """A slower network at the price of the fast one was passed over in silence; a key that has a price for one value has said the others'."""
    file, nic = tmp_path / "prices.toml", "nic.rate=100 Gbit/s"
    file.write_text('dgx-h100 = 2.5\n"oversubscription=4" = -0.25\n')
    prices = load_prices(file)
    told = steptwin.capacity(PLAN, ON, 1e9, prices=prices, edits=(nic, "oversubscription=4", "slow=r0:0.9"))
    assert told.unpriced == (nic,) and f"; nothing for {nic}" in str(told)
    assert not steptwin.capacity(PLAN, ON, 1e9, edits=(nic,)).unpriced, "no prices, no money"
    said = call(
        "sweep",
        "gpt2-ddp8",
        "micro=8 oversubscription=1,4 pod=1,2",
        "--set",
        nic,
        "--prices",
        str(file),
        "--out",
        str(tmp_path / "s.sqlite"),
    )
    assert [line.partition(": ")[2].partition(":")[0] for line in said.err.splitlines() if line.startswith("note: ")] == [
        f"no price for {edit}" for edit in (nic, "pod=1", "pod=2")
    ]


def test_what_no_machine_has_is_bad_input_and_what_one_lacks_is_no_plan(tmp_path: Path) -> None:
    for space, told in (
        ("oversubscription=1,x", "the space has oversubscription=x: .*number"),
        ("without=nvlnk,nic", "the space has without=nvlnk: .*Did you mean nvlink"),
        ("link.nvlink.rate=200 GB/s on=l4-x8", "the space has link.nvlink.rate=200 GB/s: .*l4-x8 has no nvlink"),
        ("railes=4", "Did you mean rails"),
        ("rails=4 fabric.rails=8", "names 'fabric.rails' twice"),
    ):
        with pytest.raises(BadInput, match=told):
            sweep(PLAN, parse_space(space), ON, tmp_path / "s.sqlite")
    found = sweep(PLAN, parse_space("link.nvlink.rate=200 GB/s gpus=8 on=dgx-h100,l4-x8"), ON, tmp_path / "s.sqlite")
    assert (found.counts["done"], found.counts["refused"]) == (1, 1) and "l4-x8 has no nvlink" in found.refusals[0][1]


def test_all_sensible_plans_on_each_of_several_machines() -> None:
    """What the space says of a key itself holds."""
    space = expanded(PLAN, parse_space("auto=16 oversubscription=1,2 parallel.tp=1 global=64,256"), ON)
    assert (space["parallel.tp"], space["global"], space["oversubscription"]) == (("1",), ("64", "256"), ("1", "2"))
    assert space["gpus"] == ("16",) and "tp" not in space and "auto" not in space and "pp" in space
    for wrong in ("auto=16 gpus=8", "auto=8,16", "auto=all"):
        with pytest.raises(BadInput, match="one number of GPUs, in place of gpus"):
            expanded(PLAN, parse_space(wrong), ON)


def test_a_sampler_looks_at_machines_too(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    found = search(PLAN, parse_space(SPACE), ON, tmp_path / "s.sqlite", trials=8)
    assert found.counts["done"] == 8 and len(found.by_machine) == 4


def test_other_gpus_come_before_their_figures() -> None:
    """Wherever they stand in the space: they bring figures of their own, and were refused after one that was changed."""
    found = list(candidates(PLAN, parse_space("gpu.power=500 W gpu=h200-sxm without=p2p"), ON))
    assert [one.edits for one, _ in found] == [("gpu=h200-sxm", "gpu.power=500 W", "without=p2p")]
    assert named(PLAN, found[0][0].key) == found[0]
    assert Row(found[0][0].key, "done").machine == f"{ON} with gpu=h200-sxm, gpu.power=500 W, without p2p"


def test_what_no_plan_of_a_sweep_feels_is_said(tmp_path: Path) -> None:
    def told(space: str, *edits: str) -> list[str]:
        return unfelt_by_all(sweep(PLAN, parse_space(space), ON, tmp_path / f"{len(space)}.sqlite", edits=edits), edits)

    assert told("oversubscription=1,8") == [
        "oversubscription=1,8 has no effect: all 2 nodes hang on the same leaf switches, of 32 nodes each, below the spines; pod=1 puts them on two"
    ]
    assert told("pod=1,32 oversubscription=8") == []  # felt where the nodes are on two leaves
    assert ["disk.read=1 MB/s has no effect: " in text for text in told("micro=2,4", "disk.read=1 MB/s")] == [True]


def test_a_file_from_before_is_another_sweep_s(tmp_path: Path) -> None:
    """Its bounds were decided across machines: what is faster elsewhere had put plans aside that are their machine's best."""
    file = tmp_path / "s.sqlite"
    sweep(PLAN, parse_space("micro=2"), ON, file)
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE header SET value = '3' WHERE name = 'version'")
        database.commit()
    with pytest.raises(BadInput, match=r"another version \(3 there, 6 here\)"):
        sweep(PLAN, parse_space("micro=2"), ON, file)
