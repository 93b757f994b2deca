"""More GPUs by data parallelism, and plans one change away."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sim.files.planfile import load_plan
from sim.planning.capacity.capacity import capacity
from sim.planning.capacity.goodput import Reliability, daly
from sim.planning.capacity.prices import load_prices
from sim.planning.capacity.scaling import curve_sizes, scaling, smallest
from sim.planning.explain.neighbours import neighbours
from sim.predict import predict
from topologies.errors import BadInput

BASE = {"model": "gpt2-124m", "seq_len": 256, "batch": {"micro": 2, "global": 64}, "parallel": {"dp_shard": 8, "zero": 3}}


@pytest.mark.no_cover
def test_strong_scaling_keeps_the_batch_and_weak_grows_it() -> None:
    plan = load_plan(BASE)
    strong, weak = (scaling(plan, "dgx-h100", (8, 16, 24), 1e9, weak=weak) for weak in (False, True))
    assert [one.gpus for one in strong] == [8, 16], "64 samples in pairs are not spread over 24 ranks"
    assert [one.gpus for one in weak] == [8, 16, 24]
    assert strong[1].topology == "2x dgx-h100"
    assert strong[1].steps == strong[0].steps
    assert weak[1].steps == pytest.approx(weak[0].steps / 2, abs=1)
    assert strong[1].step_time_s < weak[1].step_time_s


@pytest.mark.no_cover
def test_a_run_of_seconds_is_no_run_of_no_time() -> None:
    plan = load_plan(BASE)
    head, *rows = (line.split() for line in str(scaling(plan, "dgx-h100", (8, 16), 1e6)).replace("step, s", "step").splitlines())
    for row in rows:
        figures = dict(zip(head, row, strict=True))
        assert float(figures["days"]) > 0 < float(figures["GPU-hours"])
    with pytest.raises(BadInput, match=r"16 GPUs with [0-9.]+e-\d+ days$"):
        smallest(plan, "dgx-h100", 1e6, 1e-9, most=16)


@pytest.mark.no_cover
def test_replicas_grow_where_the_plan_replicates() -> None:
    tree = BASE | {"parallel": {"dp_replicate": 4, "tp": 2}}
    assert [one.gpus for one in scaling(load_plan(tree), "dgx-h100", (3, 8, 16), 1e9)] == [8, 16]
    both = BASE | {"parallel": {"dp_replicate": 2, "dp_shard": 4, "zero": 3}}
    assert [one.gpus for one in scaling(load_plan(both), "dgx-h100", (7, 8, 16), 1e9)] == [8, 16]


def test_sizes_with_too_few_microbatches_for_the_schedule_are_left_out() -> None:
    tree = BASE | {"parallel": {"pp": 4, "dp_shard": 2, "schedule": "dualpipe"}, "batch": {"micro": 1, "global": 32}}
    assert [one.gpus for one in scaling(load_plan(tree), "dgx-h100", (8, 16, 32), 1e9)] == [8, 16], "32 GPUs: 4 micro-batches, not 8"


@pytest.mark.no_cover
def test_sizes_that_lack_what_an_edit_names_are_left_out() -> None:
    found = scaling(load_plan(BASE), "dgx-h100", (8, 16), 1e9, edits=("fail=nic:n1/nic0",))
    assert [one.gpus for one in found] == [16]
    with pytest.raises(BadInput, match="no node n9"):
        scaling(load_plan(BASE), "dgx-h100", (8, 16), 1e9, edits=("fail=nic:n9/nic0",))


@pytest.mark.no_cover
def test_the_smallest_cluster_is_the_first_that_is_in_time() -> None:
    plan = load_plan(BASE)
    told: list[str] = []
    line = scaling(plan, "dgx-h100", (8, 16, 32), 1e11)
    limit = (line[0].days + line[1].days) / 2
    assert smallest(plan, "dgx-h100", 1e11, limit, say=told.append).gpus == 16
    assert told[0].startswith("1 GPU: ") and told[3].startswith("8 GPUs: ")
    with pytest.raises(BadInput, match="the fastest was 16 GPUs"):
        smallest(plan, "dgx-h100", 1e11, line[1].days / 2, most=16)
    with pytest.raises(BadInput, match=r"the fastest was 64 GPUs.*samples \(batch.global = 64\) divide over no more"):
        smallest(plan, "dgx-h100", 1e15, 1.0)
    with pytest.raises(BadInput, match=r"the fastest was 16 GPUs with [0-9,.]+ days$"):
        smallest(plan, "dgx-h100", 1e15, 1.0, most=16)


@pytest.mark.no_cover
def test_the_smallest_need_not_be_a_power_of_two() -> None:
    """96 samples divide over 8, 16, 24, 32, 48 and 96 ranks: 24 is tried when 16 is late and 32 is not, and 96 though 64 is none."""
    plan = load_plan(BASE | {"batch": {"micro": 1, "global": 96}})
    line = {one.gpus: one.days for one in scaling(plan, "dgx-h100", (8, 16, 24, 32, 48, 64, 96), 1e11)}
    assert list(line) == [8, 16, 24, 32, 48, 96]
    for size in (24, 32, 96):
        assert smallest(plan, "dgx-h100", 1e11, line[size] * 1.0001).gpus == size
    with pytest.raises(BadInput, match=r"the fastest was 96 GPUs.*batch.global = 96\)"):
        smallest(plan, "dgx-h100", 1e11, line[96] * 0.99)


@pytest.mark.no_cover
def test_the_smallest_may_be_a_part_of_a_node() -> None:
    """As far as the batch and tp x pp x cp divide; one sample a step is for one GPU alone."""
    plan = load_plan(BASE | {"batch": {"micro": 1, "global": 12}, "parallel": {"dp_replicate": 2}})
    line = scaling(plan, "dgx-h100", range(1, 9), 1e10)
    assert [one.gpus for one in line] == [1, 2, 3, 4, 6]
    assert [smallest(plan, "dgx-h100", 1e10, one.days).gpus for one in line] == [1, 2, 3, 4, 6]
    wide = load_plan(BASE | {"parallel": {"tp": 4}})
    assert smallest(wide, "2x dgx-h100", 1e10, 1e4).gpus == 4
    single = load_plan({"model": "gpt2-124m", "seq_len": 256})
    assert smallest(single, "dgx-h100", 1e9, 1e4) == capacity(single, "dgx-h100", 1e9)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("tree", "overrides"),
    [
        (BASE, ("parallel.dp_shard=32",)),
        (BASE | {"batch": {"micro": 4, "global": 64}}, ("parallel.dp_shard=32", "batch.micro=2")),
        (BASE | {"batch": {"micro": 8}}, ("parallel.dp_shard=32", "batch.global=64", "batch.micro=2")),
        (BASE | {"parallel": {"dp_replicate": 2}}, ("parallel.dp_replicate=32",)),
    ],
    ids=str,
)
def test_what_another_size_changes_about_the_plan_is_said(tree: dict[str, object], overrides: tuple[str, ...]) -> None:
    """So that `predict` finds the same step."""
    (found,) = scaling(load_plan(tree), "dgx-h100", (32,), 1e9)
    assert found.overrides == overrides and f"--set {overrides[0]}" in str(found)
    assert predict(load_plan(tree, overrides), found.topology).step_time_s == pytest.approx(found.step_time_s, rel=1e-9)


@pytest.mark.no_cover
def test_checkpoints_of_the_plan_are_not_counted_twice() -> None:
    """They are made as often as failures ask for, and stall for what the plan's own do."""
    quiet = load_plan(BASE)
    saving = load_plan(BASE | {"output": {"checkpoint_every": 10, "checkpoint_mode": "full"}})
    without, found = capacity(quiet, "dgx-h100", 1e11), capacity(saving, "dgx-h100", 1e11)
    assert found.productive_s == pytest.approx(without.productive_s, rel=1e-9) and found.step_time_s > without.step_time_s
    stall = 10 * (predict(saving, "dgx-h100").step_time_s - predict(quiet, "dgx-h100").step_time_s)
    assert stall > 0
    mtbf = Reliability().mtbf(8, 8)
    assert found.checkpoint_interval_s == pytest.approx(min(found.productive_s, daly(stall, mtbf)), rel=1e-6)


