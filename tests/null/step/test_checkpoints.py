"""Asynchronous checkpoints against arithmetic: what writing takes longer than the steps until the next one is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from sim.cost.place import SAVED
from sim.engine.run import simulate
from sim.files.planfile import load_plan
from sim.lower.step import lower
from sim.predict import predict
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.setting.program import program_for
from sim.timeline import asynchrony
from sim.timeline.metrics import step_times

RATE = 8 * SAVED
"""Bytes per second that a node's ranks write, a thread each; dgx-h100's disks take more."""


def step(every: int, mode: str = "async") -> float:
    output = {"checkpoint_every": every, "checkpoint_mode": mode} if every else {}
    return predict(
        {"model": "gpt2-1.5b", "seq_len": 1024, "batch": {"micro": 2}, "parallel": {"dp_replicate": 8}, "output": output}, "dgx-h100"
    ).step_time_s


@pytest.mark.no_cover
def test_a_period_is_its_steps_or_the_writing_and_the_copy() -> None:
    """Weights and Adam's two moments in bf16, once for all replicas."""
    parameters = predict({"model": "gpt2-1.5b"}, "dgx-h100").parameters
    quiet, writing = step(0), parameters * 3 * 2 / RATE
    copy = (step(1000) - quiet) * 1000
    assert 0 < copy < writing and quiet < writing
    for every in (1, 2, 3, 4, 5, 20):
        period = max(every * quiet, writing) + copy
        assert step(every) * every == pytest.approx(period, rel=0.02), every
    assert step(1) == pytest.approx(step(1, "sharded"), rel=0.25), "nothing is gained where writing is the bottleneck"


@pytest.mark.no_cover
def test_rounds_of_steps_take_what_their_mean_says() -> None:
    """Checkpoints of every second step, simulated as they come."""
    setting = bind(
        load_plan("gpt2-ddp8", ("output.checkpoint_mode=async", "output.checkpoint_every=2", "batch.micro=1", "batch.global=8")), "dgx-h100"
    )
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 8)
    times = step_times(simulate(program, pricer_for(setting), detail=False))
    host = [sum(times[at : at + 2]) / 2 for at in (2, 4)]
    found = predict(setting.plan, "dgx-h100").step_time_s
    assert host == pytest.approx([found] * 2, rel=0.02)


@pytest.mark.no_cover
def test_what_is_waited_for_is_named() -> None:
    """The rest of the writing by itself, the copy by itself; together what checkpoints add."""
    output = {"checkpoint_every": 2, "checkpoint_mode": "async"}
    found = predict(
        {"model": "gpt2-1.5b", "seq_len": 1024, "batch": {"micro": 2}, "parallel": {"dp_replicate": 8}, "output": output}, "dgx-h100"
    )
    adds = {point.where: point.adds or 0.0 for point in found.syncs if point.where.startswith("output/")}
    assert set(adds) == {"output/before", "output/d2h"}
    writing = found.parameters * 3 * 2 / RATE
    assert adds["output/before"] == pytest.approx((writing - 2 * step(0)) / 2, rel=0.02)
    assert sum(adds.values()) == pytest.approx(found.breakdown.output_s)


def long(tree: dict[str, Any], steps: int, every: int, edits: tuple[str, ...] = ()) -> float:
    """The mean step of the last periods of so many, simulated as they come."""
    setting = bind(load_plan(tree), "dgx-h100", edits)
    program = lower(setting.plan, setting.network, setting.framework, "cuda", steps)
    times = step_times(simulate(program, pricer_for(setting), detail=False))
    periods = (steps - 1) // every // 2 * every
    return sum(times[-periods:]) / periods


@pytest.mark.no_cover
@pytest.mark.parametrize("every", [1, 3, 6])
def test_stages_that_write_more_than_others_settle(every: int) -> None:
    """The first stage has the table: its writer is done last, and the disk is then its own."""
    tree = {"model": "gpt2-124m", "seq_len": 1024, "batch": {"micro": 4, "global": 32}, "parallel": {"pp": 4}}
    tree["output"] = {"checkpoint_every": every, "checkpoint_mode": "async"}
    slow = ("disk.write=500 MB/s",)
    assert predict(tree, "dgx-h100", edits=slow).step_time_s == pytest.approx(long(tree, 49, every, slow), rel=0.02)


