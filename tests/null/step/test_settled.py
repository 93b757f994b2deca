"""Steps that launches bind: what is reported is what every further step takes, also where the device begins behind its thread."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from sim.engine.run import simulate
from sim.engine.steps import Step, step_times
from sim.files.planfile import load_plan
from sim.lower.step import lower
from sim.planning.disturbed.faults import faults
from sim.planning.explain.explanation import explain
from sim.predict import predict, predict_setting
from sim.sections import Output
from sim.setting.bind import bind
from sim.setting.pricer import pricer_for
from sim.steady.rounds import step_of, whole_step
from sim.steady.settled import host_seconds
from sim.timeline.metrics import step_times as step_seconds

PLAN = {"model": "gpt2-124m", "seq_len": 256, "parallel": {"dp_replicate": 4}}
SLOW = ("link.nvlink.rate=110 GB/s",)
"""All-reduces and launches take about as long here: after three steps the device still works off its first."""


@pytest.mark.no_cover
def test_every_number_of_steps_says_the_same() -> None:
    found = [predict(PLAN, "dgx-h100", edits=SLOW, steps=steps).step_time_s for steps in (1, 2, 3, 5, 12)]
    assert found == pytest.approx([found[-1]] * 5, rel=1e-3)


def test_no_step_is_shorter_than_what_its_thread_spends() -> None:
    setting = bind(PLAN, "dgx-h100", SLOW)
    quick = lower(setting.plan, setting.network, setting.framework, "cuda", 3)
    spent = host_seconds(quick, pricer_for(setting))
    assert predict_setting(setting).step_time_s >= spent * (1 - 1e-3)
    assert step_of(setting) == pytest.approx(whole_step(setting)) == pytest.approx(spent, rel=1e-2)


@pytest.mark.no_cover
def test_slower_links_make_no_step_shorter() -> None:
    times = [predict(PLAN, "dgx-h100", edits=(f"link.nvlink.rate={rate} GB/s",)).step_time_s for rate in (300, 200, 150, 110, 90, 70)]
    assert all(after >= before * (1 - 1e-3) for before, after in pairwise(times))


@pytest.mark.no_cover
def test_nothing_that_is_made_faster_lengthens_the_step() -> None:
    found = explain(bind(PLAN, "dgx-h100", SLOW), tries=0)
    assert found.sensitivities
    assert all(one.infinitely_fast <= found.step_time_s * (1 + 1e-3) for one in found.sensitivities)


@pytest.mark.no_cover
@pytest.mark.parametrize(("workers", "work"), [(1, "100 ms"), (2, "100 ms"), (3, "150 ms"), (1, "40 ms"), (2, "10 ms")])
def test_a_step_is_what_its_loaders_or_its_device_need(workers: int, work: str) -> None:
    """Eight samples a batch, `workers` processes in turn. In its first step DDP has one bucket, which ends later than any after it."""
    plan = load_plan("gpt2-ddp8", (f"data.workers={workers}", f"data.preprocess={work}"))
    quiet = predict("gpt2-ddp8", "dgx-h100").step_time_s
    loading = 8 * float(work.split()[0]) * 1e-3 / workers
    found = [predict(plan, "dgx-h100", steps=steps).step_time_s for steps in (2, 3, 7)]
    assert found == pytest.approx([max(quiet, loading)] * 3, rel=2e-3)
    setting = bind(plan, "dgx-h100")
    assert whole_step(setting) == pytest.approx(found[0], rel=2e-3)
    assert explain(setting, tries=0).step_time_s == pytest.approx(found[0], rel=2e-3)


def test_a_hurried_step_settles_at_what_its_thread_spends() -> None:
    assert Step(2.0, 3.0).settled == 3.0
    assert Step(3.0, 2.0).settled == 3.0


@pytest.mark.parametrize("on", ["dgx-h100", "h100-pcie-x8"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_second_step_that_is_too_long_is_not_reported(on: str, workers: int) -> None:
    """Its loaders still work off what came in the first step: 0.9 % longer than any later one with two of them."""
    plan = load_plan("two-gpus-six-stages", (f"data.workers={workers}",))
    setting = bind(msgspec.structs.replace(plan, output=Output()), on)
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 24)
    later = [step.seconds for step in step_times(program, pricer_for(setting))][8:20]
    mean = sum(later) / len(later)
    assert predict_setting(setting).step_time_s == pytest.approx(mean, rel=1e-3)
    assert whole_step(setting) == pytest.approx(mean, rel=1e-3)


@pytest.mark.no_cover
@pytest.mark.parametrize(("hidden", "seq", "batch", "data"), [(1024, 1024, 32, ("memory", 2, "2 ms")), (1024, 256, 8, ("disk", 4, "8 ms"))])
def test_a_look_at_the_loss_costs_what_settled_steps_with_and_without_it_differ_by(
    hidden: int, seq: int, batch: int, data: tuple[str, int, str]
) -> None:
    """Three steps with it beside six without made it shorten the one by 1.4 %, and lengthen the other by 2.7 %."""
    source, workers, preprocess = data
    plan = {
        "model": {"family": "decoder", "layers": 2, "hidden": hidden, "heads": 8, "vocab": 4000},
        "seq_len": seq,
        "parallel": {"dp_shard": 2},
        "batch": {"micro": 4, "global": batch},
        "data": {"source": source, "workers": workers, "prefetch": 1, "sample": "1 MB", "preprocess": preprocess},
        "output": {"log_every": 1},
    }
    setting = bind(plan, "dgx-h100")
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 24)
    mean = sum(step.seconds for step in step_times(program, pricer_for(setting))[11:23]) / 12
    found = predict_setting(setting)
    assert found.step_time_s == pytest.approx(mean, rel=7e-3) and found.breakdown.output_s >= 0.0


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_a_step_on_a_cpu_is_one_beside_which_loaders_work(prefetch: int) -> None:
    """Two ranks and their loaders share two cores (one a socket); the last batches are made some steps before the end, and what follows has the cores alone."""
    plan = {
        "model": {"family": "mlp", "widths": [512, 512, 512]},
        "precision": "fp32",
        "parallel": {"dp_replicate": 2},
        "batch": {"micro": 64, "global": 128},
        "data": {"source": "disk", "workers": 1, "prefetch": prefetch, "sample": "4 KiB", "preprocess": "0.03 ms"},
    }
    setting = bind(load_plan(plan), "cpu-host", ("cpu.cores=1",))
    times = step_seconds(simulate(lower(setting.plan, setting.network, setting.framework, "cpu", 24), pricer_for(setting)))
    middle = sorted(times[4:16])[6]
    assert min(times[-2:]) < 0.9 * middle
    assert predict_setting(setting).step_time_s == pytest.approx(middle, rel=0.02)


@pytest.mark.no_cover
@pytest.mark.parametrize(("workers", "ranks", "work"), [(4, 1, "5 ms"), (4, 2, "2 ms"), (4, 2, "5 ms"), (2, 1, "0.2 ms")])
def test_a_step_on_a_cpu_is_one_beside_which_the_store_of_batches_stays_as_it_is(workers: int, ranks: int, work: str) -> None:
    """Two cores. First loaders fill their store, eight batches of four of them, and take the cores from steps, which are up to 60 % longer;
    then the last batch is made, and they are up to 45 % shorter. Every verb says the same."""
    plan = {
        "model": {"family": "mlp", "widths": [1024, 1024, 1024]},
        "precision": "fp32",
        "parallel": {"dp_replicate": ranks},
        "batch": {"micro": 16},
        "data": {"source": "disk", "workers": workers, "sample": "100 KB", "preprocess": work},
    }
    setting = bind(load_plan(plan), "cpu-host", ("cpu.cores=1",))
    times = step_seconds(simulate(lower(setting.plan, setting.network, setting.framework, "cpu", 48), pricer_for(setting)))
    mean = sum(times[20:32]) / 12
    assert predict_setting(setting).step_time_s == pytest.approx(mean, rel=2e-3)
    assert whole_step(setting) == step_of(setting) == pytest.approx(mean, rel=2e-3)
    assert faults(setting.plan, setting.topology, "slow=r0:1").step_time_s == pytest.approx(mean, rel=2e-3)


REPLICAS = {"model": "gpt2-1.5b", "seq_len": 1024, "batch": {"micro": 4, "global": 32}, "parallel": {"dp_replicate": 8}}


@pytest.mark.no_cover
@pytest.mark.parametrize("rate", ["2.7 GB/s", "2.65 GB/s"])
def test_steps_are_no_shorter_than_loaders_that_share_a_disk(rate: str) -> None:
    """Eight ranks read 4 samples of 50 MB each for a step; their store lasts for the simulated ones."""
    plan = REPLICAS | {"data": {"source": "disk", "workers": 2, "sample": "50 MB"}}
    needed = 32 * 50e6 / (float(rate.split()[0]) * 1e9)
    setting = bind(load_plan(plan), "a100-pcie-x8", (f"disk.read={rate}",))
    assert predict_setting(setting).step_time_s == pytest.approx(needed, rel=1e-3)
    assert whole_step(setting) == pytest.approx(needed, rel=1e-3)


@pytest.mark.no_cover
def test_reading_on_the_training_thread_bounds_the_step() -> None:
    """Without loader processes the thread itself waits for the store."""
    plan = REPLICAS | {"data": {"source": "object-store", "workers": 0, "sample": "1 KB"}}
    setting = bind(load_plan(plan), "a100-pcie-x8", ("store.latency=140 ms",))
    program = lower(setting.plan, setting.network, setting.framework, "cuda", 24)
    mean = sum(step.seconds for step in step_times(program, pricer_for(setting))[11:23]) / 12
    assert predict_setting(setting).step_time_s == pytest.approx(mean, rel=2e-3)


@pytest.mark.no_cover
@pytest.mark.parametrize("parallel", [{"dp_replicate": 8}, {"pp": 4, "virtual_stages": 2, "schedule": "interleaved"}])
def test_the_first_step_is_none_that_is_reported(parallel: dict[str, object]) -> None:
    """It fills the input path and the pipeline, and DDP's buckets are others."""
    plan = {"model": "gpt2-124m", "batch": {"global": 8, "micro": 1}, "parallel": parallel}
    assert predict(plan, "dgx-h100", steps=1).step_time_s == pytest.approx(predict(plan, "dgx-h100").step_time_s, rel=1e-6)