@pytest.mark.no_cover
def test_every_gpu_of_a_mixture_draws_its_own_power() -> None:
    plan = load_plan(BASE | {"parallel": {"dp_shard": 16, "zero": 3}})
    old, both = (capacity(plan, on, 1e10) for on in ("2x dgx-a100", "dgx-h100 + dgx-a100"))
    assert old.energy_j and both.energy_j
    watts = both.energy_j / both.elapsed_s / (old.energy_j / old.elapsed_s)
    assert watts == pytest.approx((700 + 400) / (2 * 400), rel=1e-3)


def test_a_job_that_waits_for_a_node_takes_less_power_than_one_that_trains() -> None:
    how = Reliability(mtbf_gpu=50 * 3600.0, spares=0, repair=86400.0)
    never, waiting = (capacity(load_plan(BASE), "dgx-h100", 1e12, how=one) for one in (Reliability(mtbf_gpu=math.inf), how))
    assert never.energy_j and waiting.energy_j and never.elapsed_s < 0.5 * waiting.elapsed_s
    limit = 8 * 700.0
    assert never.energy_j == pytest.approx(limit * 0.85 * 1.5 * never.elapsed_s)
    assert limit * (0.1 + 0.85 * 0.5) * waiting.elapsed_s < waiting.energy_j < limit * 0.85 * 1.5 * waiting.elapsed_s * 0.8