@pytest.mark.no_cover
@pytest.mark.parametrize(("preprocess", "mode", "every"), [("20 ms", "sharded", 5), ("80 ms", "full", 2), ("20 ms", "sharded", 1)])
def test_loaders_work_on_while_training_stands_still(preprocess: str, mode: str, every: int) -> None:
    """What they put into store meanwhile, later steps take without waiting."""
    tree: dict[str, Any] = {"model": "gpt2-124m", "seq_len": 1024, "batch": {"micro": 8, "global": 8}}
    tree |= {"data": {"source": "disk", "workers": 4, "preprocess": preprocess}}
    quiet = predict(tree, "dgx-h100").step_time_s
    tree["output"] = {"checkpoint_every": every, "checkpoint_mode": mode}
    found = predict(tree, "dgx-h100").step_time_s
    assert found == pytest.approx(long(tree, 41, every), rel=0.01)
    assert found >= quiet * (1 - 1e-9)


@pytest.mark.no_cover
@pytest.mark.parametrize(("micro", "prefetch", "mode", "every"), [
    (16, 2, "full", 2), (8, 2, "full", 1), (8, 1, "async", 2), (4, 1, "full", 3), (4, 4, "sharded", 20), (1, 24, "full", 40)])  # fmt: skip
def test_no_more_is_in_store_than_loaders_keep_and_no_more_lost_than_a_checkpoint_takes(
    micro: int, prefetch: int, mode: str, every: int
) -> None:
    """A step of several micro-batches, for which not all batches are in store, or of less than what loaders keep."""
    tree: dict[str, Any] = {"model": {"base": "gpt2-124m", "layers": 2}, "seq_len": 512, "batch": {"micro": micro, "global": 16}}
    tree |= {"data": {"source": "disk", "workers": 1, "preprocess": "2 ms" if micro > 1 else "0.5 ms", "prefetch": prefetch}}
    tree |= {"output": {"checkpoint_every": every, "checkpoint_mode": mode}}
    assert predict(tree, "dgx-h100").step_time_s == pytest.approx(long(tree, 4 * every + 1, every), rel=2e-3)


@pytest.mark.parametrize(("every", "to"), [(3, "disk"), (12, "store")])
def test_steps_that_average_seldom_leave_as_much_to_wait_for_as_their_mean(every: int, to: str) -> None:
    """Of local updates a period's steps are shorter than one that averages, beside which a checkpoint is simulated."""
    output = {"checkpoint_every": every, "checkpoint_mode": "async", "checkpoint_to": to}
    tree = {"model": {"base": "gpt2-124m", "layers": 2}, "seq_len": 512, "batch": {"micro": 4, "global": 16}, "output": output}
    tree |= {"parallel": {"dp_replicate": 4}, "update": {"mode": "local", "every": 3}}
    assert predict(tree, "dgx-h100").step_time_s == pytest.approx(long(tree, 49, every), rel=1e-3)


@pytest.mark.no_cover
@pytest.mark.parametrize(("every", "mode"), [(6, "async"), (12, "async"), (12, "full")])
def test_ranks_that_wait_for_nobody_have_as_many_checkpoints_as_the_plan_says(every: int, mode: str) -> None:
    """The steps that are counted are whole periods."""
    output = {"checkpoint_every": every, "checkpoint_mode": mode, "checkpoint_to": "store"}
    tree = {"model": {"base": "gpt2-124m", "layers": 2}, "seq_len": 512, "batch": {"micro": 4, "global": 16}, "output": output}
    tree |= {"parallel": {"dp_replicate": 4}, "update": {"mode": "async"}}
    setting = bind(load_plan(tree), "h100-pcie-x8")
    program = program_for(setting, 10 * every + 2, setting.plan)
    trace = simulate(program, pricer_for(setting), setting.places, False, condensed=True)
    assert predict(tree, "h100-pcie-x8").step_time_s == pytest.approx(asynchrony.mean_step(trace).total, rel=0.025)
