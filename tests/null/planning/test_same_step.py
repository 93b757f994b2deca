"""One plan on one machine has one step time, whichever verb says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.files.planfile import load_plan
from sim.planning import montecarlo
from sim.planning.capacity.capacity import capacity
from sim.planning.disturbed.faults import faults
from sim.planning.explain.explanation import explain
from sim.planning.montecarlo import Jitter, spread
from sim.planning.sweeps.screen import screened
from sim.planning.sweeps.sweep import sweep
from sim.predict import predict
from sim.setting.bind import bind
from sim.steady.rounds import confirmed
from sim.timeline.asynchrony import mean_step

GPT: dict[str, Any] = {"model": {"base": "gpt2-124m", "layers": 2}, "seq_len": 512, "parallel": {"dp_replicate": 4}}
ASYNC = {"update": {"mode": "async"}}
PLANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "local": {"update": {"mode": "local", "every": 3}},
    "local, seldom": {"update": {"mode": "local", "every": 10**6}},
    "async": ASYNC,
    "async, one slow": ASYNC | {"noise": {"stragglers": "r1: 3x"}},
    "output": {"output": {"log_every": 1, "checkpoint_every": 7}},
    "local, output": {"update": {"mode": "local", "every": 2}, "output": {"log_every": 1}},
    "async checkpoints": {"output": {"checkpoint_every": 2, "checkpoint_mode": "async"}},
    "bound by input": {"data": {"source": "disk", "workers": 1, "sample": "1 MB", "preprocess": "200 ms"}},
    "reads itself": {"data": {"source": "disk", "sample": "80 MB"}},
    "sharded": {"parallel": {"dp_shard": 4, "zero": 3}},
    "local, uneven": {"update": {"mode": "local", "every": 4}, "memory": {"offload": "activations"}, "noise": {"imbalance": "r1: 2x"}},
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PLANS)
def test_all_verbs_say_the_same_step(name: str, tmp_path: Path) -> None:
    plan, on = load_plan(GPT | PLANS[name]), "dgx-a100" if "uneven" in name else "dgx-h100"  # whose GPUs share ways to the host in pairs
    found = predict(plan, on)
    step = pytest.approx(found.step_time_s, rel=1e-9)
    explained = explain(bind(plan, on), tries=0)
    assert explained.step_time_s == step
    assert sum(seconds for _, seconds in explained.path) == step
    assert capacity(plan, on, 1e9).step_time_s == step
    assert spread(plan, on, 3, jitter=Jitter(rank=0, step=0)).samples == (step,) * 3
    filled = 1e-3 if plan.data.workers else 1e-9  # a step more or less until loaders are at their pace
    assert faults(plan, on, ("slow=r0:0.5",)).step_time_s == pytest.approx(found.step_time_s, rel=filled)
    swept = sweep(plan, {"batch.micro": ("1",)}, on, tmp_path / "sweep.sqlite").rows[0]
    assert (swept.step_time, swept.rate, swept.mfu) == (step, pytest.approx(found.samples_per_s, rel=1e-9), pytest.approx(found.mfu))
    assert found.samples_per_s * found.step_time_s == pytest.approx(plan.global_batch)
    assert found.breakdown.total == step


@pytest.mark.parametrize("parallel", [{"dp_replicate": 4}, {"dp_replicate": 2, "pp": 2}])
@pytest.mark.parametrize("micro", [8, 32])
def test_a_sweep_ranks_threads_that_read_by_what_they_share(parallel: dict[str, int], micro: int) -> None:
    """Whoever reads while its device still works waits for the disk from the third step on; by itself each would have all of the disk."""
    plan = {"batch": {"micro": micro, "global": 128}, "parallel": parallel, "data": {"source": "disk", "sample": "30 MB"}}
    setting = bind(load_plan(GPT | plan), "dgx-h100")
    step = pytest.approx(predict(GPT | plan, "dgx-h100").step_time_s, rel=1e-6)
    assert screened(setting) == confirmed(setting) == step


@pytest.mark.parametrize(
    "more", [{"optimizer": {"on": "cpu"}}, {"memory": {"offload": "optimizer"}}, {"memory": {"offload": "activations"}}]
)
def test_a_sweep_ranks_what_hosts_keep_by_what_their_ranks_share(more: dict[str, Any]) -> None:
    """Memory of the host, and PCIe switches."""
    plan, on = GPT | {"batch": {"micro": 4, "global": 16}} | more, "dgx-a100"
    assert screened(bind(load_plan(plan), on)) == pytest.approx(predict(plan, on).step_time_s, rel=1e-3)


@pytest.mark.no_cover
def test_a_sweep_finds_the_best_plan_whatever_its_checkpoints_cost(tmp_path: Path) -> None:
    """Every second step is a checkpoint's: as fast as the best is what is so without them, and with them when simulated whole."""
    plan = load_plan(GPT | {"batch": {"micro": 1, "global": 64}, "output": {"checkpoint_every": 2, "checkpoint_mode": "full"}})
    space = {"batch.micro": ("1", "2", "4", "8", "16"), "memory.recompute": ("none", "full"), "comm.bucket": ("25MiB", "50MiB")}
    found = sweep(plan, space, "dgx-h100", tmp_path / "sweep.sqlite")
    steps = {row.key: predict(load_plan(plan, tuple(row.key.split()[:3])), "dgx-h100").step_time_s for row in found.feasible}
    assert found.best is not None and found.best.step_time == pytest.approx(min(steps.values()), rel=1e-9) and len(steps) > 5
    for row in found.feasible:
        assert row.whole or found.best.step_time < (row.step_time or 0.0)
        assert row.step_time == pytest.approx(steps[row.key], rel=1e-9) if row.whole else (row.step_time or 0.0) < steps[row.key]