@pytest.mark.no_cover
def test_days_have_the_interval_of_the_step() -> None:
    plan = load_plan(BASE)
    found = capacity(plan, "dgx-h100", 1e11)
    low, high = (found.days * end / found.step_time_s for end in predict(plan, "dgx-h100").interval)
    assert found.days_interval == pytest.approx((low, high)) and low < found.days < high
    assert f"80 %: {low:,.2f} to {high:,.2f}" in str(found)


@pytest.mark.no_cover
def test_a_cluster_stands_for_its_kind_of_node() -> None:
    """Of the same machines there may be fewer or more; sizes hold whole tp x pp x cp."""
    plan = load_plan(BASE)
    alone, cluster = (scaling(plan, on, (8, 16), 1e11) for on in ("dgx-h100", "4x dgx-h100"))
    assert [(one.gpus, one.step_time_s) for one in cluster] == [(one.gpus, one.step_time_s) for one in alone]
    assert smallest(plan, "4x dgx-h100", 1e11, alone[0].days).gpus == 8
    assert smallest(load_plan(BASE | {"parallel": {"tp": 2, "pp": 6}}), "dgx-h100", 1e9, 1e4).gpus == 24
    with pytest.raises(BadInput, match="a mixture has no larger sizes"):
        smallest(plan, "dgx-h100 + dgx-a100", 1e11, 1e4)


@pytest.mark.no_cover
def test_no_cluster_for_a_model_that_fits_nowhere() -> None:
    whole = load_plan({"model": "llama3-70b", "seq_len": 1024, "batch": {"micro": 1, "global": 64}, "parallel": {"dp_replicate": 8}})
    with pytest.raises(BadInput, match="no size fits into memory"):
        smallest(whole, "dgx-h100", 1e9, 30.0, most=16)


@pytest.mark.no_cover
def test_sizes_on_which_the_job_fails_faster_than_it_makes_progress_are_left_out() -> None:
    plan, how = load_plan(BASE), Reliability(mtbf_gpu=4800.0, restart=4800.0)  # no failure during a restart: e^-8 on 8 GPUs, e^-16 on 16
    assert [one.gpus for one in scaling(plan, "dgx-h100", (8, 16), 1e9, how=how)] == [8]
    with pytest.raises(BadInput, match="the fastest was 1 GPU with"):
        smallest(plan, "dgx-h100", 1e9, 1e-3, most=16, how=how)
    with pytest.raises(BadInput, match="on 16 GPUs the job fails faster than it makes progress"):
        smallest(plan, "dgx-h100", 1e9, 30.0, most=16, how=Reliability(mtbf_gpu=1.0))


def test_hosts_have_no_known_energy() -> None:
    tree = {"model": "gpt2-124m", "seq_len": 32, "precision": "fp32", "batch": {"micro": 1, "global": 2}, "parallel": {"dp_replicate": 2}}
    plan = load_plan(tree)
    found = capacity(plan, "cpu-host", 1e5)
    assert found.energy_j is None and "not known" in str(found)
    assert capacity(plan, "dgx-h100", 1e5).energy_j is not None


