"""Sweeps, explanations and capacity on a small model: what they promise holds end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.files.planfile import load_plan
from sim.lower.step import lower
from sim.planning.capacity.capacity import capacity
from sim.planning.capacity.goodput import Reliability
from sim.planning.capacity.prices import load_prices
from sim.planning.explain.explanation import explain
from sim.planning.sweeps import judge
from sim.planning.sweeps import sweep as sweeping
from sim.planning.sweeps.space import parse_space
from sim.predict import predict
from sim.setting.bind import bind
from topologies.errors import BadInput

PLAN = load_plan(
    {"model": "gpt2-124m", "seq_len": 1024, "framework": "pytorch", "batch": {"global": 64, "micro": 8}, "parallel": {"dp_replicate": 8}}
)


def test_a_sweep_finds_what_single_predictions_say_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = parse_space("micro=2,4,8,3")
    found = sweeping.sweep(PLAN, space, "dgx-h100", tmp_path / "a.sqlite")
    assert found.counts == {"done": 3, "memory": 0, "bound": 0, "refused": 1, "failed": 0}  # 64 is no multiple of 8 x 3
    single = {m: predict(load_plan(PLAN, (f"batch.micro={m}",)), "dgx-h100", steps=2).step_time_s for m in (2, 4, 8)}
    times = {row.key.split()[0]: row.step_time for row in found.feasible}
    assert times == pytest.approx({f"batch.micro={m}": seconds for m, seconds in single.items()}, rel=1e-6)
    assert found.best is not None and found.best.step_time == min(times.values())

    def never(*_: object) -> None:
        raise AssertionError("a plan was run twice")

    monkeypatch.setattr(judge, "evaluate", never)
    again = sweeping.sweep(PLAN, space, "dgx-h100", tmp_path / "a.sqlite")
    assert [row.key for row in again.rows] == [row.key for row in found.rows]


def test_a_space_without_a_plan_that_fits_says_what_came_closest(tmp_path: Path) -> None:
    big = load_plan({"model": "llama3-70b", "seq_len": 8192, "parallel": {"dp_replicate": 8}})
    with pytest.raises(BadInput, match="closest"):
        sweeping.sweep(big, parse_space("micro=1,2"), "dgx-h100", tmp_path / "b.sqlite")


@pytest.mark.no_cover
def test_an_explanation_names_what_bounds_the_step() -> None:
    found = explain(bind(PLAN, "dgx-h100"), tries=4)
    assert found.sensitivities[0].infinitely_fast < found.step_time_s
    assert all(s.ten_percent <= 1e-9 for s in found.sensitivities)  # faster never hurts here
    assert all(0 < change.gain < 1 for change in found.changes)
    assert sum(seconds for _, seconds in found.path) == pytest.approx(found.step_time_s, rel=1e-6)


def test_nodes_that_stand_by_are_paid_for() -> None:
    prices = {"dgx-h100": 2.5}
    none, two = (capacity(PLAN, "dgx-h100", 1e9, prices=prices, how=Reliability(spares=count)) for count in (0, 2))
    assert two.money == pytest.approx((8 + 2 * 8) * two.elapsed_s / 3600 * 2.5) and none.money == pytest.approx(2.5 * none.gpu_hours)
    assert two.paid_gpu_hours == pytest.approx(3 * two.gpu_hours) and none.paid_gpu_hours == none.gpu_hours
    assert f"{two.paid_gpu_hours:,.0f} are paid for" in str(two) and "are paid for" not in str(none)


def test_capacity_is_steps_times_seconds_and_money_is_hours_times_price(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("dgx-h100 = 2.5\n")
    found = capacity(PLAN, "dgx-h100", 1e9, prices=load_prices(prices))
    assert found.steps == -(-(10**9) // (64 * 1024))
    assert found.productive_s == pytest.approx(found.steps * found.step_time_s)
    assert found.elapsed_s >= found.productive_s and found.money == pytest.approx(found.gpu_hours * 2.5)
    with pytest.raises(BadInput, match="no price for dgx-a100"):
        capacity(PLAN, "dgx-a100", 1e9, prices=load_prices(prices))
    prices.write_text("dgx-h100 = -1\n")
    with pytest.raises(BadInput, match="is no price"):
        load_prices(prices)


@pytest.mark.no_cover
def test_how_often_the_plan_saves_does_not_matter() -> None:
    """Checkpoints of the best interval wait for none before, whatever those of the plan do."""
    plan = {"model": "gpt2-1.5b", "seq_len": 1024, "batch": {"micro": 4, "global": 32}, "parallel": {"dp_replicate": 8}}
    output = {"checkpoint_mode": "async", "checkpoint_to": "store"}
    tries = [capacity(load_plan(plan | {"output": output | {"checkpoint_every": every}}), "dgx-h100", 1e11) for every in (1, 10, 1000)]
    assert tries[0].checkpoint_interval_s == pytest.approx(tries[2].checkpoint_interval_s, rel=1e-6)
    assert tries[1].checkpoint_interval_s == pytest.approx(tries[2].checkpoint_interval_s, rel=1e-6)


@pytest.mark.no_cover
def test_asynchronous_checkpoints_come_as_often_as_they_can_be_written() -> None:
    """Their stall is a moment's; what the store takes for a copy of the state is not."""
    plan = {"model": "gpt2-1.5b", "seq_len": 1024, "batch": {"micro": 4, "global": 32}, "parallel": {"dp_replicate": 8}}
    output = {"checkpoint_mode": "async", "checkpoint_to": "store", "checkpoint_every": 1000}
    parameters = predict(plan, "dgx-h100").parameters
    for rate in (1, 100):
        edits = (f"store.write={rate} MB/s", f"store.total_write={rate} MB/s")
        found = capacity(load_plan(plan | {"output": output}), "dgx-h100", 1e13, edits=edits)
        writing = parameters * 6 / (rate * 1e6)
        assert found.checkpoint_interval_s >= writing
        assert (found.checkpoint_interval_s == pytest.approx(writing, rel=0.01)) == (rate == 1)