@pytest.mark.no_cover
def test_what_output_adds_is_no_resources() -> None:
    quiet, loud = (explain(bind(load_plan(GPT | more), "dgx-h100")) for more in ({}, {"output": {"checkpoint_every": 2}}))
    added = loud.step_time_s - quiet.step_time_s
    assert dict(loud.path)["output"] == pytest.approx(added) and added > 0
    louder = {one.resource: one for one in loud.sensitivities}
    for one in quiet.sensitivities:
        other = louder.pop(one.resource)
        assert other.infinitely_fast == pytest.approx(one.infinitely_fast + added)
        assert other.elasticity * loud.step_time_s == pytest.approx(one.elasticity * quiet.step_time_s)
    assert loud.changes, "what a plan gains is seen beside its checkpoints"
    for change in loud.changes:
        assert predict(load_plan(GPT | {"output": {"checkpoint_every": 2}}, change.overrides), "dgx-h100").step_time_s == pytest.approx(
            change.step_time_s, rel=1e-9
        )
        assert change.gain == pytest.approx(1 - change.step_time_s / loud.step_time_s)


@pytest.mark.no_cover
@pytest.mark.parametrize("on", ["l40s-x8", "h100-pcie-x8"])
def test_asynchronous_ranks_meet_in_another_order_each_step(on: str) -> None:
    """So that one step says little: the figure is the mean over many, whatever number is simulated for the trace."""
    plan = load_plan(GPT | ASYNC)
    found = predict(plan, on)
    assert predict(plan, on, steps=7).step_time_s == pytest.approx(found.step_time_s, rel=1e-9)
    whole = predict(plan, on, steps=60).trace
    assert whole is not None and mean_step(whole).total == pytest.approx(found.step_time_s, rel=0.03)


@pytest.mark.no_cover
def test_a_slow_asynchronous_rank_costs_its_own_share_alone() -> None:
    """Ranks that hardly meet: 3 of full speed and one at a third make 10/12 of the steps of 4."""
    plan = GPT | ASYNC | {"batch": {"micro": 16, "global": 16 * 4 * 64}}
    even = predict(plan, "dgx-h100").step_time_s
    slow = predict(plan | {"noise": {"stragglers": "r3: 3x"}}, "dgx-h100").step_time_s
    assert slow / even == pytest.approx(12 / 10, rel=0.05)
    assert faults(plan, "dgx-h100", ("slow=r3:0.5",)).rows[0].slowdown == pytest.approx(8 / 7, rel=0.05)


@pytest.mark.no_cover
def test_a_spread_simulates_no_more_than_what_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is always slow is one factor beside the sound one; nine points lie along what varies, five where both do. Where boards are
    drawn, the step that `predict` says is none of them: one more."""
    seen: list[object] = []
    real = montecarlo._step

    def step(*args: Any) -> float:
        seen.append(args)
        return real(*args)

    monkeypatch.setattr(montecarlo, "_step", step)
    still = {"rank": 0.0, "step": 0.0}
    counts = []
    for jitter in (Jitter(slow_link=3), Jitter(**still, slow_link=3), Jitter(**still, link=0.1), Jitter(link=0.1)):
        seen.clear()
        found = spread(load_plan(GPT), "dgx-h100", 20, jitter=jitter)
        counts.append(len(seen))
        assert found.without == pytest.approx(predict(GPT, "dgx-h100").step_time_s, rel=1e-9)
    assert counts[0] - 1 in (2 * 9, 2 * 10) and counts[1] == 2 and counts[2] in (9, 10) and 25 <= counts[3] - 1 <= 36


def test_plans_that_share_what_they_lower_cast_weights_as_each_alone(tmp_path: Path) -> None:
    """A sweep lowers equal layers once for plans with other ZeRO levels and stages, of which some cast weights in each pass. (ZeRO-3 took over the
    casts of what stays, and was 4 % too slow.)"""
    plan = load_plan(
        {"model": {"base": "llama3-8b", "layers": 4}, "seq_len": 2048, "framework": "torchtitan", "precision": "fp8", "batch": {"micro": 1}}
    )
    space = {"zero": ("3", "1"), "pp": ("1", "2"), "gpus": ("8",), "global": ("16",)}
    found = sweep(plan, space, "dgx-h100", tmp_path / "shared.sqlite", every="whole")
    assert len(found.ranked) == 4
    for row in found.ranked:
        assert row.step_time == pytest.approx(predict(found.plan(row), "dgx-h100", detail=False).step_time_s, rel=1e-9), row.key