def test_prices_stand_in_a_table_or_alone(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text("[per_gpu_hour]\ndgx-h100 = 2\n")
    assert load_prices(file) == {"dgx-h100": 2.0}
    file.write_text("per_gpu_hour = 2\n")
    with pytest.raises(BadInput, match="must be a table of prices by machine"):
        load_prices(file)


def test_prices_must_know_the_machine() -> None:
    with pytest.raises(BadInput, match="no price for dgx-h100"):
        scaling(load_plan(BASE), "dgx-h100", (8,), 1e9, prices={"aws-p5": 2.0})


@pytest.mark.parametrize(
    "parallel",
    [{"dp_shard": 8, "zero": 3}, {"dp_replicate": 2, "tp": 2, "pp": 2}, {"tp": 4, "pp": 2, "schedule": "1f1b"}, {"dp_shard": 1}],
    ids=str,
)
def test_neighbours_keep_ranks_and_batch(parallel: dict[str, object]) -> None:
    plan = load_plan(BASE | {"parallel": parallel})
    found = neighbours(plan)
    assert found
    for overrides, other in found:
        assert overrides and other != plan
        assert (other.world, other.global_batch) == (plan.world, plan.global_batch)
    changed = {word.partition("=")[0] for overrides, _ in found for word in overrides}
    assert "memory.recompute" in changed and "compile" in changed
    assert ("parallel.schedule" in changed) == (plan.parallel.pp > 1)


def test_a_curve_ends_where_clusters_do() -> None:
    assert curve_sizes(8) == [8 * 2**n for n in range(15)]
    assert curve_sizes(16_384) == [16_384, 32_768, 65_536, 131_072]
    assert curve_sizes(131_072) == [131_072, 262_144]
    assert curve_sizes(8, steps=40_000) == [8, 16, 32, 64, 128, 256] and curve_sizes(8, steps=10) == [8, 16]


def test_one_change_away() -> None:
    """Of a plan on 8 ranks: every halving and doubling that leaves 8, and nothing else of the split."""
    plan = load_plan(BASE | {"parallel": {"dp_replicate": 2, "tp": 2, "pp": 2, "schedule": "1f1b"}})
    splits = {overrides for overrides, _ in neighbours(plan) if len(overrides) == 2 and overrides[0] != "parallel.schedule=interleaved"}
    assert {one for one in splits if not one[0].startswith(("parallel.schedule", "memory", "compile"))} == {
        ("parallel.dp_shard=2", "parallel.tp=1"),
        ("parallel.dp_shard=2", "parallel.pp=1"),
        ("parallel.dp_replicate=1", "parallel.tp=4"),
        ("parallel.dp_replicate=1", "parallel.pp=4"),
        ("parallel.dp_replicate=4", "parallel.tp=1"),
        ("parallel.dp_replicate=4", "parallel.pp=1"),
        ("parallel.tp=1", "parallel.pp=4"),
        ("parallel.pp=1", "parallel.tp=4"),
    }
    odd = load_plan(BASE | {"batch": {"micro": 2, "global": 60}, "parallel": {"dp_replicate": 3, "tp": 3}})
    kept = [overrides for overrides, _ in neighbours(odd) if not any(word.startswith("parallel.zero=") for word in overrides)]
    assert not any(word.startswith(("parallel.tp=", "parallel.dp_replicate=")) for overrides in kept for word in overrides)


def test_replicas_may_share_their_optimizer() -> None:
    """Of the same ranks, where no group of them shards anything yet."""
    plan = load_plan(BASE | {"parallel": {"dp_replicate": 8}})
    found = [
        overrides for overrides, _ in neighbours(plan) if "parallel.dp_replicate=1" in overrides and "parallel.dp_shard=8" in overrides
    ]
    assert sorted(found) == [("parallel.dp_shard=8", "parallel.dp_replicate=1", f"parallel.zero={stage}") for stage in (1, 3)]


def test_enough_loaders_are_not_doubled() -> None:
    for workers, more in ((4, True), (16, False)):
        plan = load_plan(BASE | {"data": {"workers": workers}})
        assert any(overrides == (f"data.workers={2 * workers}",) for overrides, _ in neighbours(plan)) == more


def test_sizes_with_too_few_ranks_for_the_experts_are_left_out() -> None:
    tree = BASE | {"model": "mixtral-8x7b", "parallel": {"dp_shard": 16, "zero": 3, "ep": 16}, "framework": "megatron-core"}
    plan = load_plan(tree | {"model": {"base": "mixtral-8x7b", "layers": 2, "moe": {"experts": 16}}})
    assert [one.gpus for one in scaling(plan, "dgx-h100", (8, 16, 32), 1e9)] == [16, 32]
    assert smallest(plan, "dgx-h100", 1e9, 10.0).gpus == 16