@pytest.mark.no_cover
@pytest.mark.parametrize(("preprocess", "failing"), [("32 ms", 1e9), ("33.2 ms", 1e9), ("33.2 ms", 3600.0), ("60 ms", 1e9)])
def test_checkpoints_that_loaders_make_up_for_cost_what_their_steps_do(preprocess: str, failing: float) -> None:
    """A step that waits for loaders has time to spare for a checkpoint, as seldom as these are made: not for one after every step."""
    plan = {"model": "gpt2-124m", "seq_len": 1024, "batch": {"micro": 8, "global": 64}, "parallel": {"dp_replicate": 8}}
    data = {"source": "disk", "workers": 8, "preprocess": preprocess}
    how = Reliability(mtbf_gpu=failing, restart=0.0)
    found = capacity(load_plan(plan | {"data": data, "output": {"checkpoint_every": 1}}), "dgx-h100", 1e11, how=how)
    every = round(found.checkpoint_interval_s / found.quiet_step_s)
    rhythm = predict(plan | {"data": data, "output": {"checkpoint_every": every}}, "dgx-h100").step_time_s
    lost = found.failures * (0.5 * found.checkpoint_interval_s + how.restart)
    assert found.elapsed_s == pytest.approx(found.steps * rhythm + lost, rel=5e-3)


def test_a_cadence_may_be_said_and_what_is_lost_is_told() -> None:
    """Of one that is far from the best more is lost, to what it is far on the side of; all shares make up what is no progress."""
    how = Reliability(mtbf_gpu=8 * 3600.0, restart=60.0)
    best, often, seldom = (capacity(PLAN, "dgx-h100", 1e12, how=how, checkpoint=10.0, every=every) for every in (None, 20.0, 3600.0))
    assert (often.checkpoint_interval_s, seldom.checkpoint_interval_s) == (20.0, 3600.0)
    assert best.elapsed_s < min(often.elapsed_s, seldom.elapsed_s)
    assert often.lost_s["checkpoints"] > 5 * best.lost_s["checkpoints"] and seldom.lost_s["repeats"] > 2 * best.lost_s["repeats"]
    for found in (best, often, seldom):
        assert found.productive_s + sum(found.lost_s.values()) == pytest.approx(found.elapsed_s)
        assert found.checkpoint_s == 10.0 and "checkpoints" in found.lost_to()
    with pytest.raises(BadInput, match="every = 0 s must be finite and above zero"):
        capacity(PLAN, "dgx-h100", 1e9, every=0)


def test_a_step_that_waits_for_data_draws_less_than_one_that_works() -> None:
    """Of the same work; hosts and cooling draw on all the same."""
    starved = load_plan(PLAN, ("data.workers=1", "data.preprocess=2 s"))
    fed, slow = (capacity(plan, "dgx-h100", 1e11, how=Reliability(mtbf_gpu=float("inf"))) for plan in (PLAN, starved))
    assert fed.energy_j and slow.energy_j and slow.elapsed_s > 1.5 * fed.elapsed_s
    assert slow.energy_j / slow.elapsed_s < 0.9 * fed.energy_j / fed.elapsed_s and slow.energy_j > fed.energy_j


def test_nodes_are_rented_whole() -> None:
    prices = {"dgx-h100": 2.0}
    half = load_plan(PLAN, ("parallel.dp_replicate=4", "batch.global=32"))
    whole, part = (
        capacity(PLAN, "dgx-h100", 1e10, prices=prices),
        capacity(half, "dgx-h100", 1e10, prices=prices, edits=("ranks_per_node=4",)),
    )
    assert whole.money == pytest.approx(whole.gpu_hours * 2) and part.money == pytest.approx(part.gpu_hours * 4)


@pytest.mark.no_cover
def test_an_unsaid_checkpoint_holds_one_copy_of_the_state() -> None:
    """Into the store of a node, slower than 1 GB/s a GPU: what replicas have in common is written once, what is frozen is not."""
    for name in ("gpt2-ddp8", "llama2-70b-lora"):
        plan = load_plan(name)
        saved = load_plan(plan, ("output.checkpoint_every=1", "output.checkpoint_mode=sharded"))
        setting = bind(saved, "dgx-h100")
        program = lower(saved, setting.network, setting.framework, "cuda", 1)
        bytes_ = max(op.bytes for ops in program.segments.values() for op in ops if op.id == "output/write")
        unsaid, said = (capacity(plan, "dgx-h100", 1e11, checkpoint=at).checkpoint_interval_s for at in (None, bytes_ * 8 / 4e9))
        assert unsaid == pytest.approx(said)
        assert bytes_ < setting.network.parameters * (6 / 8 + 0.01)
